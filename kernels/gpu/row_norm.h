// The RMS norm of a row, in two parts: values are multiplied with its weights before they are rounded, and what products make of the row with
// one factor, which its squares make. So neither rounding nor products wait for all of the row.
#pragma once
#include "arch.h"

// Of a row, in shared memory: sums of squares, one for each 256 inputs, and the factor. With a word more they are 1024 bytes, so that what a
// kernel has behind them begins where a line of 128 bytes does: copies to it take longer
// otherwise (docs/tuning.md, "Steps of trees").
constexpr u32 MOST_SQUARES = 254;
struct RowNorm {
    float squares[MOST_SQUARES], factor;
};

// When the squares are there.
DEVICE float factor_of(const RowNorm& norm, u32 cols, float eps) {
    constexpr u32 TOGETHER = 8;
    u32 count = (cols + 255) / 256;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (u32 first = 0; first < count; first += TOGETHER) {
        float some[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) some[i] = first + i < count ? norm.squares[first + i] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) sums[i % 4] += some[i];
    }
    return inverse_root(((sums[0] + sums[1]) + (sums[2] + sums[3])) * reciprocal((float)cols) + eps);
}
// By one warp.
DEVICE void put_factor(RowNorm& norm, u32 cols, float eps) {
    float factor = factor_of(norm, cols, eps);
    if (lane_index() == 0) norm.factor = factor;
}
