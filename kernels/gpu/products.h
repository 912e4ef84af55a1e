// Products of a tile of weights and column tiles by a warp, for every type. Needs COLUMN_TILES.
//
// Inputs are cut in 8 slices of whole 256, a matter of the matrix's shape alone; a slice is added up by ascending inputs and
// the slices as ((0+1)+(2+3))+((4+5)+(6+7)). So it changes no bit how slices are dealt to warps and blocks, and how many
// columns share a launch.
// Quants: integer sums are exact; per 256 (or 32) inputs there is one float multiply-add per output, two with mins.
#pragma once
#include "activations.h"
#include "mma.h"
#include "weights.h"

constexpr u32 SLICES = 8;
constexpr u32 MAX_JOBS = 8;

struct Job {
    const u8* weights[2];
    // [N, rows]
    float* out;
    u32 types[2];
    u32 rows;
    // Of the grid.
    u32 first_block;
};

typedef float Sums[COLUMN_TILES][4];

template <bool STAGED> DEVICE Vec4u read16(const u8* at) {
    if constexpr (STAGED) return *reinterpret_cast<const Vec4u*>(at);
    else return load_stream(at);
}
template <bool STAGED> DEVICE u32 read4(const u8* at) {
    if constexpr (STAGED) return *reinterpret_cast<const u32*>(at);
    else return load_word(at);
}

// What a lane reads of a tile of weights.
template <u32 T> struct Tile {
    static constexpr u32 UNITS = tile_cols(T) / 64;
    static constexpr u32 MAIN = is_float(T) ? bits_of(T) / 4 : bits_of(T) == 8 ? 2 : has_nibbles(T) ? UNITS : 1;
    Vec4u main[MAIN];
    Vec4u pairs[2];
    u32 bits[4];
    // Of rows g and g + 8.
    Vec4u subs[2];
    u32 d[2], m[2];

    // STAGED: `at` is in shared memory.
    template <bool STAGED = false> DEVICE_MEMBER void load(const u8* at) {
        u32 lane = lane_index(), g = lane / 4;
        if constexpr (is_float(T) || bits_of(T) == 8 || has_nibbles(T))
            for (u32 i = 0; i < MAIN; i++) main[i] = read16<STAGED>(at + 512 * i + 16 * lane);
        if constexpr (has_pairs(T))
            for (u32 i = 0; i < 2; i++) pairs[i] = read16<STAGED>(at + (has_nibbles(T) ? second_plane(T) : 0) + 512 * i + 16 * lane);
        if constexpr (has_bits(T)) {
            const u8* from = at + second_plane(T) + 4 * UNITS * lane;
            if constexpr (UNITS == 4) {
                Vec4u v = read16<STAGED>(from);
                bits[0] = v.x;
                bits[1] = v.y;
                bits[2] = v.z;
                bits[3] = v.w;
            } else {
                bits[0] = read4<STAGED>(from);
            }
        }
        for (u32 h = 0; h < 2; h++) {
            u32 row = g + 8 * h;
            const u8* sub = at + quant_bytes(T) + sub_bytes(T) * row;
            const u8* scale = at + scales_at(T) + scale_bytes(T) * row;
            if constexpr (sub_bytes(T) == 16) subs[h] = read16<STAGED>(sub);
            if constexpr (T == IQ4_XS) {
                subs[h].x = read4<STAGED>(sub);
                subs[h].y = read4<STAGED>(sub + 4);
            }
            if constexpr (scale_bytes(T) == 2) d[h] = *reinterpret_cast<const u16*>(scale);
            if constexpr (scale_bytes(T) >= 4) {
                // Scales of a unit's two groups, or scale and min.
                const u8* from = is_by256(T) ? scale : at + scales_at(T) + 4 * row;
                d[h] = read4<STAGED>(from);
                if constexpr (scale_bytes(T) == 8) m[h] = read4<STAGED>(from + 64);
            }
        }
    }

    // Words i of unit u and sub-unit s, for mma_s8.
    DEVICE_MEMBER void fragments(u32 u, u32 (&a)[2][4]) const {
        if constexpr (bits_of(T) == 8) {
            words(main[0], a[0]);
            words(main[1], a[1]);
        } else if constexpr (T == IQ4_NL || T == IQ4_XS) {
            u32 w[4];
            words(main[u], w);
            const u32 table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
            for (u32 i = 0; i < 4; i++) lookup16(w[i], table, a[0][i], a[1][i]);
        } else {
            constexpr u32 UP = shift_of(T), BITS = bits_of(T);
            u32 low[4], two[4];
            if constexpr (has_nibbles(T)) words(main[u], low);
            if constexpr (has_pairs(T)) words(pairs[u / 2], two);
            for (u32 s = 0; s < 2; s++)
                for (u32 i = 0; i < 4; i++) {
                    u32 value = 0;
                    if constexpr (has_nibbles(T)) value = moved(low[i], 4 * s, UP) & (0x0f0f0f0fu << UP);
                    if constexpr (BITS == 6) value |= moved(two[u % 2 * 2 + s], 2 * i, UP + 4) & (0x03030303u << (UP + 4));
                    if constexpr (BITS < 4) value = moved(two[u % 2 * 2 + s], 2 * i, UP) & (0x03030303u << UP);
                    if constexpr (has_bits(T)) value |= moved(bits[u], 4 * s + i, UP + BITS - 1) & (0x01010101u << (UP + BITS - 1));
                    a[s][i] = value;
                }
        }
    }

    // Bits that stand at `from` brought to `to`; what else moves is masked away.
    static DEVICE_MEMBER u32 moved(u32 word, u32 from, u32 to) { return from > to ? word >> (from - to) : word << (to - from); }
    static DEVICE_MEMBER void words(const Vec4u& v, u32 (&w)[4]) {
        w[0] = v.x;
        w[1] = v.y;
        w[2] = v.z;
        w[3] = v.w;
    }
};

