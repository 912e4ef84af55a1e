// Attention of rows that share what they see to one split, with matrix units, for keys and values that f16 holds or codes stand
// for.
//
// Keys and values are the streamed side of the products: they go from memory to registers as they lie, of f16 sixteen bytes a
// lane, codes become pairs of f16 there, and two byte permutations make fragments of them. Queries and weights are the other side, split into two halves
// of f16 each, so that products are good to 22 bits. A column is one query head of one row. Its sums are the same
// whatever the other columns are, so that a group of warps may take as many rows as pays.
//
// What a node of a tree sees of its own segment is its own: such a row is by itself, and finds slots by its path.
//
// HEAD_DIM: D, a multiple of 16. GROUP: query heads of a key head. TILES: columns / 8. K_TYPE, V_TYPE: see kept.h. Whoever
// includes this has `group_thread`, `group_warp` and `sync_group` for the THREADS that work together.
#pragma once
#include "attention.h"
#include "kept_pairs.h"

// How keys and dims are dealt out to warps is free: each of their sums is one warp's alone. Few columns are waited for,
// many are computed.
constexpr u32 WARPS = TILES < 5 ? 8 : 4, THREADS = WARPS * LANES;
constexpr u32 COLUMNS = TILES * 8;
// Tiles of 16 keys that a warp scores at a time, and their keys.
constexpr u32 KEY_TILES = SPLIT / 16 / WARPS, RUN = KEY_TILES * 16;
// Tiles of one row.
constexpr u32 ROW_TILES = (GROUP + 7) / 8;
constexpr u32 STEP = 16, KEY_STEPS = SPLIT / STEP, DIM_STEPS = HEAD_DIM / STEP;
// Steps whose loads are under way at once.
constexpr u32 DEPTH = TILES == 1 ? 8 : 2;
constexpr u32 DIM_DEPTH = DIM_STEPS % DEPTH == 0 ? DEPTH : DIM_STEPS % 4 == 0 && DEPTH > 4 ? 4 : DIM_STEPS % 2 == 0 ? 2 : 1;
// Tiles of 16 dims that a warp takes at a time.
constexpr u32 DIM_TILES = HEAD_DIM % (WARPS * 64) == 0 ? 4 : HEAD_DIM % (WARPS * 32) == 0 ? 2 : 1;
constexpr u32 DIM_RUNS = HEAD_DIM / 16 / DIM_TILES;
// Bytes from one column to the next, so that eight columns lie in different banks; the low halves follow the high ones.
constexpr u32 Q_PITCH = HEAD_DIM * 4 + 32, Q_LOW = HEAD_DIM * 2;
constexpr u32 WEIGHT_PITCH = SPLIT * 4 + 32, WEIGHT_LOW = SPLIT * 2;
// The sum of a column's weights stands behind them.
constexpr u32 WEIGHT_TOTAL = SPLIT * 4;
static_assert(COLUMNS >= GROUP && HEAD_DIM % 16 == 0, "head sizes");

DEVICE Vec2u load_pair(const u8* from) {
    Vec2f words = *reinterpret_cast<const Vec2f*>(from);
    return {f32_to_bits(words.x), f32_to_bits(words.y)};
}

// sums += streamed x columns over one step. Lane (g, t) = (lane / 4, lane % 4) holds of streamed rows 4t..4t+3 the N
// words g * N.., two elements each: element 2i is row g of tile i, 2i + 1 its row g + 8. `columns`: the lane's place in
// column g.
template <u32 N>
DEVICE void multiply(float (&sums)[N][TILES][4], const u32 (&words)[4][N], const u8* columns, u32 pitch, u32 low, u32 tiles) {
    u32 a[N][4];
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        a[i][0] = low_halves(words[0][i], words[1][i]);
        a[i][1] = high_halves(words[0][i], words[1][i]);
        a[i][2] = low_halves(words[2][i], words[3][i]);
        a[i][3] = high_halves(words[2][i], words[3][i]);
    }
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
        if (n >= tiles) continue;
        Vec2u high_b = load_pair(columns + n * 8 * pitch), low_b = load_pair(columns + n * 8 * pitch + low);
