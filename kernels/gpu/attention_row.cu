// Attention of rows by themselves, each of which makes its queries and its key ready: what attention_mma.cu does, to the bit, by clusters.
//
// A cluster has what a row's heads with one key see of a split. Each of its blocks scores a page of keys and sends the scores to all; then each
// has all weights, and mixes its share of the dims. Pages are on their way to shared memory before the row is there, whose key and values are
// then put into them.
// HEAD_DIM, GROUP, K_TYPE, V_TYPE: see attention_tiles.h; keys and values are f16 or bf16. TURNED_PAIRS: of dims that are turned, which lie so
// far apart; a multiple of 32, so that a lane has both.
#ifndef HEAD_DIM
#define HEAD_DIM 256
#define GROUP 4
#define K_TYPE 1
#define V_TYPE 1
#define TURNED_PAIRS 32
#endif
#define TILES 1
#define CLUSTER 4
#include "arch.h"
DEVICE u32 group_thread() { return thread_index(); }
DEVICE u32 group_warp() { return warp_index(); }
DEVICE void sync_group() { sync_threads(); }
#include "attention_tiles.h"
#include "heads.h"
// Clusters of later chips have not been tried.
#if ON_HOST || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cluster.h"

// Dims of a block, and bytes of 64 keys' dim or a token's dims in shared memory.
constexpr u32 OWN_DIMS = HEAD_DIM / CLUSTER, PITCH = PAGE_TOKENS * sizeof(u16), CHUNK = 16, CHUNKS = PITCH / CHUNK;
// Warps that score 16 keys each, and those that mix 16 dims each.
constexpr u32 SCORERS = PAGE_TOKENS / 16, MIXERS = OWN_DIMS / 16;
static_assert(CLUSTER * PAGE_TOKENS == SPLIT && HEAD_DIM % (CLUSTER * 16) == 0 && OWN_DIMS <= PAGE_TOKENS && GROUP < WARPS, "a block has a page");
static_assert(!KeyFormat::IS_CODED && !ValueFormat::IS_CODED && K_TYPE != F32 && V_TYPE != F32, "keys and values are halves");
static_assert(TURNED_PAIRS % LANES == 0, "a lane has both of a pair");

// Steps whose keys or values are read at once.
constexpr u32 BATCH = 4;
static_assert(DIM_STEPS % BATCH == 0 && KEY_STEPS % BATCH == 0, "whole batches");
constexpr u32 TURNED = TURNED_PAIRS / LANES;
constexpr u32 SCORES_AT = 8 * Q_PITCH, KEYS_AT = SCORES_AT + 8 * WEIGHT_PITCH, VALUES_AT = KEYS_AT + HEAD_DIM * PITCH;

struct LaunchArgs {
    AttendArgs attend;
    PrepareArgs prepare;
};

// Rows of 64 halves, in chunks of 16 bytes that four lanes find in different banks where their rows are four apart.
DEVICE u32 place_of_half(u32 row, u32 at) { return row * PITCH + (at / 8 ^ row / 4 % 4 * 2) * CHUNK + at % 8 * sizeof(u16); }
// A lane's pair of halves of rows 4t..4t+3 from `first` on, which is a multiple of 16.
template <u32 TYPE> DEVICE void load_pairs(u32 (&words)[4][1], const u8* rows, u32 first, u32 at) {
    const u8* from = rows + place_of_half(first + 4 * (lane_index() % 4), at);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        u32 pair = *reinterpret_cast<const u32*>(from + j * PITCH);
        words[j][0] = TYPE == BF16 ? pair_of_bf16(pair) : pair;
    }
}

// Pages that the row sees of a split, on their way: a page's keys, and the block's dims of all values. Of what is not seen values are zeros.
DEVICE void copy_pages(const AttendArgs& args, const Segment& segment, Places seen, u32 split, u32 rank, u32 kv_head, u8* keys, u8* values) {
    u32 pages[CLUSTER];
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        // Of those that are seen: of others there may be none.
        u32 slot = smaller(larger(split * SPLIT + i * PAGE_TOKENS, seen.first), seen.end - 1);
        pages[i] = page_of(args.tables, segment, slot) * args.num_kv_heads + kv_head;
    }
    u32 slot = split * SPLIT + rank * PAGE_TOKENS;
    if (slot < seen.end && slot + PAGE_TOKENS > seen.first) {
        u32 page = pages[0];
#pragma unroll
        for (u32 i = 1; i < CLUSTER; i++) page = rank == i ? pages[i] : page;
        const u16* from = static_cast<const u16*>(args.k) + (u64)page * KeyFormat::PAGE_UNITS + 8 * thread_index();
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM * CHUNKS; i += THREADS) {
            u32 at = i + thread_index(), place = place_of_half(at / CHUNKS, at % CHUNKS * 8);
            if (HEAD_DIM * CHUNKS % THREADS == 0 || at < HEAD_DIM * CHUNKS) copy_async(shared_place(keys + place), from + i * 8);
        }
    }
    constexpr u32 OWN_CHUNKS = OWN_DIMS * sizeof(u16) / CHUNK, TOKENS = THREADS / OWN_CHUNKS;
    u32 dim = thread_index() % OWN_CHUNKS * 8;