// Integer scales of rows g and g + 8: a byte for 16 or 32 inputs, and mins as fragments for 16 sums of 16.
template <u32 T> struct SubScales {
    u32 scales[2][4];
    u32 mins[2];

    DEVICE_MEMBER explicit SubScales(const Tile<T>& tile) {
        u32 t = lane_index() % 4;
        for (u32 h = 0; h < 2; h++) {
            const Vec4u& sub = tile.subs[h];
            u32 w[4] = {sub.x, sub.y, sub.z, sub.w};
            if constexpr (T == Q4_K || T == Q5_K) {
                scales[h][0] = w[1] & 0x3f3f3f3fu;
                scales[h][1] = (w[3] & 0x0f0f0f0fu) | (w[1] >> 2 & 0x30303030u);
                u32 low = w[2] & 0x3f3f3f3fu, high = (w[3] >> 4 & 0x0f0f0f0fu) | (w[2] >> 2 & 0x30303030u);
                u32 two = (t < 2 ? low : high) >> (16 * (t % 2));
                // Each min counts for two sums.
                mins[h] = ((two & 0xff) | (two & 0xff00) << 8) * 0x101;
            } else {
                for (u32 i = 0; i < 4; i++) scales[h][i] = T == Q2_K ? w[i] & 0x0f0f0f0fu : w[i];
                u32 own = t < 2 ? (t == 0 ? w[0] : w[1]) : (t == 2 ? w[2] : w[3]);
                mins[h] = own >> 4 & 0x0f0f0f0fu;
            }
        }
    }

    DEVICE_MEMBER i32 scale(u32 h, u32 j) const {
        u32 byte = scales[h][j / 4] >> (8 * (j % 4));
        return has_min(T) ? (i32)(byte & 0xff) : (i32)(i8)byte;
    }
};

// Where the columns' blocks for one tile of weights begin, and from one column tile to the next.
struct Columns {
    const u8* at;
    u64 stride;
    // Columns of the first tile, where there is only one.
    u32 count;

