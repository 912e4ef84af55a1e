// The rotation of a head; see src/kv/rotation.rs. A warp has a head, a lane its dims `lane`, `lane + 32` and so on.
//
// HEAD_DIM: D, a multiple of 32 where anything is rotated.
#pragma once
#include "arch.h"

// Dims that are rotated together, and a lane's registers of them.
constexpr u32 LOWEST_BIT = HEAD_DIM & (~HEAD_DIM + 1u), ROTATED = LOWEST_BIT < 128 ? LOWEST_BIT : 128;
constexpr u32 ROTATED_WORDS = ROTATED < LANES ? 1 : ROTATED / LANES;
constexpr float ROTATED_SCALE = ROTATED == 128 ? 0.08838834764831845f : ROTATED == 64 ? 0.125f : 0.17677669529663687f;
CONSTANT_TABLE u32 SIGNS[2][4] = {{0x9e3715b7, 0x4ac1e2d9, 0xb5f0673c, 0x27d89a4e}, {0xc3a5518e, 0x6d1bf702, 0x1f968cd4, 0xe84d3a6b}};

template <u32 COUNT> DEVICE void flip(float (&x)[COUNT], u32 which) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++)
        if (SIGNS[which][i % ROTATED_WORDS] >> lane_index() & 1) x[i] = -x[i];
}
// `is_back`: the other way round.
template <u32 COUNT> DEVICE void rotate(float (&x)[COUNT], bool is_back) {
    flip(x, is_back);
#pragma unroll
    for (u32 mask = 1; mask < LANES; mask *= 2)
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            float other = shuffle_xor(x[i], mask);
            x[i] = lane_index() & mask ? other - x[i] : x[i] + other;
        }
#pragma unroll
    for (u32 stride = 1; stride < ROTATED_WORDS; stride *= 2)
#pragma unroll
        for (u32 i = 0; i < COUNT; i++)
            if ((i & stride) == 0 && i + stride < COUNT) {
                float a = x[i], b = x[i + stride];
                x[i] = a + b, x[i + stride] = a - b;
            }
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) x[i] *= ROTATED_SCALE;
    flip(x, !is_back);
}
