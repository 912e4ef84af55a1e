// Queries and keys made ready, keys and values stored and moved.
//
// HEAD_DIM: D. K_TYPE, V_TYPE: see kept.h.
#include "quantise.h"
#include "turns.h"

constexpr u32 WARPS = 4;

struct PrepareArgs {
    // [N, H, q_stride], changed in place.
    float* q;
    // [N, Hkv, D]
    const float* k;
    const float* v;
    // [D] each; null: no norm.
    const float* q_gamma;
    const float* k_gamma;
    // [pairs]: turns per position in units of 2^-64, so that products wrap at whole turns.
    const u64* turns;
    // Pages of heads.
    KeyUnit* cache_k;
    ValueUnit* cache_v;
    Tables tables;
    float eps;
    u32 num_heads, num_kv_heads, q_stride, pairs;
    // 1: pairs are neighbours; 0: they lie `pairs` apart.
    u32 adjacent;
};

// A warp a head of a row: query heads first, then key heads, with the values that belong to them. A lane's dims are `lane`,
// `lane + 32` and so on, its pairs likewise.
constexpr u32 DIMS = (HEAD_DIM + LANES - 1) / LANES, PAIRS = (HEAD_DIM / 2 + LANES - 1) / LANES;
KERNEL_AHEAD(prepare, PrepareArgs, 128, 1) {
    SHARED float heads[WARPS][HEAD_DIM];
    let_next_start();
    u32 lane = lane_index(), head = block_y() * WARPS + warp_index();
    Row row = args.tables.rows[block_x()];
    bool is_used = row.segment != NONE && head < args.num_heads + args.num_kv_heads;
    bool is_key = head >= args.num_heads;
    u32 kv_head = head - args.num_heads, token = row.slot % PAGE_TOKENS;
    const float* gamma = is_key ? args.k_gamma : args.q_gamma;
    float factors[DIMS];
    SinCos turns[PAIRS];
    u64 page = 0;
    // All that no kernel of the step writes.
    if (is_used) {
        Segment segment = args.tables.segments[row.segment];
        u64 position = (u64)segment.first_position + row.place;
#pragma unroll
        for (u32 i = 0; i < DIMS; i++) {
            u32 d = lane + i * LANES;
            factors[i] = gamma && d < HEAD_DIM ? gamma[d] : 1.0f;
        }
#pragma unroll
        for (u32 i = 0; i < PAIRS; i++)
            if (lane + i * LANES < args.pairs) turns[i] = sin_cos(position * args.turns[lane + i * LANES]);
        if (is_key) page = (u64)page_of(args.tables, segment, row.slot) * args.num_kv_heads + kv_head;
    }
    wait_for_inputs();
    if (!is_used) return;

    u64 key_at = ((u64)block_x() * args.num_kv_heads + kv_head) * HEAD_DIM;
    float* query = args.q + ((u64)block_x() * args.num_heads + head) * args.q_stride;
    const float* from = is_key ? args.k + key_at : query;
    float* x = heads[warp_index()];
    float values[DIMS], kept[DIMS], square = 0;
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) {
        u32 d = lane + i * LANES;
        values[i] = d < HEAD_DIM ? from[d] : 0.0f;
        kept[i] = is_key && d < HEAD_DIM ? args.v[key_at + d] : 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) square = fused_multiply_add(values[i], values[i], square);
    square = warp_sum(square);
    float inverse = gamma ? divide(1.0f, square_root(square * (1.0f / HEAD_DIM) + args.eps)) : 1.0f;
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) {
        u32 d = lane + i * LANES;
        if (d < HEAD_DIM) x[d] = values[i] * inverse * factors[i];
    }
    sync_warp();
