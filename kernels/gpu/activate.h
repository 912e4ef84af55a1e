// From a row's values to the forms of activations.h: the first part of an RMS norm (row_norm.h) where there is one, then int8 = round(x 127 / amax) for each
// 256 or 32 inputs, ties to even. Whoever computes a row has the same bits.
#pragma once
#include "activations.h"
#include "row_norm.h"

// Inputs of a lane.
constexpr u32 OWN = 8;

// A row's values, or factors for them.
struct RowOf {
    const float* at;
    u32 cols;
    // Whether it is whole 16 bytes from 16 bytes to 16 bytes.
    bool is_aligned;
};

// Inputs `at..at + 8` of a row, zeros behind its end.
DEVICE void load_own(const RowOf& row, u32 at, float (&v)[OWN]) {
    if (row.is_aligned) {
        for (u32 i = 0; i < OWN; i += 4) {
            Vec4f four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (at + i < row.cols) four = *reinterpret_cast<const Vec4f*>(row.at + at + i);
            v[i] = four.x;
            v[i + 1] = four.y;
            v[i + 2] = four.z;
            v[i + 3] = four.w;
        }
    } else {
        for (u32 i = 0; i < OWN; i++) v[i] = at + i < row.cols ? row.at[at + i] : 0.0f;
    }
}

// A lane's inputs of the 256 from `256 block` on.
DEVICE void load_block(const RowOf& x, u32 block, float (&v)[OWN]) { load_own(x, 256 * block + OWN * lane_index(), v); }

// The squares of a warp's 256 inputs from `256 block` on, added up: a lane's, and then all of them.
DEVICE float squares_of(const float (&v)[OWN]) {
    float sum = 0.0f;
    for (u32 j = 0; j < OWN; j++) sum = fused_multiply_add(v[j], v[j], sum);
    return sum;
}
DEVICE void put_squares(RowNorm& norm, u32 block, float of_lane) {
    float sum = warp_sum(of_lane);
    if (lane_index() == 0) norm.squares[block] = sum;
}
DEVICE void put_squares(RowNorm& norm, u32 block, const float (&v)[OWN]) { put_squares(norm, block, squares_of(v)); }
DEVICE void scale(float (&v)[OWN], const float (&gamma)[OWN]) {
    for (u32 j = 0; j < OWN; j++) v[j] = multiply(v[j], gamma[j]);
}

// The largest of the lanes whose index agrees but for the bits below `width`.
DEVICE float largest(float x, u32 width) {
#if ON_CUDA && __CUDA_ARCH__ >= 800
    // Of numbers that are not negative their bits are in the same order.
    if (width == LANES) {
        u32 bits;
        asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(bits) : "r"(f32_to_bits(x)));
        return bits_to_f32(bits);
    }
#endif
    for (u32 mask = width / 2; mask > 0; mask /= 2) x = larger_magnitude(x, shuffle_xor(x, mask));
    return x;
}

// Eight int8 in two words, and their sum.
DEVICE i32 quantise(const float (&v)[OWN], float amax, u32 (&words)[2]) {
    // On top of 1.5 x 2^23, a float's lowest bits are the integer, rounded, in two's complement.
    constexpr float ROUNDS = 12582912.0f;
    float inverse = amax > 0.0f ? divide(127.0f, amax) : 0.0f;
    for (u32 i = 0; i < 2; i++) {
        u32 q[4];
        for (u32 j = 0; j < 4; j++) q[j] = f32_to_bits(fused_multiply_add(v[4 * i + j], inverse, ROUNDS));
        words[i] = low_bytes(q[0], q[1], q[2], q[3]);
    }
    return dot4(words[0], 0x01010101u, dot4(words[1], 0x01010101u, 0));
}

// Quants of inputs 8 lane.. of a warp's 256, as two words of unit `lane / 8`.
DEVICE void put_quants(u8* unit, u32 column, const u32 (&words)[2]) {
    u32 place = lane_index() % 8, t = place % 2 * 2;
    u8* to = unit + 16 * (4 * column + t) + 8 * (place / 4) + 4 * (place % 4 / 2);
    *reinterpret_cast<u32*>(to) = words[0];
    *reinterpret_cast<u32*>(to + 16) = words[1];
}