#pragma unroll
    for (u32 first = 0; first < SPLIT; first += TOKENS) {
        u32 token = first + thread_index() / OWN_CHUNKS, place = split * SPLIT + token;
        if (TOKENS > SPLIT && token >= SPLIT) break;
        u8* to = values + place_of_half(token, dim);
        if (place < seen.first || place >= seen.end) {
            *reinterpret_cast<Vec4u*>(to) = {0, 0, 0, 0};
            continue;
        }
        u32 page = pages[first / PAGE_TOKENS];
        if constexpr (TOKENS > PAGE_TOKENS)
#pragma unroll
            for (u32 i = 0; i < CLUSTER; i++) page = token / PAGE_TOKENS == i ? pages[i] : page;
        const u16* from = static_cast<const u16*>(args.v) + (u64)page * ValueFormat::PAGE_UNITS;
        copy_async(shared_place(to), from + token % PAGE_TOKENS * HEAD_DIM + rank * OWN_DIMS + dim);
    }
    commit_copies();
}

// A lane's values of a head as they came, `x`, normed and turned: what `make_ready` of heads.h does.
DEVICE void make_ready(const Head& head, bool is_normed, float eps, float (&x)[HEAD_VALUES]) {
    float square = 0.0f;
#pragma unroll
    for (u32 i = 0; i < HEAD_VALUES; i++) square = fused_multiply_add(x[i], x[i], square);
    square = warp_sum(square);
    float inverse = is_normed ? inverse_root(square * (1.0f / HEAD_DIM) + eps) : 1.0f;
#pragma unroll
    for (u32 i = 0; i < HEAD_VALUES; i++) x[i] = x[i] * inverse * head.factors[i];
#pragma unroll
    for (u32 i = 0; i < TURNED; i++) {
        float u = x[i], w = x[i + TURNED];
        x[i] = u * head.turns[i].cos - w * head.turns[i].sin;
        x[i + TURNED] = w * head.turns[i].cos + u * head.turns[i].sin;
    }
}
template <u32 TYPE> DEVICE u16 half_of(float x) { return TYPE == BF16 ? f32_to_bf16(x) : f32_to_f16(x); }

// What a lane has of two columns' answers: two dims each.
typedef float Pairs[2][2];

// Splits of a row whose parts a lane has under way at once, of two columns and two dims each.
constexpr u32 FLIGHT = 8;
struct Parts {
    // Maximum and sum of weights.
    Vec2f sums[FLIGHT], values[FLIGHT];
    // From split `at` of `count` on; what is none is the last one again.
    DEVICE_MEMBER void load(const Vec2f* of_head, const float* partials, u32 at, u32 count) {
#pragma unroll
        for (u32 j = 0; j < FLIGHT; j++) sums[j] = of_head[smaller(at + j, count - 1)];
#pragma unroll
        for (u32 j = 0; j < FLIGHT; j++) values[j] = *reinterpret_cast<const Vec2f*>(partials + (u64)smaller(at + j, count - 1) * HEAD_DIM);
    }
    DEVICE_MEMBER float top(float top) const {
#pragma unroll
        for (u32 j = 0; j < FLIGHT; j++) top = larger(top, sums[j].x);
        return top;
    }
};
// Puts the splits of a lane's dims together, as combine_row of attention_mma.cu does. `head`: of the launch's rows, the first of the group.
DEVICE void combine(const AttendArgs& args, Places splits, u64 head, u32 dim, Pairs& totals, float (&shares)[2]) {
    u32 count = splits.end - splits.first, t = lane_index() % 4;
    Parts parts[2];
    const Vec2f* sums[2];
    const float* partials[2];
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        u64 first = (head + smaller(2 * t + c, GROUP - 1u)) * args.num_splits + splits.first;
        sums[c] = args.sums + first;
        partials[c] = args.partials + first * HEAD_DIM + dim;
        parts[c].load(sums[c], partials[c], 0, count);
    }
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        float top = parts[c].top(-1e30f), total = 0.0f;
#pragma unroll 1
        for (u32 at = FLIGHT; at < count; at++) top = larger(top, sums[c][at].x);
        totals[c][0] = totals[c][1] = 0.0f;
