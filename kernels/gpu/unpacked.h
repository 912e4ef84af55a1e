// A tile of 256 inputs that is unpacked before the row is there which it is multiplied with: who waits for that then has half of the operations left.
// They are those of multiply_by256, one by one. For one row.
#pragma once
#include "products.h"

struct Unpacked {
    // Fragments A of the units' halves.
    u32 a[4][2][4];
    // As Scales has them: scales of rows g and g + 8, and mins.
    static constexpr u32 WORDS = (TYPES >> Q2_K & 1) != 0 ? 12 : 8;
    u32 words[WORDS];
    float d[2], m[2];
};
// Words of a row's scales.
template <u32 T> constexpr u32 scale_words() { return Scales<T>::BY_16 ? 4 : 2; }

template <u32 T> DEVICE void unpack(const u8* tile, Unpacked& to) {
    constexpr u32 EACH = scale_words<T>();
    static_assert(2 * EACH + (has_min(T) ? 4 : 0) <= Unpacked::WORDS, "room");
    Scales<T> scales(tile);
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) to.words[h * EACH + i] = scales.scales[h][i];
        to.d[h] = scales.d[h];
        to.m[h] = scales.m[h];
    }
    if constexpr (has_min(T)) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) to.words[2 * EACH + i] = scales.mins[i];
    }
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        Part<T> quants(tile, part);
#pragma unroll
        for (u32 u = 0; u < 2; u++) quants.fragments(u, to.a[2 * part + u]);
    }
}

template <u32 T> DEVICE void multiply_unpacked(const Unpacked& tile, const Columns& x, Sums& acc) {
    static_assert(KEPT == 1 && COLUMN_TILES == 1, "one row");
    constexpr u32 EACH = scale_words<T>();
    // Of the tile's group `j` of 16 or 32 inputs.
    auto scale = [&](u32 h, u32 j) {
        u32 word = tile.words[h * EACH + j / 4];
        return has_min(T) ? (i32)byte_of(word, j % 4) : signed_byte_of(word, j % 4);
    };
    i32 totals[2] = {};
#pragma unroll
    for (u32 unit = 0; unit < 4; unit++) {
        Vec4u b = x.unit(0, UNIT_BYTES * unit);
        u32 b0[2] = {b.x, b.z}, b1[2] = {b.y, b.w};
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
            const u32(&a)[4] = tile.a[unit][s];
            if constexpr (Scales<T>::BY_16) {
                i32 even[4] = {}, odd[4] = {};
                mma_s8_k16(even, a[0], a[1], b0[s]);
                mma_s8_k16(odd, a[2], a[3], b1[s]);
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    totals[h] += even[2 * h] * scale(h, 4 * unit + 2 * s);
                    totals[h] += odd[2 * h] * scale(h, 4 * unit + 2 * s + 1);
                }
            } else {
                i32 c[4] = {};
                mma_s8(c, a, b0[s], b1[s]);
#pragma unroll
                for (u32 h = 0; h < 2; h++) totals[h] += c[2 * h] * scale(h, 2 * unit + s);
            }
        }
    }
    float by = x.scales(0).x, mins[4] = {};
    if constexpr (has_min(T)) {
        Vec2u sums = x.sums(0);
        u32 a[4] = {tile.words[2 * EACH], tile.words[2 * EACH + 1], tile.words[2 * EACH + 2], tile.words[2 * EACH + 3]};
        mma_f16(mins, a, sums.x, sums.y);
    }
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        float total = tile.d[h] * (float)totals[h];
        if constexpr (has_min(T)) total = fused_multiply_add(-tile.m[h], mins[2 * h], total);
        acc[0][2 * h] = fused_multiply_add(by, total, acc[0][2 * h]);
    }
}
