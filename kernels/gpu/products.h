// Products of a tile of weights and column tiles by a warp, for every type. Needs COLUMN_TILES, and TYPES: a bit mask.
//
// Inputs are cut in SLICES of whole 256, a matter of the matrix's shape alone: 8, or 4 of many inputs, which are those of 8 by twos. A slice is
// added up by ascending inputs and the slices as ((0+1)+(2+3))+((4+5)+(6+7)). So it changes no bit how slices are dealt to warps and blocks, and
// how many columns share a launch.
// Quants: integer sums are exact; per 256 (or 32) inputs there are two float operations per output, three with mins.
#pragma once
#include "columns.h"
#include "mma.h"
#include "weights.h"

#ifndef SLICES
#define SLICES 8
#endif
constexpr u32 MAX_JOBS = 8;
// Every second sum of a lane is of a column that is not there.
constexpr u32 NEXT_SUM = KEPT == 1 ? 2 : 1;

// Forms of activations that products of these types read.
constexpr bool BY_256 = (TYPES & (1 << Q2_K | 1 << Q3_K | 1 << Q4_K | 1 << Q5_K | 1 << Q6_K | 1 << IQ4_XS)) != 0;
constexpr bool FLOATS = (TYPES & (1 << F32 | 1 << F16 | 1 << BF16)) != 0;
constexpr bool BY_32 = (TYPES & (1 << Q4_0 | 1 << Q4_1 | 1 << Q5_0 | 1 << Q5_1 | 1 << Q8_0 | 1 << IQ4_NL)) != 0;

// Calls `Visit::of<T>(arguments)` for the type of that number, one of TYPES.
template <typename Visit, u32 T = 0, typename... Arguments> DEVICE void visit_type(u32 type, Arguments&... arguments) {
    if constexpr ((TYPES >> T & 1) != 0)
        if (type == T) Visit::template of<T>(arguments...);
    if constexpr (TYPES >> T >> 1 != 0) visit_type<Visit, T + 1>(type, arguments...);
}

// The sum of slices, or of pieces with as many of them each, in their order.
template <u32 COUNT> DEVICE float add_slices(float (&parts)[COUNT]) {
#pragma unroll
    for (u32 width = 1; width < COUNT; width *= 2)
#pragma unroll
        for (u32 k = 0; k < COUNT; k += 2 * width) parts[k] += parts[k + width];
    return parts[0];
}

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

template <typename V> DEVICE V read(const u8* at) { return *reinterpret_cast<const V*>(at); }

