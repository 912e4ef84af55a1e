// Queries and keys made ready, keys and values stored and moved.
//
// HEAD_DIM: D. KV_F16: keys and values are kept in f16.
#include "attention.h"
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
    // [page, Hkv, D, PAGE_TOKENS] and [page, Hkv, PAGE_TOKENS, D]
    Kept* cache_k;
    Kept* cache_v;
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
    u64 base = 0;
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
        if (is_key) base = ((u64)page_of(args.tables, segment, row.slot) * args.num_kv_heads + kv_head) * PAGE_TOKENS * HEAD_DIM;
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
    for (u32 i = 0; i < DIMS; i++) {
        u32 d = lane + i * LANES;
        if (d >= HEAD_DIM) continue;
        if (is_key) {
            args.cache_k[base + d * PAGE_TOKENS + token] = to_kept(x[d]);
            args.cache_v[base + token * HEAD_DIM + d] = to_kept(kept[i]);
        } else {
            query[d] = x[d];
        }
    }
}

// Rows and layers that one launch moves, and rows that a thread reads before it writes any.
constexpr u32 MOVES = 64, MOST_LAYERS = 64, HELD = 8;

struct MovedLayer {
    Kept* k;
    Kept* v;
    u32 num_kv_heads;
};
struct MoveArgs {
    MovedLayer layers[MOST_LAYERS];
    u32 count;
    // page * PAGE_TOKENS + token. Both ascend in slots and no source lies before its target, so what is written is
    // needed by no later move.
    u32 from[MOVES], to[MOVES];
};
// Grid: heads, keys (y = 0) and values (y = 1), layers. A thread walks all moves for its own dims.
KERNEL(move_rows, MoveArgs, 128) {
    MovedLayer layer = args.layers[block_z()];
    if (block_x() >= layer.num_kv_heads) return;
    bool is_key = block_y() == 0;
    Kept* kept = is_key ? layer.k : layer.v;
    u64 page_len = (u64)layer.num_kv_heads * PAGE_TOKENS * HEAD_DIM;
    u64 head = (u64)block_x() * PAGE_TOKENS * HEAD_DIM;
    u32 token_stride = is_key ? 1 : HEAD_DIM, dim_stride = is_key ? PAGE_TOKENS : 1;
    for (u32 d = thread_index(); d < HEAD_DIM; d += block_threads())
        for (u32 first = 0; first < args.count; first += HELD) {
            Kept held[HELD];
#pragma unroll
            for (u32 i = 0; i < HELD; i++)
                if (first + i < args.count) {
                    u32 at = args.from[first + i];
                    held[i] = kept[at / PAGE_TOKENS * page_len + head + at % PAGE_TOKENS * token_stride + d * dim_stride];
                }
#pragma unroll
            for (u32 i = 0; i < HELD; i++)
                if (first + i < args.count) {
                    u32 at = args.to[first + i];
                    kept[at / PAGE_TOKENS * page_len + head + at % PAGE_TOKENS * token_stride + d * dim_stride] = held[i];
                }
        }
}
