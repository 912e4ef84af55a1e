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

// What makes a head of DIM values ready and is there before it is: a lane's factors of its dims, and the turn of its first pair.
template <u32 DIM> struct HeadTurns {
    static constexpr u32 DIMS = (DIM + LANES - 1) / LANES;
    u64 position, each;
    float factors[DIMS];
    SinCos first;

    DEVICE_MEMBER HeadTurns(const HeadArgs& args, u64 position) : position(position) {
        u32 lane = lane_index();
#pragma unroll
        for (u32 i = 0; i < DIMS; i++) factors[i] = args.gamma && lane + i * LANES < DIM ? args.gamma[lane + i * LANES] : 1.0f;
        each = lane < args.pairs ? args.turns[lane] : 0;
    }
    // Once what was loaded is there; before `make_ready`.
    DEVICE_MEMBER void turn() { first = sin_cos(position * each); }
    // Norms and rotates a head, of which a lane has dims `lane`, `lane + 32` and so on, to shared memory. A warp's work.
    DEVICE_MEMBER void make_ready(const HeadArgs& args, const float (&values)[DIMS], float* to) const {
        u32 lane = lane_index();
        float square = 0;
#pragma unroll
        for (u32 i = 0; i < DIMS; i++) square = fused_multiply_add(values[i], values[i], square);
        square = warp_sum(square);
        float inverse = args.gamma ? inverse_root(square * (1.0f / DIM) + args.eps) : 1.0f;
#pragma unroll
        for (u32 i = 0; i < DIMS; i++)
            if (lane + i * LANES < DIM) to[lane + i * LANES] = values[i] * inverse * factors[i];
        sync_warp();
#pragma unroll 1
        for (u32 i = lane; i < args.pairs; i += LANES) {
            SinCos turn = i == lane ? first : sin_cos(position * args.turns[i]);
            u32 a = args.adjacent ? 2 * i : i, b = args.adjacent ? 2 * i + 1 : i + args.pairs;
            float u = to[a], w = to[b];
            to[a] = u * turn.cos - w * turn.sin;
            to[b] = w * turn.cos + u * turn.sin;
        }
        sync_warp();
    }
};
// A head in global or shared memory; `to` is shared memory, and may be the same.
template <u32 DIM> DEVICE void prepare_head(float* to, const float* from, const HeadArgs& args, u64 position) {
    constexpr u32 DIMS = HeadTurns<DIM>::DIMS;
    HeadTurns<DIM> turns(args, position);
    float values[DIMS];
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) values[i] = lane_index() + i * LANES < DIM ? from[lane_index() + i * LANES] : 0.0f;
    turns.turn();
    turns.make_ready(args, values, to);
}