#pragma unroll
        for (u32 i = 0; i < N; i++) mma_f16(sums[i][n], a[i], high_b.x, high_b.y);
#pragma unroll
        for (u32 i = 0; i < N; i++) mma_f16(sums[i][n], a[i], low_b.x, low_b.y);
    }
}

// What a row sees of a split.
struct RowSeen {
    Places places;
    // It sees no other, and its answers are made here.
    bool is_alone;
};

struct Block {
    u32 lead, rows, split, first, kv_head, columns, tiles;
    // What any of its rows sees of the split.
    Places seen;
    u8* q;        // [columns, Q_PITCH]
    u8* weights;  // [columns, WEIGHT_PITCH]: scores in f32, then weights in two f16
    float* run;   // [WARPS, ROW_TILES * 8, RUN]: scores of slots
    u32* at;      // [SPLIT]: value rows of the places
    const RowSeen* rows_seen;
};

DEVICE bool is_in_place(const Row& row, const Segment& segment, u32 split) {
    return row.path == NONE || smaller(row.seen_end, (split + 1) * SPLIT) <= segment.committed_len;
}

// Four dims of a column's query as two halves of f16.
DEVICE void put_query(const Block& block, u32 column, u32 quad, const Vec4f& q) {
    u8* to = block.q + column * Q_PITCH + quad * 8;
    u16 high[4] = {f32_to_f16(q.x), f32_to_f16(q.y), f32_to_f16(q.z), f32_to_f16(q.w)};
    u16 low[4] = {f32_to_f16(q.x - f16_to_f32(high[0])), f32_to_f16(q.y - f16_to_f32(high[1])),
                  f32_to_f16(q.z - f16_to_f32(high[2])), f32_to_f16(q.w - f16_to_f32(high[3]))};
    u32* high_to = reinterpret_cast<u32*>(to);
    u32* low_to = reinterpret_cast<u32*>(to + Q_LOW);
    high_to[0] = low_halves(high[0], high[1]), high_to[1] = low_halves(high[2], high[3]);
    low_to[0] = low_halves(low[0], low[1]), low_to[1] = low_halves(low[2], low[3]);
}
// All of them. A thread has loads of two places under way.
DEVICE void stage_queries(const AttendArgs& args, const Block& block) {
    constexpr u32 QUADS = HEAD_DIM / 4;
    u32 count = block.columns * QUADS;
    for (u32 first = group_thread(); first < count; first += 2 * THREADS) {
        Vec4f loaded[2];
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            u32 i = smaller(first + j * THREADS, count - 1), c = i / QUADS;
            u64 head = (u64)(block.lead + c / GROUP) * args.num_heads + block.kv_head * GROUP + c % GROUP;
            loaded[j] = *reinterpret_cast<const Vec4f*>(args.q + head * args.q_stride + i % QUADS * 4);
        }
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            u32 i = first + j * THREADS;
            if (i < count) put_query(block, i / QUADS, i % QUADS, loaded[j]);
        }
    }
}