    DEVICE_MEMBER const u8* tile(u32 ct) const { return at + ct * stride; }
    // A lane's 16 bytes of a unit; columns that are not there are not read.
    DEVICE_MEMBER Vec4u unit(u32 ct, u32 offset) const {
        Vec4u v = {0, 0, 0, 0};
        if (COLUMN_TILES > 1 || lane_index() / 4 < count) v = *reinterpret_cast<const Vec4u*>(tile(ct) + offset + 16 * lane_index());
        return v;
    }
    // Values of a lane's two columns.
    DEVICE_MEMBER Vec2f pair(u32 ct, u32 offset) const { return *reinterpret_cast<const Vec2f*>(tile(ct) + offset + 8 * (lane_index() % 4)); }
};

template <u32 T> DEVICE float power_of_two_down(float d) { return d * (1.0f / (float)(1u << shift_of(T))); }

// Column tiles that are multiplied side by side; more have not the registers.
#ifndef AT_ONCE
#define AT_ONCE 4
#endif

// d x scale x integer, and with mins m x ..., on top of `acc`; i = 0..3 as in c of mma.h.
template <u32 T>
DEVICE void multiply_some(const Tile<T>& tile, const SubScales<T>& subs, const float (&d)[2], const float (&m)[2], const Columns& x, u32 first, Sums& acc) {
    i32 totals[AT_ONCE][4] = {};
#pragma unroll
    for (u32 u = 0; u < 4; u++) {
        u32 a[2][4];
        tile.fragments(u, a);
#pragma unroll
        for (u32 ct = first; ct < smaller(first + AT_ONCE, (u32)COLUMN_TILES); ct++) {
            Vec4u b = x.unit(ct, UNIT_BYTES * u);
            u32 b0[2] = {b.x, b.z}, b1[2] = {b.y, b.w};
#pragma unroll
            for (u32 s = 0; s < 2; s++) {
                if constexpr (T == Q2_K || T == Q3_K || T == Q6_K) {
                    i32 even[4] = {}, odd[4] = {};
                    mma_s8_k16(even, a[s][0], a[s][1], b0[s]);
                    mma_s8_k16(odd, a[s][2], a[s][3], b1[s]);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        totals[ct - first][i] += even[i] * subs.scale(i / 2, 4 * u + 2 * s);
                        totals[ct - first][i] += odd[i] * subs.scale(i / 2, 4 * u + 2 * s + 1);
                    }
                } else {
                    i32 c[4] = {};
                    mma_s8(c, a[s], b0[s], b1[s]);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) totals[ct - first][i] += c[i] * subs.scale(i / 2, 2 * u + s);
                }
            }
        }
    }
#pragma unroll
    for (u32 ct = first; ct < smaller(first + AT_ONCE, (u32)COLUMN_TILES); ct++) {
        Vec2f two = x.pair(ct, SCALES_256);
        float scale[2] = {two.x, two.y};
#pragma unroll
        for (u32 i = 0; i < 4; i++) acc[ct][i] = fused_multiply_add(d[i / 2] * scale[i % 2], (float)totals[ct - first][i], acc[ct][i]);
        if constexpr (has_min(T)) {
            Vec2f words = {0.0f, 0.0f};
            if (COLUMN_TILES > 1 || lane_index() / 4 < x.count) words = *reinterpret_cast<const Vec2f*>(x.tile(ct) + SUMS_256 + 8 * lane_index());
            i32 low[4] = {}, high[4] = {};
            mma_s8_k16(low, subs.mins[0], subs.mins[1], f32_to_bits(words.x));
            mma_s8_k16(high, subs.mins[0], subs.mins[1], f32_to_bits(words.y));
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                acc[ct][i] = fused_multiply_add(-(m[i / 2] * scale[i % 2]), (float)(low[i] + 128 * high[i]), acc[ct][i]);
        }
    }
}

template <u32 T> DEVICE void multiply_by256(const Tile<T>& tile, const Columns& x, Sums& acc) {
    SubScales<T> subs(tile);
    float d[2], m[2];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        u32 word = T == Q4_K || T == Q5_K ? tile.subs[h].x : tile.d[h];
        d[h] = power_of_two_down<T>(f16_to_f32((u16)word));
        m[h] = has_min(T) ? f16_to_f32((u16)(word >> 16)) : 0.0f;
    }