// The same of a warp's 256, and its lane's sum of 16, in core matrices.
DEVICE void put_in_cores(u8* at, u32 column, const u32 (&words)[2], i32 sum) {
    u32 lane = lane_index(), place = lane / 2;
    *reinterpret_cast<Vec2u*>(at + 128 * place + 16 * column + 8 * (lane % 2)) = Vec2u{words[0], words[1]};
    u8* sums = at + SUMS_256 + 128 * (place % 4 / 2) + 16 * column + 4 * (place / 4) + 2 * (place % 2);
    if (lane % 2 == 0) *reinterpret_cast<u16*>(sums) = f32_to_f16((float)sum);
}

// How the blocks of a call's activations stand.
struct Layout {
    // From a block to that of the next inputs, in blocks; more than 1: there are so many column tiles, whose blocks for the same inputs
    // come one after another.
    u32 apart;
    // Of floats.
    u32 terms;
    u32 in_cores;
};

// The forms that are asked for of a warp's 256 inputs from `256 block` on. `to`: where the row's column tile begins.
DEVICE void put_forms(const Activations& to, u32 column, u32 cols, u32 block, const Layout& layout, float (&v)[OWN]) {
    u32 lane = lane_index();
    float magnitude = 0.0f;
    for (u32 i = 0; i < OWN; i++) magnitude = larger_magnitude(magnitude, v[i]);
    u32 words[2];
    // Only rows of whole quant blocks have a form in int8, so warps are whole in the one, and groups of four lanes in the other.
    if (to.by256) {
        u8* at = to.by256 + (u64)block * layout.apart * BYTES_256;
        float amax = largest(magnitude, 32);
        i32 sum = quantise(v, amax, words);
        sum += shuffle_xor(sum, 1);
        if (layout.in_cores) {
            put_in_cores(at, column, words, sum);
        } else {
            put_quants(at + UNIT_BYTES * (lane / 8), column, words);
            if (lane % 2 == 0) *reinterpret_cast<u16*>(at + SUMS_256 + 32 * column + lane) = f32_to_f16((float)sum);
        }
        if (lane == 0) reinterpret_cast<float*>(at + SCALES_256)[column] = amax * (1.0f / 127.0f);
    }
    u32 units = (cols + 63) / 64, unit = 4 * block + lane / 8;
    if (to.by32) {
        u8* at = to.by32 + (u64)unit * layout.apart * BYTES_32;
        float amax = largest(magnitude, 4);
        i32 sum = quantise(v, amax, words);
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (unit < units) {
            put_quants(at, column, words);
            if (lane % 4 == 0) {
                u32 group = lane % 8 / 4 * KEPT + column;
                float scale = amax * (1.0f / 127.0f);
                reinterpret_cast<float*>(at + SCALES_32)[group] = scale;
                reinterpret_cast<float*>(at + TOTALS_32)[group] = scale * (float)sum;
            }
        }
    }
    if (to.floats && unit < units) {
        u32 place = lane % 8, step = place / 2, half = place % 2;
        u8* at = to.floats + (u64)unit * layout.apart * layout.terms * TERM_BYTES;
        for (u32 term = 0; term < layout.terms; term++, at += TERM_BYTES) {
            u32 terms[4];
            for (u32 t = 0; t < 4; t++) {
                terms[t] = 0;
                for (u32 i = 0; i < 2; i++) {
                    // To the nearest, so that little is left, but for what would overflow or is no number; the third one is what is left.
                    u32 bits = f32_to_bits(v[2 * t + i]);
                    if ((bits & 0x7fffffffu) < 0x7f7f8000u) bits += 0x8000u;
                    bits &= 0xffff0000u;
                    v[2 * t + i] -= bits_to_f32(bits);
                    terms[t] |= bits >> (16 * (1 - i));
                }
            }
            if (layout.in_cores) {
                *reinterpret_cast<Vec4u*>(at + 128 * place + 16 * column) = Vec4u{terms[0], terms[1], terms[2], terms[3]};
            } else {
                u32* words = reinterpret_cast<u32*>(at + UNIT_BYTES * (step / 2) + 64 * column + 8 * (step % 2) + 4 * half);
                for (u32 t = 0; t < 4; t++) words[4 * t] = terms[t];
            }
        }
    }
}
