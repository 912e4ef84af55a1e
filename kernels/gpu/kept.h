// How keys and values are kept, and how kernels read them: rows of units, see src/kv/rows.rs.
//
// HEAD_DIM: D; a multiple of 32 where a type has codes. K_TYPE, V_TYPE: the types' numbers.
#pragma once
#include "tables.h"

enum KvType : u32 { F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, TQ3_0 };

// Values that share a scale.
constexpr u32 BLOCK = 32;

template <u32 TYPE> struct Format {
    static constexpr bool IS_CODED = TYPE > BF16;
    // Bits of a code in the first run and in the second.
    static constexpr u32 LOW = TYPE == Q8_0 ? 8 : TYPE == TQ3_0 ? 2 : IS_CODED ? 4 : 16;
    static constexpr u32 HIGH = TYPE == Q5_1 || TYPE == Q5_0 || TYPE == TQ3_0 ? 1 : 0;
    // Code of 0.
    static constexpr u32 ZERO = TYPE == Q8_0 ? 128 : TYPE == Q5_0 ? 16 : TYPE == Q4_0 ? 8 : 0;
    static constexpr u32 HAS_LEAST = TYPE == Q5_1 || TYPE == Q4_1 ? 1 : 0;
    static constexpr u32 MASK = (1u << LOW) - 1, PER_UNIT = 16 / LOW;
    // Units of the runs, and where they begin in a row.
    static constexpr u32 LOWS = HEAD_DIM * LOW / 16, HIGHS = HEAD_DIM * HIGH / 16, SCALES = IS_CODED ? HEAD_DIM / BLOCK : 0;
    static constexpr u32 HIGH_AT = LOWS, SCALE_AT = HIGH_AT + HIGHS, LEAST_AT = SCALE_AT + SCALES;
    static constexpr u32 UNITS = LEAST_AT + SCALES * HAS_LEAST, PAGE_UNITS = UNITS * PAGE_TOKENS;
};
template <u32 TYPE> struct UnitOf { typedef u16 Unit; };
template <> struct UnitOf<F32> { typedef float Unit; };
typedef UnitOf<K_TYPE>::Unit KeyUnit;
typedef UnitOf<V_TYPE>::Unit ValueUnit;
typedef Format<K_TYPE> KeyFormat;
typedef Format<V_TYPE> ValueFormat;
// Queries and keys are rotated; values are, and answers are rotated back.
constexpr bool ROTATES_KEYS = KeyFormat::IS_CODED, ROTATES_VALUES = V_TYPE == TQ3_0;

// Places of a token's units in a page of a head.
DEVICE u32 key_place(u32 unit, u32 token) { return unit * PAGE_TOKENS + token; }
template <u32 TYPE> DEVICE u32 value_place(u32 unit, u32 token) {
    typedef Format<TYPE> Of;
    if (unit < Of::HIGH_AT) return token * Of::LOWS + unit;
    if (unit < Of::SCALE_AT) return Of::HIGH_AT * PAGE_TOKENS + token * Of::HIGHS + unit - Of::HIGH_AT;
    if (unit < Of::LEAST_AT) return Of::SCALE_AT * PAGE_TOKENS + token * Of::SCALES + unit - Of::SCALE_AT;
    return Of::LEAST_AT * PAGE_TOKENS + token * Of::SCALES + unit - Of::LEAST_AT;
}

CONSTANT_TABLE float LEVELS[8] = {-0.190685f, -0.117832f, -0.065717f, -0.021460f, 0.021460f, 0.065717f, 0.117832f, 0.190685f};

template <u32 TYPE> DEVICE float from_unit(typename UnitOf<TYPE>::Unit unit) {
    if constexpr (TYPE == F32) return unit;
    else if constexpr (TYPE == BF16) return bf16_to_f32(unit);
    else return f16_to_f32(unit);
}
template <u32 TYPE> DEVICE float from_code(u32 code, u16 scale, u16 least) {
    float factor = f16_to_f32(scale);
    if constexpr (TYPE == TQ3_0) return LEVELS[code] * factor;
    float level = (float)((i32)code - (i32)Format<TYPE>::ZERO);
    return Format<TYPE>::HAS_LEAST ? fused_multiply_add(level, factor, f16_to_f32(least)) : level * factor;
}

