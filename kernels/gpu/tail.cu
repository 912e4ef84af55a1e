// How much the last rows of a prompt attend to each of its tokens.
//
// `tail_products`: a block prepares the queries of one key head and goes over keys, a warp a key. `tail_tops`: a block finds
// the largest product and the sum of exponentials of one query head of a row. `tail_weights`: a thread takes the largest
// weight of a token over heads.
//
// HEAD_DIM: D. GROUP: query heads of a key head.
#include "turns.h"

constexpr u32 THREADS = 256, WARPS = THREADS / LANES, DIMS = (HEAD_DIM + LANES - 1) / LANES;
// Keys of a block.
constexpr u32 KEYS = 128;

struct ProductsArgs {
    // [T, H, D] and [N, Hkv, D], as projected.
    const float* q;
    const float* k;
    // [T, H, S]
    float* products;
    HeadArgs of_queries, of_keys;
    u32 num_heads, num_kv_heads, num_tokens, num_queries;
    // Token of the first key, and keys.
    u32 first_key, num_keys;
};

// Grid: runs of keys, key heads.
KERNEL(tail_products, ProductsArgs, 256) {
    DYNAMIC_SHARED(memory);
    SHARED float keys[WARPS][HEAD_DIM];
    u32 lane = lane_index(), kv_head = block_y(), columns = args.num_queries * GROUP;
    // [T, GROUP, D]
    float* queries = reinterpret_cast<float*>(memory);
    float scale = divide(1.0f, square_root((float)HEAD_DIM));
    for (u32 c = warp_index(); c < columns; c += WARPS) {
        u32 row = c / GROUP, head = kv_head * GROUP + c % GROUP;
        const float* from = args.q + ((u64)row * args.num_heads + head) * HEAD_DIM;
        prepare_head<HEAD_DIM>(queries + c * HEAD_DIM, from, args.of_queries, args.num_tokens - args.num_queries + row);
    }
    sync_threads();
    u32 end = smaller((block_x() + 1) * KEYS, args.num_keys);
    for (u32 key = block_x() * KEYS + warp_index(); key < end; key += WARPS) {
        float* x = keys[warp_index()];
        u32 token = args.first_key + key;
        prepare_head<HEAD_DIM>(x, args.k + ((u64)key * args.num_kv_heads + kv_head) * HEAD_DIM, args.of_keys, token);
        float values[DIMS];
#pragma unroll
        for (u32 i = 0; i < DIMS; i++) values[i] = lane + i * LANES < HEAD_DIM ? x[lane + i * LANES] : 0.0f;
        sync_warp();
        for (u32 first = 0; first < columns; first += LANES) {
            float mine = 0;
            for (u32 c = first; c < smaller(first + LANES, columns); c++) {
                float sum = 0;
#pragma unroll
                for (u32 i = 0; i < DIMS; i++)
                    if (lane + i * LANES < HEAD_DIM) sum = fused_multiply_add(values[i], queries[c * HEAD_DIM + lane + i * LANES], sum);
                sum = warp_sum(sum);
                if (lane == c - first) mine = sum;
            }
            u32 c = first + lane;
            if (c >= columns) continue;
            u64 row = (u64)(c / GROUP) * args.num_heads + kv_head * GROUP + c % GROUP;
            args.products[row * args.num_tokens + token] = mine * scale;
        }
    }
}

struct WeightsArgs {
    // [T, H, S]
    const float* products;
    // [T, H]: largest product, and sum of exponentials.
    Vec2f* tops;
    // [T, S]
    float* out;
    u32 num_heads, num_tokens, num_queries;
};

// Grid: heads, queries.
KERNEL(tail_tops, WeightsArgs, 256) {
    SHARED float parts[WARPS];
    u32 head = block_y() * args.num_heads + block_x(), seen = args.num_tokens - args.num_queries + block_y() + 1;
    const float* row = args.products + (u64)head * args.num_tokens;
    float top = -1e30f, total = 0;
    for (u32 j = thread_index(); j < seen; j += THREADS) top = larger(top, row[j]);
    top = warp_max(top);
    if (lane_index() == 0) parts[warp_index()] = top;
    sync_threads();
    for (u32 w = 0; w < WARPS; w++) top = larger(top, parts[w]);
    sync_threads();
    for (u32 j = thread_index(); j < seen; j += THREADS) total += exponential(row[j] - top);
    total = warp_sum(total);
    if (lane_index() == 0) parts[warp_index()] = total;
    sync_threads();
    if (thread_index() != 0) return;
    total = 0;
    for (u32 w = 0; w < WARPS; w++) total += parts[w];
    args.tops[head] = {top, total};
}

// Grid: runs of tokens, queries.
KERNEL(tail_weights, WeightsArgs, 256) {
    u32 j = block_x() * THREADS + thread_index(), row = block_y();
    if (j > args.num_tokens - args.num_queries + row) return;
    float* out = args.out + (u64)row * args.num_tokens + j;
    float most = *out;
    for (u32 h = 0; h < args.num_heads; h++) {
        u32 head = row * args.num_heads + h;
        Vec2f top = args.tops[head];
        float product = args.products[(u64)head * args.num_tokens + j];
        most = larger(most, divide(exponential(product - top.x), top.y));
    }
    *out = most;
}
