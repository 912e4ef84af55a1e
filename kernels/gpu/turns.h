// Rotation of heads.
#pragma once
#include "arch.h"

constexpr float TWO_PI_OVER_2_64 = 3.4061215800304556e-19f;

struct SinCos {
    float sin, cos;
};
// Of `turns` / 2^64 of a turn. Series around the nearest quarter turn, where they are good to 6e-8.
DEVICE SinCos sin_cos(u64 turns) {
    u32 quarter = (u32)((turns + (1ull << 61)) >> 62);
    float x = (float)(i64)(turns - ((u64)quarter << 62)) * TWO_PI_OVER_2_64;
    float y = x * x;
    float s = fused_multiply_add(y, 2.7557319e-6f, -1.9841270e-4f);
    s = fused_multiply_add(y, s, 8.3333333e-3f);
    s = fused_multiply_add(y, s, -1.6666667e-1f);
    s = fused_multiply_add(y * x, s, x);
    float c = fused_multiply_add(y, -2.7557319e-7f, 2.4801587e-5f);
    c = fused_multiply_add(y, c, -1.3888889e-3f);
    c = fused_multiply_add(y, c, 4.1666667e-2f);
    c = fused_multiply_add(y, c, -0.5f);
    c = fused_multiply_add(y, c, 1.0f);
    float sin = quarter & 1 ? c : s, cos = quarter & 1 ? s : c;
    return {quarter & 2 ? -sin : sin, (quarter + 1) & 2 ? -cos : cos};
}

// How queries or keys of a layer become what attends.
struct HeadArgs {
    // [D]; null: no norm.
    const float* gamma;
    // [pairs]: turns per position in units of 2^-64.
    const u64* turns;
    float eps;
    u32 pairs;
    // 1: pairs are neighbours; 0: they lie `pairs` apart.
    u32 adjacent;
};

// Norms and rotates a head of DIM values, from global memory to shared memory. A warp's work.
template <u32 DIM> DEVICE void prepare_head(float* to, const float* from, const HeadArgs& args, u64 position) {
    constexpr u32 DIMS = (DIM + LANES - 1) / LANES;
    u32 lane = lane_index();
    float values[DIMS], factors[DIMS], square = 0;
    // All at once: the compiler would have each wait for what is written before it.
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) {
        u32 d = lane + i * LANES;
        factors[i] = args.gamma && d < DIM ? args.gamma[d] : 1.0f;
        values[i] = d < DIM ? from[d] : 0.0f;
        square = fused_multiply_add(values[i], values[i], square);
    }
    square = warp_sum(square);
    float inverse = args.gamma ? inverse_root(square * (1.0f / DIM) + args.eps) : 1.0f;
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) {
        u32 d = lane + i * LANES;
        if (d < DIM) to[d] = values[i] * inverse * factors[i];
    }
    sync_warp();
    for (u32 i = lane; i < args.pairs; i += LANES) {
        SinCos turn = sin_cos(position * args.turns[i]);
        u32 a = args.adjacent ? 2 * i : i, b = args.adjacent ? 2 * i + 1 : i + args.pairs;
        float u = to[a], w = to[b];
        to[a] = u * turn.cos - w * turn.sin;
        to[b] = w * turn.cos + u * turn.sin;
    }
    sync_warp();
}
