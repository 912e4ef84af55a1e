// Attention with fused multiply-adds: any type of keys and values, any chip.
//
// `attend`: a block attends for one row and the query heads of one key head to one split. Keys: a warp takes a quarter of
// the dims, a lane eight keys. Values: a thread takes eight dims of every KEY_LANES'th key.
//
// HEAD_DIM: D, a multiple of 16. GROUP: query heads of a key head. K_TYPE, V_TYPE: see kept.h.
#include "attention.h"
#include "kept.h"

constexpr u32 THREADS = 128, WARPS = THREADS / LANES;
// Query heads of a block; a group of more takes several blocks.
constexpr u32 COLUMNS = GROUP < 8 ? GROUP : 8;
constexpr u32 PASSES = (GROUP + COLUMNS - 1) / COLUMNS;
// Columns in shared memory, so that they are read in vectors.
constexpr u32 PITCH = (COLUMNS + 3) / 4 * 4;
constexpr u32 SLICE = HEAD_DIM / WARPS;
constexpr u32 DIM_LANES = HEAD_DIM / 8;
constexpr u32 KEY_LANES = THREADS / DIM_LANES;
constexpr u32 UNROLL = 8;
static_assert(HEAD_DIM % 16 == 0 && KEY_LANES > 0, "head sizes");

struct Columns {
    float at[PITCH];
};
DEVICE Columns load_columns(const float* from) {
    Columns columns;
#pragma unroll
    for (u32 c = 0; c < PITCH; c += 4) {
        Vec4f four = *reinterpret_cast<const Vec4f*>(from + c);
        columns.at[c] = four.x, columns.at[c + 1] = four.y, columns.at[c + 2] = four.z, columns.at[c + 3] = four.w;
    }
    return columns;
}
DEVICE void add_products(float (&sums)[COLUMNS][8], const Eight& eight, const Columns& columns) {
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++)
#pragma unroll
        for (u32 i = 0; i < 8; i++) sums[c][i] = fused_multiply_add(columns.at[c], eight.at[i], sums[c][i]);
}

struct Shared {
    float* q;        // [D, PITCH]
    float* weights;  // [SPLIT, PITCH]
    float* sums;     // [WARPS, COLUMNS, SPLIT], then [KEY_LANES, COLUMNS, D]
    u32* at;         // [SPLIT]: page * PAGE_TOKENS + token
};

// Where the keys of a split lie; unseen places get that of a seen one, whose values are numbers.
DEVICE void find_slots(const AttendArgs& args, const Row& row, const Segment& segment, Places seen, u32 first, u32* at) {
    for (u32 i = thread_index(); i < SPLIT; i += THREADS) {
        u32 place = first + i;
        if (place < seen.first || place >= seen.end) place = seen.first;
        u32 slot = slot_of(args.tables, row, segment, place);
        at[i] = page_of(args.tables, segment, slot) * PAGE_TOKENS + slot % PAGE_TOKENS;
    }
}

// Products of eight keys with all columns over the warp's slice of dims.
DEVICE void score(const AttendArgs& args, const Shared& shared, u32 kv_head, u32 first_seen, bool in_place) {
    u32 lane = lane_index(), first_dim = warp_index() * SLICE;
    const KeyUnit* keys = static_cast<const KeyUnit*>(args.k);
    auto page_at = [&](u32 at) { return keys + ((u64)(at / PAGE_TOKENS) * args.num_kv_heads + kv_head) * KeyFormat::PAGE_UNITS; };
    const float* q = shared.q + first_dim * PITCH;
    float sums[COLUMNS][8] = {};
    if (in_place) {
        u32 at = shared.at[larger(lane * 8, first_seen)];
        const KeyUnit* page = page_at(at);
        u32 token = at % PAGE_TOKENS / 8 * 8;
#pragma unroll 8
        for (u32 d = 0; d < SLICE; d++) add_products(sums, eight_keys<K_TYPE>(page, first_dim + d, token), load_columns(q + d * PITCH));
    } else {
        u32 places[8];
        for (u32 i = 0; i < 8; i++) places[i] = shared.at[lane * 8 + i];
#pragma unroll 2
        for (u32 d = 0; d < SLICE; d++) {
            Eight eight;
            for (u32 i = 0; i < 8; i++) eight.at[i] = key_at<K_TYPE>(page_at(places[i]), first_dim + d, places[i] % PAGE_TOKENS);
            add_products(sums, eight, load_columns(q + d * PITCH));
        }
    }
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        Vec4f* to = reinterpret_cast<Vec4f*>(shared.sums + (warp_index() * COLUMNS + c) * SPLIT + lane * 8);
        to[0] = {sums[c][0], sums[c][1], sums[c][2], sums[c][3]};
        to[1] = {sums[c][4], sums[c][5], sums[c][6], sums[c][7]};
    }
}