#pragma unroll 1
        for (u32 at = 0; at < count; at += FLIGHT) {
            if (at > 0) parts[c].load(sums[c], partials[c], at, count);
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) {
                if (at + j >= count) continue;
                float weight = exp2_fast(parts[c].sums[j].x - top);
                total += fused_multiply_add(weight, parts[c].sums[j].y, 0.0f);
                totals[c][0] += fused_multiply_add(weight, parts[c].values[j].x, 0.0f);
                totals[c][1] += fused_multiply_add(weight, parts[c].values[j].y, 0.0f);
            }
        }
        shares[c] = reciprocal(total);
    }
}

// Grid: clusters for each row and split, key heads.
KERNEL_CLUSTERED(attend_row, LaunchArgs, THREADS, 2, CLUSTER) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    SHARED u64 counter;
    const AttendArgs& attend = args.attend;
    u32 warp = warp_index(), lane = lane_index(), g = lane / 4, t = lane % 4, rank = block_x() % CLUSTER, kv_head = block_y();
    u32 num_rows = attend.end_row - attend.first_row, number = block_x() / CLUSTER, split = number / num_rows;
    u32 row_index = attend.first_row + number % num_rows;
    // Heads of a row that share the key, the key, and its values.
    bool is_key = warp == GROUP;
    Head head(args.prepare, is_key ? attend.num_heads + kv_head : kv_head * GROUP + smaller(warp, GROUP - 1u));
    Row row = attend.tables.rows[row_index];
    Places all = {0, 0}, seen = {0, 0};
    if (row.segment != NONE) {
        all = seen_by(row, attend.window, attend.causal);
        seen = seen_of_split(row, attend.window, attend.causal, split);
    }
    if (seen.first >= seen.end) {
        // See attention_mma.cu.
        if (block_x() + block_y() == 0) wait_for_inputs();
        return;
    }
    Inbox scores = Inbox::at(shared + SCORES_AT, counter);
    if (thread_index() == 0) scores.begin();
    // For racecheck, which takes the two for different lanes'.
    sync_warp();
    if (thread_index() == 0) scores.expect(GROUP * SPLIT * sizeof(float));
    arrive_at_cluster();
    Segment segment = attend.tables.segments[row.segment];
    u8 *keys = shared + KEYS_AT, *values = shared + VALUES_AT;
    copy_pages(attend, segment, seen, split, rank, kv_head, keys, values);
    head.take(args.prepare, row);
    Places splits = splits_of(all);
    bool is_alone = attend.tickets && splits.first + 1 == splits.end, is_own = row.slot / SPLIT == split;
    wait_copies<0>();
    // The row's key and values come in place of what was copied there.
    sync_threads();
    wait_for_inputs();

    // Of a lane's columns and dims.
    u32 dim = rank * OWN_DIMS + 16 * warp + 2 * g;
    u64 answers = (u64)row_index * attend.num_heads + kv_head * GROUP;
    Pairs gates = {};
    if (attend.gated && warp < MIXERS)