#pragma unroll
    for (u32 j = 0; j < PAIRS; j++) {
        u32 i = lane + j * LANES;
        if (i >= args.pairs) continue;
        u32 a = args.adjacent ? 2 * i : i, b = args.adjacent ? 2 * i + 1 : i + args.pairs;
        float u = x[a], w = x[b];
        x[a] = u * turns[j].cos - w * turns[j].sin;
        x[b] = w * turns[j].cos + u * turns[j].sin;
    }
    sync_warp();
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) values[i] = lane + i * LANES < HEAD_DIM ? x[lane + i * LANES] : 0.0f;
    if constexpr (ROTATES_KEYS) rotate(values, false);
    if (is_key) {
        if constexpr (ROTATES_VALUES) rotate(kept, false);
        store_row<K_TYPE, true>(args.cache_k + page * KeyFormat::PAGE_UNITS, token, values);
        store_row<V_TYPE, false>(args.cache_v + page * ValueFormat::PAGE_UNITS, token, kept);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < DIMS; i++)
        if (lane + i * LANES < HEAD_DIM) query[lane + i * LANES] = values[i];
}

struct AnswerArgs {
    // [N, H, D], changed in place.
    float* out;
    // [N, H, q_stride], with gates after each head's query where `q_stride` is more than D.
    const float* q;
    Tables tables;
    u32 num_heads, q_stride;
};
// Answers of rotated values: rotated back, and multiplied by their gates. A warp a head of a row.
KERNEL(rotate_answers, AnswerArgs, 128) {
    u32 lane = lane_index(), head = block_y() * WARPS + warp_index();
    if (head >= args.num_heads || args.tables.rows[block_x()].segment == NONE) return;
    u64 at = (u64)block_x() * args.num_heads + head;
    float* out = args.out + at * HEAD_DIM;
    float values[DIMS];
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) values[i] = lane + i * LANES < HEAD_DIM ? out[lane + i * LANES] : 0.0f;
    if constexpr (ROTATES_VALUES) rotate(values, true);
    const float* gates = args.q + at * args.q_stride + HEAD_DIM;
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) {
        u32 d = lane + i * LANES;
        if (d < HEAD_DIM) out[d] = args.q_stride > HEAD_DIM ? values[i] * sigmoid(gates[d]) : values[i];
    }
}

// Rows and layers that one launch moves, and rows that a thread reads before it writes any.
constexpr u32 MOVES = 64, MOST_LAYERS = 64, HELD = 8;

struct MovedLayer {
    KeyUnit* k;
    ValueUnit* v;
    u32 num_kv_heads;
};
struct MoveArgs {
    MovedLayer layers[MOST_LAYERS];
    u32 count;
    // page * PAGE_TOKENS + token. Both ascend in slots and no source lies before its target, so what is written is
    // needed by no later move.
    u32 from[MOVES], to[MOVES];
};
// A thread walks all moves for its own units.
template <u32 TYPE, bool IS_KEY> DEVICE void move_units(const MoveArgs& args, typename UnitOf<TYPE>::Unit* kept, u32 num_kv_heads) {
    typedef Format<TYPE> Of;
    auto place = [&](u32 at, u32 unit) {
        u64 page = (u64)(at / PAGE_TOKENS) * num_kv_heads + block_x();
        return page * Of::PAGE_UNITS + place_of<TYPE, IS_KEY>(unit, at % PAGE_TOKENS);
    };
    for (u32 unit = thread_index(); unit < Of::UNITS; unit += block_threads())
        for (u32 first = 0; first < args.count; first += HELD) {
            typename UnitOf<TYPE>::Unit held[HELD];
#pragma unroll
            for (u32 i = 0; i < HELD; i++)
                if (first + i < args.count) held[i] = kept[place(args.from[first + i], unit)];
#pragma unroll
            for (u32 i = 0; i < HELD; i++)
                if (first + i < args.count) kept[place(args.to[first + i], unit)] = held[i];
        }
}
// Grid: heads, keys (y = 0) and values (y = 1), layers.
KERNEL(move_rows, MoveArgs, 128) {
    MovedLayer layer = args.layers[block_z()];
    if (block_x() >= layer.num_kv_heads) return;
    if (block_y() == 0) move_units<K_TYPE, true>(args, layer.k, layer.num_kv_heads);
    else move_units<V_TYPE, false>(args, layer.v, layer.num_kv_heads);
}