// Weights of the keys in a column, and its maximum and sum. A warp a column.
DEVICE Vec2f weigh(const Shared& shared, u32 column, Places seen, u32 first) {
    float scores[SPLIT / LANES], top = -1e30f, total = 0, scale = score_scale(HEAD_DIM);
#pragma unroll
    for (u32 i = 0; i < SPLIT / LANES; i++) {
        u32 key = i * LANES + lane_index();
        float sum = shared.sums[column * SPLIT + key];
        for (u32 w = 1; w < WARPS; w++) sum += shared.sums[(w * COLUMNS + column) * SPLIT + key];
        bool is_seen = first + key >= seen.first && first + key < seen.end;
        scores[i] = is_seen ? sum * scale : -1e30f;
        top = larger(top, scores[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (u32 i = 0; i < SPLIT / LANES; i++) {
        u32 key = i * LANES + lane_index();
        bool is_seen = first + key >= seen.first && first + key < seen.end;
        float weight = is_seen ? exp2_fast(scores[i] - top) : 0.0f;
        total += weight;
        shared.weights[key * PITCH + column] = weight;
    }
    return {top, warp_sum(total)};
}

// Weighted values, a partial sum of each of KEY_LANES.
DEVICE void mix(const AttendArgs& args, const Shared& shared, u32 kv_head, u32 count) {
    u32 dims = thread_index() % DIM_LANES * 8, key_lane = thread_index() / DIM_LANES;
    if (key_lane >= KEY_LANES) return;
    const ValueUnit* values = static_cast<const ValueUnit*>(args.v);
    float sums[COLUMNS][8] = {};
    for (u32 first = key_lane; first < count; first += KEY_LANES * UNROLL) {
        Eight eight[UNROLL];
#pragma unroll
        for (u32 i = 0; i < UNROLL; i++) {
            u32 at = shared.at[smaller(first + i * KEY_LANES, SPLIT - 1)];
            u64 page = (u64)(at / PAGE_TOKENS) * args.num_kv_heads + kv_head;
            eight[i] = eight_values<V_TYPE>(values + page * ValueFormat::PAGE_UNITS, at % PAGE_TOKENS, dims);
        }
#pragma unroll
        for (u32 i = 0; i < UNROLL; i++) {
            u32 key = first + i * KEY_LANES;
            if (SPLIT % (KEY_LANES * UNROLL) == 0 || key < SPLIT) add_products(sums, eight[i], load_columns(shared.weights + key * PITCH));
        }
    }
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        Vec4f* to = reinterpret_cast<Vec4f*>(shared.sums + (key_lane * COLUMNS + c) * HEAD_DIM + dims);
        to[0] = {sums[c][0], sums[c][1], sums[c][2], sums[c][3]};
        to[1] = {sums[c][4], sums[c][5], sums[c][6], sums[c][7]};
    }
}

// Grid: rows, key heads by passes, splits.
KERNEL(attend, AttendArgs, 128) {
    DYNAMIC_SHARED(memory);
    u32 row_index = args.first_row + block_x(), split = block_z();
    Row row = args.tables.rows[row_index];
    if (row.segment == NONE) return;
    Places seen = seen_of_split(row, args.window, args.causal, split);
    if (seen.first >= seen.end) return;
    Segment segment = args.tables.segments[row.segment];
    u32 kv_head = block_y() / PASSES, first_column = block_y() % PASSES * COLUMNS, first = split * SPLIT;
    u32 columns = smaller(COLUMNS, GROUP - first_column);
    u32 head = kv_head * GROUP + first_column;
    Shared shared;
    shared.q = reinterpret_cast<float*>(memory);
    shared.weights = shared.q + HEAD_DIM * PITCH;
    shared.at = reinterpret_cast<u32*>(shared.weights + SPLIT * PITCH);
    shared.sums = reinterpret_cast<float*>(shared.at + SPLIT);

    find_slots(args, row, segment, seen, first, shared.at);
    const float* q = args.q + ((u64)row_index * args.num_heads + head) * args.q_stride;
    for (u32 i = thread_index(); i < HEAD_DIM * PITCH; i += THREADS) {
        u32 c = i / HEAD_DIM, d = i % HEAD_DIM;
        shared.q[d * PITCH + c] = c < columns ? q[c * args.q_stride + d] : 0.0f;
    }
    sync_threads();
    // Eight keys lie side by side where all of the lane's seen places are slots; the rest is not looked at.
    u32 lane_end = smaller(first + lane_index() * 8 + 8, seen.end);
    bool in_place = row.path == NONE || lane_end <= segment.committed_len;
    score(args, shared, kv_head, seen.first - first, in_place);
    sync_threads();
    u64 result = ((u64)block_x() * args.num_heads + head) * args.num_splits + split;
    for (u32 c = warp_index(); c < COLUMNS; c += WARPS) {
        Vec2f sums = weigh(shared, c, seen, first);
        if (lane_index() == 0 && c < columns) args.sums[result + (u64)c * args.num_splits] = sums;
    }
    sync_threads();
    mix(args, shared, kv_head, seen.end - first);
    sync_threads();
    for (u32 i = thread_index(); i < columns * HEAD_DIM; i += THREADS) {
        u32 c = i / HEAD_DIM, d = i % HEAD_DIM;
        float sum = 0;
        for (u32 lane = 0; lane < KEY_LANES; lane++) sum += shared.sums[(lane * COLUMNS + c) * HEAD_DIM + d];
        args.partials[(result + (u64)c * args.num_splits) * HEAD_DIM + d] = sum;
    }
}
