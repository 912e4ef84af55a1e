// Outputs of gate and up whose sums of splits meet where they are read: it takes no time there, and some microseconds where every
// split has to hear of the others.
#pragma once
#include "arch.h"

struct Rest {
    // [2 matrices, splits, N, rows]; null: there are none.
    float* sums;
    // Of a norm, [N]; null: there is none.
    const float* factors;
    // The first of them among all outputs, and how many there are.
    u32 first, rows;
    // N.
    u32 num_rows;

    // Of a matrix's split, `number`: matrix * splits + split.
    DEVICE_MEMBER float* of_part(u32 number) const { return sums + (u64)number * num_rows * rows; }
};

// silu(gate) * up of a row's outputs `at..at + COUNT` with SPLITS splits: as wide.h has them, to the bit.
template <u32 SPLITS, u32 COUNT> DEVICE void meet(const Rest& rest, u32 row, u32 at, float (&v)[COUNT]) {
    float factor = rest.factors ? rest.factors[row] : 1.0f, both[2][COUNT];
#pragma unroll
    for (u32 m = 0; m < 2; m++) {
        float sums[SPLITS][COUNT];
#pragma unroll
        for (u32 s = 0; s < SPLITS; s++) {
            const Vec4f* from = reinterpret_cast<const Vec4f*>(rest.of_part(m * SPLITS + s) + (u64)row * rest.rows + at - rest.first);
#pragma unroll
            for (u32 i = 0; i < COUNT; i += 4) {
                Vec4f four = from[i / 4];
                sums[s][i] = four.x, sums[s][i + 1] = four.y, sums[s][i + 2] = four.z, sums[s][i + 3] = four.w;
            }
        }
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
#pragma unroll
            for (u32 apart = 1; apart < SPLITS; apart *= 2)
#pragma unroll
                for (u32 s = 0; s < SPLITS; s += 2 * apart) sums[s][i] += sums[s + apart][i];
            both[m][i] = multiply(factor, sums[0][i]);
        }
    }
    for (u32 i = 0; i < COUNT; i++) v[i] = silu(both[0][i]) * both[1][i];
}