// What a lane multiplies of a tile of weights in shared memory: the quants of one unit or, in tiles of 256 inputs, of two.
template <u32 T> struct Part {
    static constexpr u32 UNITS = tile_cols(T) / 64, HELD = UNITS == 4 ? 2 : 1;
    static constexpr u32 MAIN = is_float(T) ? bits_of(T) / 4 : bits_of(T) == 8 ? 2 : HELD;
    Vec4u main[MAIN];
    Vec4u pairs;
    u32 bits[2];

    // `at`: the tile.
    DEVICE_MEMBER Part(const u8* at, u32 part) {
        u32 lane = lane_index();
        if constexpr (is_float(T) || bits_of(T) == 8 || has_nibbles(T) || has_sixes(T))
            for (u32 i = 0; i < MAIN; i++) main[i] = read<Vec4u>(at + 512 * (HELD * part + i) + 16 * lane);
        if constexpr (has_pairs(T) || has_sixes(T)) pairs = read<Vec4u>(at + (has_sixes(T) ? second_plane(T) : 0) + 512 * part + 16 * lane);
        if constexpr (has_bits(T)) {
            const u8* from = at + second_plane(T) + 4 * UNITS * lane;
            bits[0] = read<u32>(from + 8 * part);
            if constexpr (HELD == 2) bits[1] = read<u32>(from + 8 * part + 4);
        }
    }

    // Words i of its unit u and sub-unit s, for mma_s8. TURNED: those of sixes with their bytes' highest bits turned.
    template <bool TURNED = false> DEVICE_MEMBER void fragments(u32 u, u32 (&a)[2][4]) const {
        if constexpr (bits_of(T) == 8) {
            words(main[0], a[0]);
            words(main[1], a[1]);
        } else if constexpr (T == IQ4_NL || T == IQ4_XS) {
            u32 w[4];
            words(main[u], w);
            const u32 table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
            for (u32 i = 0; i < 4; i++) lookup16(w[i], table, a[0][i], a[1][i]);
        } else if constexpr (has_sixes(T)) {
            constexpr u32 OWN = 0xfcfcfcfcu, TURN = TURNED ? 0 : 0x80808080u;
            u32 first[4], second[4], third[4];
            words(main[0], first);
            words(main[1], second);
            words(pairs, third);
            for (u32 i = 0; i < 4; i++) {
                if (u == 0) {
                    a[0][i] = (first[i] & OWN) ^ TURN;
                    a[1][i] = (second[i] & OWN) ^ TURN;
                } else {
                    a[0][i] = (third[i] & OWN) ^ TURN;
                    a[1][i] = ((first[i] << 2 & 0x0c0c0c0cu) | (second[i] << 4 & 0x30303030u) | (third[i] << 6 & 0xc0c0c0c0u)) ^ TURN;
                }
            }
        } else {
            constexpr u32 UP = shift_of(T), BITS = bits_of(T);
            u32 low[4], two[4];
            if constexpr (has_nibbles(T)) words(main[u], low);
            if constexpr (has_pairs(T)) words(pairs, two);
            for (u32 s = 0; s < 2; s++)
                for (u32 i = 0; i < 4; i++) {
                    u32 value = 0;
                    if constexpr (has_nibbles(T)) value = moved(low[i], 4 * s, UP) & (0x0f0f0f0fu << UP);
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

// Scales of a tile of 256 inputs, of rows g and g + 8: floats, and integers, a byte for 16 or 32 inputs; mins as a fragment for
// 16 sums of 16, in f16.
template <u32 T> struct Scales {
    static constexpr bool BY_16 = T == Q2_K || T == Q3_K || T == Q6_K;
    u32 scales[2][BY_16 ? 4 : 2];
    u32 mins[4];
    float d[2], m[2];

    DEVICE_MEMBER explicit Scales(const u8* at) {
        u32 t = lane_index() % 4;
        for (u32 h = 0; h < 2; h++) {
            u32 row = lane_index() / 4 + 8 * h, w[4], both;
            const u8* sub = at + quant_bytes(T) + sub_bytes(T) * row;
            const u8* scale = at + scales_at(T) + scale_bytes(T) * row;
            if constexpr (T == IQ4_XS) {
                w[0] = read<u32>(sub);
                w[1] = read<u32>(sub + 4);
            } else {
                Part<T>::words(read<Vec4u>(sub), w);
            }
            if constexpr (T == Q4_K || T == Q5_K) both = w[0];
            else if constexpr (scale_bytes(T) == 2) both = read<u16>(scale);
            else both = read<u32>(scale);
            d[h] = f16_to_f32((u16)both) * (1.0f / (float)(1u << shift_of(T)));
            m[h] = has_min(T) ? f16_to_f32((u16)(both >> 16)) : 0.0f;
            if constexpr (T == Q4_K || T == Q5_K) {
                scales[h][0] = w[1] & 0x3f3f3f3fu;
                scales[h][1] = (w[3] & 0x0f0f0f0fu) | (w[1] >> 2 & 0x30303030u);
                u32 low = w[2] & 0x3f3f3f3fu, high = (w[3] >> 4 & 0x0f0f0f0fu) | (w[2] >> 2 & 0x30303030u);
                u32 two = (t < 2 ? low : high) >> (16 * (t % 2));
                // Each min counts for two sums.
                put_mins(h, halves_of_bytes<0, 0>(two), halves_of_bytes<1, 1>(two));
            } else {
                for (u32 i = 0; i < (BY_16 ? 4 : 2); i++) scales[h][i] = T == Q2_K ? w[i] & 0x0f0f0f0fu : w[i];
                if constexpr (T == Q2_K) {
                    u32 four = (t < 2 ? (t == 0 ? w[0] : w[1]) : (t == 2 ? w[2] : w[3])) >> 4 & 0x0f0f0f0fu;
                    put_mins(h, halves_of_bytes<0, 1>(four), halves_of_bytes<2, 3>(four));
                }
            }
        }
    }

    DEVICE_MEMBER void put_mins(u32 h, u32 first, u32 second) {
        mins[h] = first;
        mins[2 + h] = second;
    }

    // Of group `j` of the units of part `part`.
    DEVICE_MEMBER i32 scale(u32 h, u32 part, u32 j) const {
        u32 word;
        if constexpr (BY_16) word = part ? scales[h][2 + j / 4] : scales[h][j / 4];
        else word = part ? scales[h][1] : scales[h][0];
        return has_min(T) ? (i32)byte_of(word, j % 4) : signed_byte_of(word, j % 4);
    }
};

// Column tiles that are multiplied side by side; more have not the registers.
#ifndef AT_ONCE
#define AT_ONCE 4
#endif

// scale x (d x integer, and with mins less m x ...), on top of `acc`; i = 0..3 as in c of mma.h.
template <u32 T> DEVICE void multiply_some(const u8* tile, const Scales<T>& scales, const Columns& x, u32 first, Sums& acc) {
    i32 totals[AT_ONCE][4] = {};
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        Part<T> quants(tile, part);
#pragma unroll
        for (u32 u = 0; u < 2; u++) {
            u32 a[2][4];
            quants.fragments(u, a);
#pragma unroll
            for (u32 ct = first; ct < smaller(first + AT_ONCE, (u32)COLUMN_TILES); ct++) {
                Vec4u b = x.unit(ct, UNIT_BYTES * (2 * part + u));
                u32 b0[2] = {b.x, b.z}, b1[2] = {b.y, b.w};
#pragma unroll
                for (u32 s = 0; s < 2; s++) {
                    if constexpr (Scales<T>::BY_16) {
                        i32 even[4] = {}, odd[4] = {};
                        mma_s8_k16(even, a[s][0], a[s][1], b0[s]);
                        mma_s8_k16(odd, a[s][2], a[s][3], b1[s]);
#pragma unroll
                        for (u32 i = 0; i < 4; i += NEXT_SUM) {
                            totals[ct - first][i] += even[i] * scales.scale(i / 2, part, 4 * u + 2 * s);
                            totals[ct - first][i] += odd[i] * scales.scale(i / 2, part, 4 * u + 2 * s + 1);
                        }
                    } else {
                        i32 c[4] = {};
                        mma_s8(c, a[s], b0[s], b1[s]);
#pragma unroll
                        for (u32 i = 0; i < 4; i += NEXT_SUM) totals[ct - first][i] += c[i] * scales.scale(i / 2, part, 2 * u + s);
                    }
                }
            }
        }
    }
#pragma unroll
    for (u32 ct = first; ct < smaller(first + AT_ONCE, (u32)COLUMN_TILES); ct++) {
        Vec2f two = x.scales(ct);
        float scale[2] = {two.x, two.y};
        // Whole numbers, exactly.
        float mins[4] = {};
        if constexpr (has_min(T)) {
            Vec2u sums = x.sums(ct);
            mma_f16(mins, scales.mins, sums.x, sums.y);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i += NEXT_SUM) {
            float total = scales.d[i / 2] * (float)totals[ct - first][i];
            if constexpr (has_min(T)) total = fused_multiply_add(-scales.m[i / 2], mins[i], total);
            acc[ct][i] = fused_multiply_add(scale[i % 2], total, acc[ct][i]);
        }
    }
}

template <u32 T> DEVICE void multiply_by256(const u8* tile, const Columns& x, Sums& acc) {
    Scales<T> scales(tile);
#pragma unroll
    for (u32 first = 0; first < COLUMN_TILES; first += AT_ONCE) multiply_some<T>(tile, scales, x, first, acc);
}

template <u32 T> DEVICE void multiply_by32(const u8* tile, const Columns& x, Sums& acc) {
    // Of rows g and g + 8, in halves of a word for the unit's two groups.
    u32 a[2][4], d[2], m[2];
    Part<T>(tile, 0).fragments(0, a);
    for (u32 h = 0; h < 2; h++) {
        const u8* at = tile + scales_at(T) + 4 * (lane_index() / 4 + 8 * h);
        d[h] = read<u32>(at);
        if constexpr (has_min(T)) m[h] = read<u32>(at + 64);
    }
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++) {
        Vec4u b = x.unit(ct, 0);
        u32 b0[2] = {b.x, b.z}, b1[2] = {b.y, b.w};
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
            Vec2f two = x.pair(ct, SCALES_32 + 4 * KEPT * s), sums = {0.0f, 0.0f};
            if constexpr (has_min(T)) sums = x.pair(ct, TOTALS_32 + 4 * KEPT * s);
            float scale[2] = {two.x, two.y}, total[2] = {sums.x, sums.y};
            i32 c[4] = {};
            mma_s8(c, a[s], b0[s], b1[s]);
#pragma unroll
            for (u32 i = 0; i < 4; i += NEXT_SUM) {
                float by = f16_to_f32((u16)(d[i / 2] >> (16 * s))) * (1.0f / (float)(1u << shift_of(T)));
                acc[ct][i] = fused_multiply_add(by * scale[i % 2], (float)c[i], acc[ct][i]);
                if constexpr (has_min(T))
                    acc[ct][i] = fused_multiply_add(f16_to_f32((u16)(m[i / 2] >> (16 * s))), total[i % 2], acc[ct][i]);
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

// Terms of weights, and those of the activations that they are multiplied with.
constexpr u32 weight_terms(u32 type) { return type == BF16 ? 1 : type == F16 ? 2 : 3; }
constexpr u32 read_terms(u32 type) { return type == F32 ? 3 : 2; }
// Terms that activations are there in.
constexpr u32 FORM_TERMS = (TYPES >> F32 & 1) != 0 ? read_terms(F32) : read_terms(BF16), BYTES_FLOAT = FORM_TERMS * TERM_BYTES;

// The terms of a tile's steps, the largest first.
template <u32 T> DEVICE void load_terms(const u8* tile, u32 (&a)[4][weight_terms(T)][4]) {
    Part<T> floats(tile, 0);
#pragma unroll
    for (u32 step = 0; step < 4; step++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const Vec4u& v = floats.main[T == F32 ? 2 * step + i / 2 : step];
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
                for (u32 term = 0; term < weight_terms(T); term++) a[step][term][i] = take_term(low, high);
            }
        }
}

// Weights as one, two or three bf16 terms, exactly, times two of the activations, of f32 weights all three. In a unit each term of
// the activations has sums of its own, the smallest terms of the weights first; those add up, the smallest first, and then to `acc`: the matrix unit
// truncates, and this way it does so at sums of 64. One row alone has its terms in columns side by side. Of COUNT tiles of
// neighbouring inputs, whose products go by turns: each of a unit's waits for the one before.
template <u32 T, u32 COUNT> DEVICE void multiply_floats(const u8* const (&tiles)[COUNT], const Columns& x, Sums& acc) {
    constexpr u32 TERMS = weight_terms(T), READ = read_terms(T);
    u32 a[COUNT][4][TERMS][4];
#pragma unroll
    for (u32 n = 0; n < COUNT; n++) load_terms<T>(tiles[n], a[n]);
    if constexpr (KEPT == 1) {
        u32 lane = lane_index();
        const u8* at = x.at + TERM_BYTES * smaller(lane / 4, READ - 1) + 16 * (lane % 4);
        float sums[COUNT][4] = {};
#pragma unroll
        for (u32 term = TERMS; term-- > 0;)
#pragma unroll
            for (u32 two = 0; two < 2; two++) {
                Vec4u b[COUNT];
#pragma unroll
                for (u32 n = 0; n < COUNT; n++) b[n] = *reinterpret_cast<const Vec4u*>(at + n * BYTES_FLOAT + UNIT_BYTES * two);
#pragma unroll
                for (u32 n = 0; n < COUNT; n++) mma_bf16(sums[n], a[n][2 * two][term], b[n].x, b[n].y);
#pragma unroll
                for (u32 n = 0; n < COUNT; n++) mma_bf16(sums[n], a[n][2 * two + 1][term], b[n].z, b[n].w);
            }
#pragma unroll
        for (u32 n = 0; n < COUNT; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i += 2) {
                float sum = sums[n][i + 1];
                // The third column is the next lane's first.
                if constexpr (READ == 3) sum = shuffle(sums[n][i], (lane + 1) % LANES) + sum;
                acc[0][i] += sum + sums[n][i];
            }
    } else {
#pragma unroll
        for (u32 n = 0; n < COUNT; n++)
#pragma unroll
            for (u32 ct = 0; ct < COLUMN_TILES; ct++) {
                float sums[READ][4] = {};
#pragma unroll
                for (u32 term = TERMS; term-- > 0;)
#pragma unroll
                    for (u32 two = 0; two < 2; two++)
#pragma unroll
                        for (u32 of_x = 0; of_x < READ; of_x++) {
                            Vec4u b = x.unit(ct, n * BYTES_FLOAT + TERM_BYTES * of_x + UNIT_BYTES * two);
                            mma_bf16(sums[of_x], a[n][2 * two][term], b.x, b.y);
                            mma_bf16(sums[of_x], a[n][2 * two + 1][term], b.z, b.w);
                        }
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    float sum = sums[READ - 1][i];
                    if constexpr (READ == 3) sum += sums[1][i];
                    acc[ct][i] += sum + sums[0][i];
                }
            }
    }
}

// The first tile of a slice, of tiles of which 256 inputs have one or four.
DEVICE u32 slice_start(u32 slice, u32 cols, u32 tiles_of_256, u32 tiles) {
    u32 blocks = (cols + 255) / 256;
    return smaller(tiles, slice * blocks / SLICES * tiles_of_256);
}

// A tile's products of whatever kind; it lies in shared memory.
template <u32 T> DEVICE void multiply_tile(const u8* tile, const Columns& x, Sums& acc) {
    if constexpr (is_float(T)) multiply_floats<T, 1>({tile}, x, acc);
    else if constexpr (is_by256(T)) multiply_by256<T>(tile, x, acc);
    else multiply_by32<T>(tile, x, acc);
}

// Activations that a type is multiplied with, and the bytes of them for a tile.
template <u32 T> DEVICE const u8* form_of(const Activations& x) { return is_float(T) ? x.floats : is_by256(T) ? x.by256 : x.by32; }
DEVICE constexpr u32 form_bytes(u32 type) { return is_float(type) ? BYTES_FLOAT : is_by256(type) ? BYTES_256 : BYTES_32; }
