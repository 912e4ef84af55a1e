// Rows of keys and values into what is kept of them: see src/kv/rows.rs. A warp has a head, a lane its dims `lane`, `lane + 32`
// and so on.
#pragma once
#include "kept.h"
#include "rotation.h"

CONSTANT_TABLE float BOUNDS[7] = {-0.154259f, -0.091775f, -0.043589f, 0.0f, 0.043589f, 0.091775f, 0.154259f};

// A unit's place for keys or values.
template <u32 TYPE, bool IS_KEY> DEVICE u32 place_of(u32 unit, u32 token) {
    if constexpr (IS_KEY) return key_place(unit, token);
    else return value_place<TYPE>(unit, token);
}

// Bits of the codes of 32 dims, the lanes', to a run that begins at unit `first`.
template <u32 TYPE, bool IS_KEY, u32 BITS> DEVICE void store_bits(u16* page, u32 token, u32 first, u32 block, u32 bits) {
    // A unit's lanes follow one another; of values, every other lane is in one unit and the rest in the next.
    constexpr u32 PER_UNIT = 16 / BITS, NEXT = IS_KEY ? 1 : 2;
    u32 lane = lane_index(), word = bits << (BITS * (lane / NEXT % PER_UNIT));
#pragma unroll
    for (u32 mask = NEXT; mask < NEXT * PER_UNIT; mask *= 2) word |= shuffle_xor(word, mask);
    u32 unit = IS_KEY ? lane / PER_UNIT : lane / (2 * PER_UNIT) * 2 + lane % 2;
    if (lane / NEXT % PER_UNIT == 0) page[place_of<TYPE, IS_KEY>(first + block * (2 * BITS) + unit, token)] = (u16)word;
}

struct Scale {
    float scale, least;
};
// The code of a lane's value of a block.
template <u32 TYPE> DEVICE u32 code_of(float x, Scale& scale) {
    float most = warp_max(x), least = -warp_max(-x), far = most >= -least ? most : least;
    float d = TYPE == Q8_0   ? divide(larger(far, -far), 127.0f)
              : TYPE == Q5_0 ? far * (-1.0f / 16)
              : TYPE == Q4_0 ? far * (-1.0f / 8)
              : TYPE == Q5_1 ? divide(most - least, 31.0f)
                             : divide(most - least, 15.0f);
    scale = {d, least};
    float at = d == 0 ? 0.0f : divide(Format<TYPE>::HAS_LEAST ? x - least : x, d);
    if constexpr (TYPE == Q8_0) return (u32)(round_to_int(at) + 128);
    constexpr float ADD = Format<TYPE>::ZERO + 0.5f, TOP = Format<TYPE>::HIGH ? 31.0f : 15.0f;
    return (u32)smaller(at + ADD, TOP);
}
// Codes of a rotated group of levels.
template <u32 COUNT> DEVICE float square_sum(const float (&x)[COUNT], u32 first, u32 count) {
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++)
        if (i >= first && i < first + count) sum = fused_multiply_add(x[i], x[i], sum);
    return warp_sum(sum);
}
template <u32 COUNT> DEVICE void levels_of(const float (&x)[COUNT], u32 (&codes)[COUNT], float (&scales)[COUNT]) {
    constexpr u32 WORDS = ROTATED_WORDS;
    constexpr float LENGTH = WORDS == 4 ? 1.0f : WORDS == 2 ? 0.70710678118654752f : 0.5f;
    float levels[COUNT];
#pragma unroll
    for (u32 first = 0; first < COUNT; first += WORDS) {
        float norm = square_root(square_sum(x, first, WORDS)), factor = norm == 0 ? 0.0f : divide(LENGTH, norm);
#pragma unroll
        for (u32 i = first; i < first + WORDS; i++) {
            codes[i] = 0;
#pragma unroll
            for (u32 b = 0; b < 7; b++) codes[i] += x[i] * factor >= BOUNDS[b];
            levels[i] = LEVELS[codes[i]];
        }
        float scale = divide(norm, square_root(square_sum(levels, first, WORDS)));
#pragma unroll
        for (u32 i = first; i < first + WORDS; i++) scales[i] = scale;
    }
}

// As it is kept, of types without codes.
template <u32 TYPE> DEVICE typename UnitOf<TYPE>::Unit to_unit(float x) {
    if constexpr (TYPE == F32) return x;
    else return TYPE == BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

// Keeps a row. `page`: of the head.
template <u32 TYPE, bool IS_KEY, u32 COUNT>
DEVICE void store_row(typename UnitOf<TYPE>::Unit* page, u32 token, const float (&x)[COUNT]) {
    typedef Format<TYPE> Of;
    u32 lane = lane_index();
    if constexpr (!Of::IS_CODED) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 d = lane + i * LANES;
            if (d >= HEAD_DIM) continue;
            page[place_of<TYPE, IS_KEY>(d, token)] = to_unit<TYPE>(x[i]);
        }
    } else {
        u32 codes[COUNT];
        float scales[COUNT], leasts[COUNT];
        if constexpr (TYPE == TQ3_0) {
            levels_of(x, codes, scales);
        } else {
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) {
                Scale scale;
                codes[i] = code_of<TYPE>(x[i], scale);
                scales[i] = scale.scale, leasts[i] = scale.least;
            }
        }
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            store_bits<TYPE, IS_KEY, Of::LOW>(page, token, 0, i, codes[i] & Of::MASK);
            if constexpr (Of::HIGH) store_bits<TYPE, IS_KEY, 1>(page, token, Of::HIGH_AT, i, codes[i] >> Of::LOW);
            if (lane == 0) {
                page[place_of<TYPE, IS_KEY>(Of::SCALE_AT + i, token)] = f32_to_f16(scales[i]);
                if constexpr (Of::HAS_LEAST) page[place_of<TYPE, IS_KEY>(Of::LEAST_AT + i, token)] = f32_to_f16(leasts[i]);
            }
        }
    }
}