// The page of keys that belongs to a value row.
DEVICE const u16* keys_at(const AttendArgs& args, u32 at) { return static_cast<const u16*>(args.k) + (u64)(at / PAGE_TOKENS) * KeyFormat::PAGE_UNITS; }
// Keys of N tiles of 16 in COUNT steps of their dims, and values of N tiles of 16 dims in COUNT steps of keys, as they lie: what is loaded may be
// multiplied much later.
template <u32 N, u32 COUNT> struct HeldKeys {
    RawKeys<K_TYPE, N> raw[COUNT];

    // From step `first` on, of the keys from `token` of a page on.
    DEVICE_MEMBER void load(const u16* page, u32 token, u32 first) {
        u32 own = token + lane_index() / 4 * N * 2;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) raw[i].load(page, (first + i) * STEP + lane_index() % 4 * 4, own);
    }
    DEVICE_MEMBER void multiply_all(float (&sums)[N][TILES][4], u32 first, const Block& block) const {
        u32 t = lane_index() % 4;
        const u8* columns = block.q + lane_index() / 4 * Q_PITCH + t * 8;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 words[4][N];
            raw[i].unpack(words, (first + i) * STEP + t * 4);
            multiply(sums, words, columns + (first + i) * STEP * 2, Q_PITCH, Q_LOW, block.tiles);
        }
    }
};
template <u32 N, u32 COUNT> struct HeldValues {
    RawValues<V_TYPE, N> raw[COUNT][4];

    // From step `first` on; a lane's dims begin at `dim`.
    DEVICE_MEMBER void load(const u16* values, u32 dim, u32 first, const Block& block) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            Vec4u at = *reinterpret_cast<const Vec4u*>(block.at + (first + i) * STEP + lane_index() % 4 * 4);
            raw[i][0].load(values, at.x, dim);
            raw[i][1].load(values, at.y, dim);
            raw[i][2].load(values, at.z, dim);
            raw[i][3].load(values, at.w, dim);
        }
    }
    DEVICE_MEMBER void multiply_all(float (&sums)[N][TILES][4], u32 dim, u32 first, const Block& block) const {
        const u8* columns = block.weights + lane_index() / 4 * WEIGHT_PITCH + lane_index() % 4 * 8;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 words[4][N];
#pragma unroll
            for (u32 j = 0; j < 4; j++) raw[i][j].unpack(words[j], dim);
            multiply(sums, words, columns + (first + i) * STEP * 2, WEIGHT_PITCH, WEIGHT_LOW, block.tiles);
        }
    }
};

// Products of the N tiles of keys that begin at `token` of a page with all columns, COUNT steps at a time.
template <u32 N = KEY_TILES, u32 COUNT = DIM_DEPTH>
DEVICE void score_run(float (&sums)[N][TILES][4], const u16* page, u32 token, const Block& block) {
#pragma unroll 1
    for (u32 step = 0; step < DIM_STEPS; step += COUNT) {
        HeldKeys<N, COUNT> held;
        held.load(page, token, step);
        held.multiply_all(sums, step, block);
    }
}
// Puts them at `scores`, `pitch` bytes from column to column.
DEVICE void store_scores(const float (&sums)[KEY_TILES][TILES][4], u8* scores, u32 pitch, u32 tiles) {
    u32 g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
        if (n >= tiles) continue;
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            Vec4f* to = reinterpret_cast<Vec4f*>(scores + (n * 8 + t * 2 + c) * pitch + g * KEY_TILES * 8);
#pragma unroll
            for (u32 i = 0; i < KEY_TILES; i += 2) to[i / 2] = {sums[i][n][c], sums[i][n][c + 2], sums[i + 1][n][c], sums[i + 1][n][c + 2]};
        }
    }
}

// Scores of a warp's places of a row that finds some of them by its path: whole runs of neighbouring keys are scored, each once, and each
// place takes its key's.
DEVICE void score_path(const AttendArgs& args, const Block& block) {
    u32 lane = lane_index(), keys[RUN / LANES];
    for (u32 i = 0; i < RUN / LANES; i++) {
        u32 index = group_warp() * RUN + i * LANES + lane, place = block.first + index;
        keys[i] = place >= block.seen.first && place < block.seen.end ? block.at[index] : NONE;
    }
    float* scores = block.run + group_warp() * (ROW_TILES * 8 * RUN);
    for (u32 from = 0;;) {
        u32 run = NONE;
        for (u32 i = 0; i < RUN / LANES; i++)
            if (keys[i] != NONE && keys[i] / RUN >= from) run = smaller(run, keys[i] / RUN);
        run = warp_least(run);
        if (run == NONE) return;
        float sums[KEY_TILES][TILES][4] = {};
        score_run(sums, keys_at(args, run * RUN), run * RUN % PAGE_TOKENS, block);
        store_scores(sums, reinterpret_cast<u8*>(scores), RUN * 4, ROW_TILES);
        sync_warp();
        for (u32 i = 0; i < RUN / LANES; i++)
            if (keys[i] != NONE && keys[i] / RUN == run)
                for (u32 c = 0; c < GROUP; c++) {
                    float* to = reinterpret_cast<float*>(block.weights + c * WEIGHT_PITCH);
                    to[group_warp() * RUN + i * LANES + lane] = scores[c * RUN + keys[i] % RUN];
                }
        sync_warp();
        from = run + 1;
    }
}