#pragma unroll
        for (u32 c = 0; c < 2; c++)
            if (2 * t + c < GROUP) load_dims(gates[c], attend.q + (answers + 2 * t + c) * attend.q_stride + HEAD_DIM + dim);
    if (warp < GROUP || (is_key && is_own)) {
        u64 key_at = ((u64)row_index * attend.num_kv_heads + kv_head) * HEAD_DIM;
        const float* from = is_key ? args.prepare.k + key_at : head.query(args.prepare, row_index);
        float x[HEAD_VALUES], value[HEAD_VALUES] = {};
#pragma unroll
        for (u32 i = 0; i < HEAD_VALUES; i++) x[i] = from[lane + i * LANES];
        if (is_key)
#pragma unroll
            for (u32 i = 0; i < HEAD_VALUES; i++) value[i] = args.prepare.v[key_at + lane + i * LANES];
        make_ready(head, (is_key ? args.prepare.k_gamma : args.prepare.q_gamma) != nullptr, args.prepare.eps, x);
        if (!is_key) {
            // As put_query has it.
            u8* to = shared + warp * Q_PITCH + lane * sizeof(u16);
#pragma unroll
            for (u32 i = 0; i < HEAD_VALUES; i++) {
                u16 high = f32_to_f16(x[i]);
                u16* own = reinterpret_cast<u16*>(to + i * LANES * sizeof(u16));
                own[0] = high;
                own[Q_LOW / sizeof(u16)] = f32_to_f16(x[i] - f16_to_f32(high));
            }
        } else {
            bool has_page = row.slot % SPLIT / PAGE_TOKENS == rank;
#pragma unroll
            for (u32 i = 0; i < HEAD_VALUES; i++) {
                u32 d = lane + i * LANES, own = d - rank * OWN_DIMS;
                if (has_page) *reinterpret_cast<u16*>(keys + place_of_half(d, row.slot % PAGE_TOKENS)) = half_of<K_TYPE>(x[i]);
                if (own < OWN_DIMS) *reinterpret_cast<u16*>(values + place_of_half(row.slot % SPLIT, own)) = half_of<V_TYPE>(value[i]);
            }
            if (has_page) head.store(args.prepare, x, value);
        }
    }
    sync_threads();
    wait_for_cluster();

    if (warp < SCORERS) {
        float sums[1][TILES][4] = {};
        const u8* columns = shared + g * Q_PITCH + t * 8;
        u32 key = 16 * warp + 2 * g;
#pragma unroll 1
        for (u32 step = 0; step < DIM_STEPS; step += BATCH) {
            u32 words[BATCH][4][1];
#pragma unroll
            for (u32 i = 0; i < BATCH; i++) load_pairs<K_TYPE>(words[i], keys, (step + i) * STEP, key);
#pragma unroll
            for (u32 i = 0; i < BATCH; i++) multiply(sums, words[i], columns + (step + i) * STEP * 2, Q_PITCH, Q_LOW, 1);
        }
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            u32 column = 2 * t + c, at = column * (WEIGHT_PITCH / 4) + rank * PAGE_TOKENS + key;
            if (column >= GROUP) continue;
#pragma unroll
            for (u32 to = 0; to < CLUSTER; to++) scores.of_block(to).send(at, sums[0][0][c], sums[0][0][c + 2]);
        }
    }
    u8* weights = shared + SCORES_AT;
    u64 heads = (u64)(row_index - attend.first_row) * attend.num_heads + kv_head * GROUP;
    if (warp < GROUP) {
        scores.wait_until_full();
        u8* column = weights + warp * WEIGHT_PITCH;
        Vec2f sums = weigh(column, seen, split * SPLIT);
        if (lane == 0) {
            *reinterpret_cast<float*>(column + WEIGHT_TOTAL) = sums.y;
            if (!is_alone) attend.sums[(heads + warp) * attend.num_splits + split] = sums;
        }
    }
    sync_threads();
    if (warp >= MIXERS) return;

    float sums[1][TILES][4] = {};
    const u8* columns = weights + g * WEIGHT_PITCH + t * 8;
    u32 first = split * SPLIT;
    // What is not seen has neither weights nor values.
#pragma unroll 1
    for (u32 step = (seen.first - first) / STEP / BATCH * BATCH; step * STEP < seen.end - first; step += BATCH) {
        u32 words[BATCH][4][1];
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) load_pairs<V_TYPE>(words[i], values, (step + i) * STEP, 16 * warp + 2 * g);
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) multiply(sums, words[i], columns + (step + i) * STEP * 2, WEIGHT_PITCH, WEIGHT_LOW, 1);
    }
    Pairs totals;
    float shares[2];
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        totals[c][0] = sums[0][0][c], totals[c][1] = sums[0][0][c + 2];
        u32 column = smaller(2 * t + c, GROUP - 1u);
        if (is_alone) shares[c] = reciprocal(*reinterpret_cast<const float*>(weights + column * WEIGHT_PITCH + WEIGHT_TOTAL));
        else if (2 * t + c < GROUP) store_dims(attend.partials + ((heads + column) * attend.num_splits + split) * HEAD_DIM + dim, totals[c]);
    }
    if (!is_alone) {
        if (!attend.tickets) return;
        // Whoever has the last split of these dims puts them together.
        u32 count = splits.end - splits.first;
        u32* tickets = attend.tickets + ((row_index - attend.first_row) * attend.num_kv_heads + kv_head) * (HEAD_DIM / 16);
        if (take_ticket_of_warp(tickets + rank * MIXERS + warp, count) + 1 < count) return;
        combine(attend, splits, heads, dim, totals, shares);
    }
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        if (2 * t + c >= GROUP) continue;
        float own[2];
        for (u32 i = 0; i < 2; i++) own[i] = answer(totals[c][i], shares[c], attend.gated, gates[c][i]);
        store_dims(attend.out + (answers + 2 * t + c) * HEAD_DIM + dim, own);
    }
}
#endif