#pragma unroll
    for (u32 first = 0; first < COLUMN_TILES; first += AT_ONCE) multiply_some<T>(tile, subs, d, m, x, first, acc);
}

template <u32 T> DEVICE void multiply_by32(const Tile<T>& tile, const Columns& x, Sums& acc) {
    u32 a[2][4];
    tile.fragments(0, a);
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++) {
        Vec4u b = x.unit(ct, 0);
        u32 b0[2] = {b.x, b.z}, b1[2] = {b.y, b.w};
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
            Vec2f two = x.pair(ct, SCALES_32 + 32 * s), sums = {0.0f, 0.0f};
            if constexpr (has_min(T)) sums = x.pair(ct, TOTALS_32 + 32 * s);
            float scale[2] = {two.x, two.y}, total[2] = {sums.x, sums.y};
            i32 c[4] = {};
            mma_s8(c, a[s], b0[s], b1[s]);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                float d = power_of_two_down<T>(f16_to_f32((u16)(tile.d[i / 2] >> (16 * s))));
                acc[ct][i] = fused_multiply_add(d * scale[i % 2], (float)c[i], acc[ct][i]);
                if constexpr (has_min(T))
                    acc[ct][i] = fused_multiply_add(f16_to_f32((u16)(tile.m[i / 2] >> (16 * s))), total[i % 2], acc[ct][i]);
            }
        }
    }
}

// Takes the bf16 at the top of two values away from them and packs them in a word.
DEVICE u32 take_term(float& low, float& high) {
    u32 a = f32_to_bits(low) & 0xffff0000u, b = f32_to_bits(high) & 0xffff0000u;
    low -= bits_to_f32(a);
    high -= bits_to_f32(b);
    return a >> 16 | b;
}

// Weights as one, two or three bf16 terms, exactly, times the three of the activations. Products of terms that lie below an
// f32's last bit together are left out. A unit is added up by itself, the smallest products first, and then to `acc`: the
// matrix unit truncates, and this way it does so at sums of 64.
template <u32 T> DEVICE void multiply_floats(const Tile<T>& tile, const Columns& x, Sums& acc) {
    constexpr u32 TERMS = T == BF16 ? 1 : T == F16 ? 2 : 3;
    float sums[COLUMN_TILES][4] = {};
    u32 a[4][TERMS][4];
#pragma unroll
    for (u32 step = 0; step < 4; step++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const Vec4u& v = tile.main[T == F32 ? 2 * step + i / 2 : step];
            u32 w[4] = {v.x, v.y, v.z, v.w};
            if constexpr (T == BF16) {
                a[step][0][i] = w[i];
            } else {
                float low, high;
                if constexpr (T == F16) {
                    low = f16_to_f32((u16)w[i]);
                    high = f16_to_f32((u16)(w[i] >> 16));
                } else {
                    low = bits_to_f32(w[2 * (i % 2)]);
                    high = bits_to_f32(w[2 * (i % 2) + 1]);
                }
#pragma unroll
                for (u32 term = 0; term < TERMS; term++) a[step][term][i] = take_term(low, high);
            }
        }
#pragma unroll
    for (u32 order = FLOAT_TERMS; order-- > 0;)
#pragma unroll
        for (u32 term = 0; term < TERMS; term++) {
            if (term > order) continue;
#pragma unroll
            for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
                for (u32 two = 0; two < 2; two++) {
                    Vec4u b = x.unit(ct, TERM_BYTES * (order - term) + 512 * two);
                    mma_bf16(sums[ct], a[2 * two][term], b.x, b.y);
                    mma_bf16(sums[ct], a[2 * two + 1][term], b.z, b.w);
                }
        }
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) acc[ct][i] += sums[ct][i];
}

// The tiles of a slice.
DEVICE u32 slice_start(u32 slice, u32 cols, u32 cols_per_tile, u32 tiles) {
    u32 blocks = (cols + 255) / 256;
    return smaller(tiles, slice * blocks / SLICES * (256 / cols_per_tile));
}