// A dim of a token's key. `page`: of the head.
template <u32 TYPE> DEVICE float key_at(const typename UnitOf<TYPE>::Unit* page, u32 d, u32 token) {
    typedef Format<TYPE> Of;
    if constexpr (!Of::IS_CODED) return from_unit<TYPE>(page[key_place(d, token)]);
    else {
        u32 code = page[key_place(d / Of::PER_UNIT, token)] >> (Of::LOW * (d % Of::PER_UNIT)) & Of::MASK;
        if constexpr (Of::HIGH) code |= (page[key_place(Of::HIGH_AT + d / 16, token)] >> (d % 16) & 1u) << Of::LOW;
        u16 least = Of::HAS_LEAST ? page[key_place(Of::LEAST_AT + d / BLOCK, token)] : (u16)0;
        return from_code<TYPE>(code, page[key_place(Of::SCALE_AT + d / BLOCK, token)], least);
    }
}

struct Eight {
    float at[8];
};
struct EightUnits {
    u16 at[8];
};
DEVICE EightUnits load_units(const u16* from) {
    Vec4u a = *reinterpret_cast<const Vec4u*>(from);
    return {{(u16)a.x, (u16)(a.x >> 16), (u16)a.y, (u16)(a.y >> 16), (u16)a.z, (u16)(a.z >> 16), (u16)a.w, (u16)(a.w >> 16)}};
}
template <u32 TYPE> DEVICE Eight load_floats(const typename UnitOf<TYPE>::Unit* from) {
    Eight eight;
    if constexpr (TYPE == F32) {
        const Vec4f* fours = reinterpret_cast<const Vec4f*>(from);
        eight = {{fours[0].x, fours[0].y, fours[0].z, fours[0].w, fours[1].x, fours[1].y, fours[1].z, fours[1].w}};
    } else {
        EightUnits units = load_units(from);
        for (u32 i = 0; i < 8; i++) eight.at[i] = from_unit<TYPE>(units.at[i]);
    }
    return eight;
}
// A dim of the keys of eight tokens from `token` on, a multiple of 8.
template <u32 TYPE> DEVICE Eight eight_keys(const typename UnitOf<TYPE>::Unit* page, u32 d, u32 token) {
    typedef Format<TYPE> Of;
    if constexpr (!Of::IS_CODED) return load_floats<TYPE>(page + key_place(d, token));
    else {
        EightUnits low = load_units(page + key_place(d / Of::PER_UNIT, token)), high = {}, least = {};
        if constexpr (Of::HIGH) high = load_units(page + key_place(Of::HIGH_AT + d / 16, token));
        if constexpr (Of::HAS_LEAST) least = load_units(page + key_place(Of::LEAST_AT + d / BLOCK, token));
        EightUnits scale = load_units(page + key_place(Of::SCALE_AT + d / BLOCK, token));
        Eight eight;
        for (u32 i = 0; i < 8; i++) {
            u32 code = low.at[i] >> (Of::LOW * (d % Of::PER_UNIT)) & Of::MASK;
            if constexpr (Of::HIGH) code |= (high.at[i] >> (d % 16) & 1u) << Of::LOW;
            eight.at[i] = from_code<TYPE>(code, scale.at[i], least.at[i]);
        }
        return eight;
    }
}
// Eight dims of a token's values from `dim` on, a multiple of 8.
template <u32 TYPE> DEVICE Eight eight_values(const typename UnitOf<TYPE>::Unit* page, u32 token, u32 dim) {
    typedef Format<TYPE> Of;
    if constexpr (!Of::IS_CODED) return load_floats<TYPE>(page + value_place<TYPE>(dim, token));
    else {
        // Pairs of neighbours lie in the halves of words.
        constexpr u32 PAIRS = Of::PER_UNIT;
        const u32* low = reinterpret_cast<const u32*>(page + value_place<TYPE>(0, token));
        u32 high = 0;
        if constexpr (Of::HIGH) high = reinterpret_cast<const u32*>(page + value_place<TYPE>(Of::HIGH_AT, token))[dim / 32] >> (dim / 2 % 16);
        u16 scale = page[value_place<TYPE>(Of::SCALE_AT + dim / BLOCK, token)], least = 0;
        if constexpr (Of::HAS_LEAST) least = page[value_place<TYPE>(Of::LEAST_AT + dim / BLOCK, token)];
        Eight eight;
        for (u32 i = 0; i < 4; i++) {
            u32 pair = dim / 2 + i, word = low[pair / PAIRS] >> (Of::LOW * (pair % PAIRS));
            for (u32 odd = 0; odd < 2; odd++) {
                u32 code = word >> (16 * odd) & Of::MASK;
                if constexpr (Of::HIGH) code |= (high >> (16 * odd + i) & 1u) << Of::LOW;
                eight.at[2 * i + odd] = from_code<TYPE>(code, scale, least);
            }
        }
        return eight;
    }
}
