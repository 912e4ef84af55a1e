// Queries and keys made ready, and keys and values stored. A warp has a head of a row, a lane its dims `lane`, `lane + 32` and so on, its
// pairs likewise.
//
// HEAD_DIM: D. K_TYPE, V_TYPE: see kept.h.
#pragma once
#include "quantise.h"
#include "tables.h"
#include "turns.h"

struct PrepareArgs {
    // [N, H, q_stride]
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

constexpr u32 HEAD_VALUES = (HEAD_DIM + LANES - 1) / LANES, HEAD_PAIRS = (HEAD_DIM / 2 + LANES - 1) / LANES;

// Of a row's query heads and then its key heads, with the values that belong to them, number `head`: all that no kernel of the step writes.
struct Head {
    u32 head, kv_head, token;
    bool is_key;
    float factors[HEAD_VALUES];
    // Per position in units of 2^-64, and then the row's.
    u64 turns_each[HEAD_PAIRS];
    SinCos turns[HEAD_PAIRS];
    // Where keys and values are kept.
    u64 page;

    // What no row changes of it.
    DEVICE_MEMBER Head(const PrepareArgs& args, u32 number) {
        u32 lane = lane_index();
        head = number;
        is_key = head >= args.num_heads;
        kv_head = head - args.num_heads;
        const float* gamma = is_key ? args.k_gamma : args.q_gamma;
#pragma unroll
        for (u32 i = 0; i < HEAD_VALUES; i++) {
            u32 d = lane + i * LANES;
            factors[i] = gamma && d < HEAD_DIM ? gamma[d] : 1.0f;
        }
#pragma unroll
        for (u32 i = 0; i < HEAD_PAIRS; i++)
            if (lane + i * LANES < args.pairs) turns_each[i] = args.turns[lane + i * LANES];
    }
    DEVICE_MEMBER void take(const PrepareArgs& args, const Row& row) {
        u32 lane = lane_index();
        token = row.slot % PAGE_TOKENS;
        page = 0;
        Segment segment = args.tables.segments[row.segment];
        u64 position = (u64)segment.first_position + row.place;
#pragma unroll
        for (u32 i = 0; i < HEAD_PAIRS; i++) {
            if (i * LANES >= args.pairs) break;
            if (lane + i * LANES < args.pairs) turns[i] = sin_cos(position * turns_each[i]);
        }
        if (is_key) page = (u64)page_of(args.tables, segment, row.slot) * args.num_kv_heads + kv_head;
    }

    // Of the key's head.
    DEVICE_MEMBER KeyUnit* key_page(const PrepareArgs& args) const { return args.cache_k + page * KeyFormat::PAGE_UNITS; }
    // A key and its values to where they are kept.
    DEVICE_MEMBER void store(const PrepareArgs& args, const float (&key)[HEAD_VALUES], const float (&value)[HEAD_VALUES]) const {
        store_row<K_TYPE, true>(key_page(args), token, key);
        store_values(args, value);
    }
    DEVICE_MEMBER void store_values(const PrepareArgs& args, const float (&value)[HEAD_VALUES]) const {
        store_row<V_TYPE, false>(args.cache_v + page * ValueFormat::PAGE_UNITS, token, value);
    }
    DEVICE_MEMBER float* query(const PrepareArgs& args, u64 row_index) const { return args.q + (row_index * args.num_heads + head) * args.q_stride; }
    // Normed and rotated, to `to` of a query, a key and its values to where they are kept; not a key if KEEPS_KEYS says so. `x`: room for D in
    // shared memory, where a key without codes is then; it may be `to`.
    template <bool KEEPS_KEYS = true> DEVICE_MEMBER void make_ready(const PrepareArgs& args, u64 row_index, float* x, float* to) const {
        u32 lane = lane_index();
        u64 key_at = (row_index * args.num_kv_heads + kv_head) * HEAD_DIM;
        const float* from = is_key ? args.k + key_at : query(args, row_index);
        bool is_normed = (is_key ? args.k_gamma : args.q_gamma) != nullptr;
        float values[HEAD_VALUES], kept[HEAD_VALUES], square = 0;
#pragma unroll
        for (u32 i = 0; i < HEAD_VALUES; i++) {
            u32 d = lane + i * LANES;
            values[i] = d < HEAD_DIM ? from[d] : 0.0f;
            kept[i] = is_key && d < HEAD_DIM ? args.v[key_at + d] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < HEAD_VALUES; i++) square = fused_multiply_add(values[i], values[i], square);
        square = warp_sum(square);
        float inverse = is_normed ? inverse_root(square * (1.0f / HEAD_DIM) + args.eps) : 1.0f;
#pragma unroll
        for (u32 i = 0; i < HEAD_VALUES; i++) {
            u32 d = lane + i * LANES;
            if (d < HEAD_DIM) x[d] = values[i] * inverse * factors[i];
        }
        sync_warp();
#pragma unroll
        for (u32 j = 0; j < HEAD_PAIRS; j++) {
            u32 i = lane + j * LANES;
            if (i >= args.pairs) continue;
            u32 a = args.adjacent ? 2 * i : i, b = args.adjacent ? 2 * i + 1 : i + args.pairs;
            float u = x[a], w = x[b];
            x[a] = u * turns[j].cos - w * turns[j].sin;
            x[b] = w * turns[j].cos + u * turns[j].sin;
        }
        sync_warp();
        if (!ROTATES_KEYS && !is_key && x == to) return;
#pragma unroll
        for (u32 i = 0; i < HEAD_VALUES; i++) values[i] = lane + i * LANES < HEAD_DIM ? x[lane + i * LANES] : 0.0f;
        if constexpr (ROTATES_KEYS) rotate(values, false);
        if (is_key) {
            if constexpr (ROTATES_VALUES) rotate(kept, false);
            if constexpr (KEEPS_KEYS) store(args, values, kept);
            else store_values(args, kept);
            return;
        }
#pragma unroll
        for (u32 i = 0; i < HEAD_VALUES; i++)
            if (lane + i * LANES < HEAD_DIM) to[lane + i * LANES] = values[i];
    }
};
