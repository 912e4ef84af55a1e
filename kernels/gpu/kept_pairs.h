// Keys and values as pairs of f16, which matrix units take. Loads and what is done to them are apart, so that many loads are
// under way at once.
#pragma once
#include "kept.h"
#include "mma.h"

template <u32 N> DEVICE void load_words(u32 (&to)[N], const u16* from) {
    if constexpr (N == 4) {
        Vec4u words = *reinterpret_cast<const Vec4u*>(from);
        to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
    } else if constexpr (N == 2) {
        Vec2f words = *reinterpret_cast<const Vec2f*>(from);
        to[0] = f32_to_bits(words.x), to[1] = f32_to_bits(words.y);
    } else {
        to[0] = *reinterpret_cast<const u32*>(from);
    }
}

// The bytes of the eight levels in f16, low ones and high ones.
constexpr u32 LEVEL_BYTES[2][2] = {{0x7e358b1a, 0x1a8b357e}, {0xa5acafb2, 0x322f2c25}};

DEVICE u32 pair_of_bf16(u32 pair) {
    return low_halves(f32_to_f16(bits_to_f32(pair << 16)), f32_to_f16(bits_to_f32(pair & 0xffff0000u)));
}
// Levels of two codes, one in each half.
DEVICE u32 pair_of_levels(u32 codes) {
#if ON_CUDA
    u32 low, high, y, at = codes | codes >> 12;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(low) : "r"(LEVEL_BYTES[0][0]), "r"(LEVEL_BYTES[0][1]), "r"(at));
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(LEVEL_BYTES[1][0]), "r"(LEVEL_BYTES[1][1]), "r"(at));
    asm("prmt.b32 %0, %1, %2, 0x5140;" : "=r"(y) : "r"(low), "r"(high));
    return y;
#else
    return low_halves(f32_to_f16(LEVELS[codes & 7]), f32_to_f16(LEVELS[codes >> 16]));
#endif
}
// Two values from their codes, scales and least values.
template <u32 TYPE> DEVICE u32 pair_of_codes(u32 codes, u32 scales, u32 leasts) {
    if constexpr (TYPE == TQ3_0) return multiply_halves(pair_of_levels(codes), scales);
    // A code at the end of 1024's f16.
    constexpr u32 LESS = 0xe400 + Format<TYPE>::ZERO;
    u32 levels = add_halves(codes | 0x64006400u, LESS | LESS << 16);
    return Format<TYPE>::HAS_LEAST ? fma_halves(levels, scales, leasts) : multiply_halves(levels, scales);
}

// Four dims of the keys of 2 N tokens, as they lie.
template <u32 TYPE, u32 N> struct RawKeys {
    typedef Format<TYPE> Of;
    static constexpr u32 LOWS = Of::IS_CODED ? (Of::LOW == 8 ? 2 : 1) : 4, HIGH = LOWS, SCALE = HIGH + Of::HIGH, LEAST = SCALE + Of::IS_CODED;
    u32 units[LEAST + Of::HAS_LEAST][N];

    // From dim `d`, a multiple of 4, and `token` on.
    DEVICE_MEMBER void load(const u16* page, u32 d, u32 token) {
        const u16* from = page + token;
#pragma unroll
        for (u32 i = 0; i < LOWS; i++) load_words(units[i], from + (d / Of::PER_UNIT + i) * PAGE_TOKENS);
        if constexpr (Of::HIGH) load_words(units[HIGH], from + (Of::HIGH_AT + d / 16) * PAGE_TOKENS);
        if constexpr (Of::IS_CODED) load_words(units[SCALE], from + (Of::SCALE_AT + d / BLOCK) * PAGE_TOKENS);
        if constexpr (Of::HAS_LEAST) load_words(units[LEAST], from + (Of::LEAST_AT + d / BLOCK) * PAGE_TOKENS);
    }
    // to[j][i]: dim d + j of tokens 2 i and 2 i + 1.
    DEVICE_MEMBER void unpack(u32 (&to)[4][N], u32 d) const {
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                if constexpr (!Of::IS_CODED) {
                    to[j][i] = TYPE == BF16 ? pair_of_bf16(units[j][i]) : units[j][i];
                } else {
                    u32 shift = Of::LOW == 2 ? d % 8 * 2 + 2 * j : Of::LOW * (j % Of::PER_UNIT);
                    u32 codes = units[j * LOWS / 4][i] >> shift & Of::MASK * 0x10001u;
                    if constexpr (Of::HIGH) codes |= (units[HIGH][i] >> (d % 16 + j) & 0x10001u) << Of::LOW;
                    to[j][i] = pair_of_codes<TYPE>(codes, units[SCALE][i], units[LEAST + Of::HAS_LEAST - 1][i]);
                }
            }
    }
};

// 2 N dims of a token's values, as they lie.
template <u32 TYPE, u32 N> struct RawValues {
    typedef Format<TYPE> Of;
    static constexpr u32 PAIRS = Of::PER_UNIT, LOWS = Of::IS_CODED ? (N > PAIRS ? N / PAIRS : 1) : N;
    static constexpr u32 HIGH = LOWS, SCALE = HIGH + Of::HIGH, LEAST = SCALE + Of::IS_CODED;
    u32 words[LEAST + Of::HAS_LEAST];

    // From `dim`, a multiple of 2 N, on.
    DEVICE_MEMBER void load(const u16* values, u32 at, u32 dim) {
        if constexpr (!Of::IS_CODED) {
            load_words(words, values + (u64)at * HEAD_DIM + dim);
        } else {
            const u16* page = values + (u64)(at / PAGE_TOKENS) * Of::PAGE_UNITS;
            u32 token = at % PAGE_TOKENS;
            const u32* low = reinterpret_cast<const u32*>(page + token * Of::LOWS) + dim / 2 / PAIRS;
#pragma unroll
            for (u32 i = 0; i < LOWS; i++) words[i] = low[i];
            if constexpr (Of::HIGH) words[HIGH] = reinterpret_cast<const u32*>(page + Of::HIGH_AT * PAGE_TOKENS + token * Of::HIGHS)[dim / 32];
            words[SCALE] = page[Of::SCALE_AT * PAGE_TOKENS + token * Of::SCALES + dim / BLOCK];
            if constexpr (Of::HAS_LEAST) words[LEAST] = page[Of::LEAST_AT * PAGE_TOKENS + token * Of::SCALES + dim / BLOCK];
        }
    }
    // to[i]: dims 2 i and 2 i + 1 from `dim` on.
    DEVICE_MEMBER void unpack(u32 (&to)[N], u32 dim) const {
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            if constexpr (!Of::IS_CODED) {
                to[i] = TYPE == BF16 ? pair_of_bf16(words[i]) : words[i];
            } else {
                u32 first = N >= PAIRS ? 0 : dim / 2 % PAIRS;
                u32 codes = words[N > PAIRS ? i / PAIRS : 0] >> (Of::LOW * (first + i % PAIRS)) & Of::MASK * 0x10001u;
                if constexpr (Of::HIGH) codes |= (words[HIGH] >> (dim / 2 % 16 + i) & 0x10001u) << Of::LOW;
                u32 scale = words[SCALE], least = words[LEAST + Of::HAS_LEAST - 1];
                to[i] = pair_of_codes<TYPE>(codes, low_halves(scale, scale), low_halves(least, least));
            }
        }
    }
};