// Weights of a column in place of its scores, of which a lane has eight: `x`. A warp a column.
DEVICE Vec2f weigh(float (&x)[8], u8* column, Places seen, u32 first) {
    u32 lane = lane_index();
    constexpr float scale = score_scale(HEAD_DIM);
    float top = -1e30f, total = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 place = first + lane * 8 + i;
        x[i] = place >= seen.first && place < seen.end ? x[i] * scale : -2e30f;
        top = larger(top, x[i]);
    }
    top = warp_max(top);
    u32 high[4], low[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        float u = exp2_fast(x[2 * i] - top), w = exp2_fast(x[2 * i + 1] - top);
        total += u;
        total += w;
        u16 high_u = f32_to_f16(u), high_w = f32_to_f16(w);
        high[i] = low_halves(high_u, high_w);
        low[i] = low_halves(f32_to_f16(u - f16_to_f32(high_u)), f32_to_f16(w - f16_to_f32(high_w)));
    }
    total = warp_sum(total);
    // Weights lie where other lanes' scores were.
    sync_warp();
    reinterpret_cast<Vec4u*>(column)[lane] = {high[0], high[1], high[2], high[3]};
    reinterpret_cast<Vec4u*>(column + WEIGHT_LOW)[lane] = {low[0], low[1], low[2], low[3]};
    return {top, total};
}
// Of the scores that lie there.
DEVICE Vec2f weigh(u8* column, Places seen, u32 first) {
    const Vec4f* from = reinterpret_cast<const Vec4f*>(column) + lane_index() * 2;
    Vec4f a = from[0], b = from[1];
    float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    return weigh(x, column, seen, first);
}

// Neighbouring dims, as wide as can be: a sector that is stored in parts is stored several times.
template <u32 N> DEVICE void load_dims(float (&to)[N], const float* from) {
    if constexpr (N == 2) {
        Vec2f v = *reinterpret_cast<const Vec2f*>(from);
        to[0] = v.x, to[1] = v.y;
    } else {
#pragma unroll
        for (u32 i = 0; i < N; i += 4) {
            Vec4f v = reinterpret_cast<const Vec4f*>(from)[i / 4];
            to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
        }
    }
}
template <u32 N> DEVICE void store_dims(float* to, const float (&from)[N]) {
    if constexpr (N == 2) {
        *reinterpret_cast<Vec2f*>(to) = {from[0], from[1]};
    } else {
#pragma unroll
        for (u32 i = 0; i < N; i += 4) reinterpret_cast<Vec4f*>(to)[i / 4] = {from[i], from[i + 1], from[i + 2], from[i + 3]};
    }
}

DEVICE u64 result_at(const AttendArgs& args, const Block& block, u32 column) {
    u64 head = (u64)(block.lead - args.first_row + column / GROUP) * args.num_heads + block.kv_head * GROUP + column % GROUP;
    return head * args.num_splits + block.split;
}

DEVICE u64 answer_at(const AttendArgs& args, const Block& block, u32 column) {
    return (u64)(block.lead + column / GROUP) * args.num_heads + block.kv_head * GROUP + column % GROUP;
}

// Weighted values of a run of dims; a lane's begin at `dim`.
DEVICE void mix_run(float (&sums)[DIM_TILES][TILES][4], const AttendArgs& args, const Block& block, u32 dim) {
    u32 step = (block.seen.first - block.first) / STEP / DEPTH * DEPTH, end = block.seen.end - block.first;
#pragma unroll 1
    for (; step * STEP < end; step += DEPTH) {
        HeldValues<DIM_TILES, DEPTH> held;
        held.load(static_cast<const u16*>(args.v), dim, step, block);
        held.multiply_all(sums, dim, step, block);
    }
}
// And to where a column's answers or its parts of them go; a warp a run.
DEVICE void mix(const AttendArgs& args, const Block& block, u32 run) {
    constexpr u32 DIMS = 2 * DIM_TILES;
    // One tile of columns is waited for, and leaves registers for its gates.
    constexpr bool EARLY_GATES = TILES == 1;
    u32 g = lane_index() / 4, t = lane_index() % 4, dim = run * DIM_TILES * 16 + g * DIMS;
    float sums[DIM_TILES][TILES][4] = {};
    auto is_alone = [&](u32 column) { return block.rows_seen[column / GROUP].is_alone; };
    float gates[2][DIMS] = {};
    auto load_gates = [&](u32 n) {
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            u32 column = n * 8 + t * 2 + c;
            if (column < block.columns && is_alone(column) && args.gated)
                load_dims(gates[c], args.q + answer_at(args, block, column) * args.q_stride + HEAD_DIM + dim);
        }
    };
    if constexpr (EARLY_GATES) load_gates(0);
    mix_run(sums, args, block, dim);
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
        if constexpr (!EARLY_GATES) load_gates(n);
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            u32 column = n * 8 + t * 2 + c;
            if (column >= block.columns) continue;
            float sum[DIMS];
#pragma unroll
            for (u32 i = 0; i < DIM_TILES; i++) sum[2 * i] = sums[i][n][c], sum[2 * i + 1] = sums[i][n][c + 2];
            if (!is_alone(column)) {
                store_dims(args.partials + result_at(args, block, column) * HEAD_DIM + dim, sum);
                continue;
            }
            float share = reciprocal(*reinterpret_cast<const float*>(block.weights + column * WEIGHT_PITCH + WEIGHT_TOTAL));
#pragma unroll
            for (u32 i = 0; i < DIMS; i++) sum[i] = answer(sum[i], share, args.gated, gates[c][i]);
            store_dims(args.out + answer_at(args, block, column) * HEAD_DIM + dim, sum);
        }
    }
}

// Finds where the values of the split's places lie. Only tables are read: it may be done before the rows are there.
DEVICE void find_places(const AttendArgs& args, const Block& block) {
    Row lead = args.tables.rows[block.lead];
    Segment segment = args.tables.segments[lead.segment];
    for (u32 i = group_thread(); i < SPLIT; i += THREADS) {
        u32 place = block.first + i;
        // What nobody sees has no weight, but its values must be numbers.
        if (place < block.seen.first || place >= block.seen.end) place = block.seen.first;
        u32 slot = slot_of(args.tables, lead, segment, place);
        block.at[i] = (page_of(args.tables, segment, slot) * args.num_kv_heads + block.kv_head) * PAGE_TOKENS + slot % PAGE_TOKENS;
    }
}

// All that one block does for rows that share what they see, after `find_places`. `are_staged`: their queries are, as halves.
DEVICE void attend_rows(const AttendArgs& args, Block& block, bool by_path, bool are_staged) {
    block.columns = block.rows * GROUP;
    block.tiles = (block.columns + 7) / 8;
    // Scores may take the queries' memory, unless they are made run by run.
    block.weights = by_path ? block.q + ROW_TILES * 8 * Q_PITCH : block.q;
    block.run = reinterpret_cast<float*>(block.q + ROW_TILES * 8 * (Q_PITCH + WEIGHT_PITCH));

    if (!are_staged) {
        stage_queries(args, block);
        sync_group();
    }
    if (by_path) {
        score_path(args, block);
    } else {
        u32 first = block.first + group_warp() * RUN;
        float sums[KEY_TILES][TILES][4] = {};
        if (first < block.seen.end && first + RUN > block.seen.first) {
            // Of a place in the run that is seen.
            u32 at = block.at[larger(first, block.seen.first) - block.first];
            score_run(sums, keys_at(args, at), first % PAGE_TOKENS, block);
        }
        sync_group();
        store_scores(sums, block.weights + group_warp() * RUN * 4, WEIGHT_PITCH, block.tiles);
    }
    sync_group();
    for (u32 c = group_warp(); c < block.columns; c += WARPS) {
        u8* column = block.weights + c * WEIGHT_PITCH;
        Vec2f sums = weigh(column, block.rows_seen[c / GROUP].places, block.first);
        if (lane_index() > 0) continue;
        *reinterpret_cast<float*>(column + WEIGHT_TOTAL) = sums.y;
        if (!block.rows_seen[c / GROUP].is_alone) args.sums[result_at(args, block, c)] = sums;
    }
    sync_group();
    for (u32 run = group_warp(); run < DIM_RUNS; run += WARPS) mix(args, block, run);
}
