// What `multiply_by256` and `multiply_floats` of products.h compute, to the bit, by the groups of warpgroup.h; of floats, weights of 16 bits.
//
// A weight of quants times its sub-scale is split in two bytes, so that all 256 inputs add up in two integers and nothing is left to do
// for a group of inputs: where both are unsigned and small, the sub-scale's lowest three bits and the others make two
// products of a byte; else the product of 16 bits is cut in two.
#pragma once
#include "products.h"
#include "warpgroup.h"

// Two groups of a thread block, each of which makes weights ready while the other multiplies: the first has the first turn. It passes on before its
// last products, since what the other makes ready for its first takes longer than those.
constexpr bool TAKE_TURNS = HAS_GROUPS && ROW_WARPS == 8;
DEVICE void begin_turns() {
    if constexpr (TAKE_TURNS)
        if (warp_index() / 4 == 1) pass_turn();
}
// The last turn that is passed on is nobody's.
DEVICE void end_turns() {
    if constexpr (TAKE_TURNS)
        if (warp_index() / 4 == 0) wait_for_turn();
}

// Turns the top bits of signed quants of a plane of their own, which makes their bytes unsigned and 128 too large: a few words in place of all that
// `fragments` makes of them, which the compiler would turn instead if they were not settled.
template <u32 T> DEVICE void turn(Part<T>& quants) {
    static_assert(is_signed(T) && (has_sixes(T) || has_bits(T)), "types whose top bits can be turned");
    if constexpr (has_bits(T))
        for (u32 i = 0; i < 2; i++) {
            quants.bits[i] ^= ~0u;
            settle(quants.bits[i]);
        }
}

template <u32 T> struct Planes {
    static constexpr bool BY_DIGITS = has_min(T);
    // The high bytes count so many low ones.
    static constexpr i32 HIGH = BY_DIGITS ? 8 : 256;
    // Else two weights at a time, 128 too large each: those of IQ4_XS, which come from a table, are so only here.
    static constexpr bool ARE_TURNED = !BY_DIGITS && T != IQ4_XS;
    u32 low[2][4], high[2][4];

    // Of unit u of a part of a tile, whose words are `a`.
    DEVICE_MEMBER Planes(const u8* tile, const Scales<T>& scales, u32 part, u32 u, const u32 (&a)[2][4]) {
#pragma unroll
        for (u32 s = 0; s < 2; s++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 group = Scales<T>::BY_16 ? 4 * u + 2 * s + i / 2 : 2 * u + s;
                i32 scale;
                // With a scale for each word they are read one by one: to take bytes from words would take the unit that is busiest here.
                if constexpr (ARE_TURNED) scale = (i8)tile[quant_bytes(T) + sub_bytes(T) * (lane_index() / 4 + 8 * (i % 2)) + 8 * part + group];
                else scale = scales.scale(i % 2, part, group);
                if constexpr (BY_DIGITS) {
                    low[s][i] = a[s][i] * (u32)(scale & 7);
                    high[s][i] = a[s][i] * (u32)(scale >> 3);
                } else {
                    // What they are too large by the scale's share takes away; what it adds keeps the lower product from borrowing.
                    u32 share = (u32)scale * (0u - 0x00800080u) + 0x80008000u, word = ARE_TURNED ? a[s][i] : a[s][i] ^ 0x80808080u;
                    u32 even = (word & 0x00ff00ffu) * (u32)scale + share;
                    u32 odd = odd_bytes(word, 0) * (u32)scale + share;
                    low[s][i] = even_bytes(even, odd);
                    high[s][i] = odd_bytes(even, odd) ^ 0x80808080u;
                }
                settle(low[s][i]);
                settle(high[s][i]);
            }
    }
};

template <u32 T> DEVICE void multiply_grouped_floats(const u8* tile, const Columns& x, Sums& acc) {
    constexpr u32 TERMS = weight_terms(T), READ = read_terms(T);
    static_assert(READ == 2, "registers for the sums of two terms");
    u32 a[4][TERMS][4];
    load_terms<T>(tile, a);
#pragma unroll
    for (u32 step = 0; step < 4; step++)
#pragma unroll
        for (u32 term = 0; term < TERMS; term++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) settle(a[step][term][i]);
    float sums[READ][COLUMN_TILES][4];
    GroupColumns columns = columns_of_group(x.at, (u32)x.stride);
    begin_group();
    // Each product of a term waits for the one before: those of the two go by turns.
#pragma unroll
    for (u32 i = 0; i < 4 * TERMS; i++)
#pragma unroll
        for (u32 of_x = 0; of_x < READ; of_x++) {
            u32 step = i % 4, term = TERMS - 1 - i / 4;
            GroupColumns b = further(columns, TERM_BYTES * of_x + 2 * CORE_BYTES * step);
            if (i == 0) group_mma_bf16<true>(sums[of_x], a[step][term], b);
            else group_mma_bf16<false>(sums[of_x], a[step][term], b);
        }
    end_group();
    wait_groups<0>();
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            settle(sums[0][ct][i]);
            settle(sums[1][ct][i]);
            acc[ct][i] += sums[1][ct][i] + sums[0][ct][i];
        }
}

template <u32 T> DEVICE void multiply_grouped_by256(const u8* tile, const Columns& x, Sums& acc) {
    i32 low[COLUMN_TILES][4], high[COLUMN_TILES][4];
    Scales<T> scales(tile);
    GroupColumns columns = columns_of_group(x.at, (u32)x.stride);
    if constexpr (TAKE_TURNS) wait_for_turn();
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        Part<T> quants(tile, part);
        if constexpr (Planes<T>::ARE_TURNED) turn(quants);
#pragma unroll
        for (u32 u = 0; u < 2; u++) {
            u32 a[2][4], unit = 2 * part + u;
            quants.template fragments<Planes<T>::ARE_TURNED>(u, a);
            Planes<T> planes(tile, scales, part, u, a);
            GroupColumns b = further(columns, UNIT_BYTES * unit), next = further(b, 2 * CORE_BYTES);
            begin_group();
            if (unit == 0) {
                group_mma_8<true, false>(low, planes.low[0], b);
                group_mma_8<true, !Planes<T>::BY_DIGITS>(high, planes.high[0], b);
            } else {
                group_mma_8<false, false>(low, planes.low[0], b);
                group_mma_8<false, !Planes<T>::BY_DIGITS>(high, planes.high[0], b);
            }
            group_mma_8<false, false>(low, planes.low[1], next);
            group_mma_8<false, !Planes<T>::BY_DIGITS>(high, planes.high[1], next);
            end_group();
            if (TAKE_TURNS && unit == 2) pass_turn();
            // The next words take the registers of the last but one.
            if (unit < 3) wait_groups<1>();
        }
    }
    wait_groups<0>();
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            settle(low[ct][i]);
            settle(high[ct][i]);
            low[ct][i] += Planes<T>::HIGH * high[ct][i];
            settle(low[ct][i]);
        }
    // They take the registers of the high bytes' sums.
    float mins[COLUMN_TILES][4];
    if constexpr (has_min(T)) {
        for (u32 i = 0; i < 4; i++) settle(scales.mins[i]);
        begin_group();
        group_mma_f16<true>(mins, scales.mins, further(columns, SUMS_256));
        end_group();
    }
    float totals[COLUMN_TILES][4];
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            totals[ct][i] = scales.d[i / 2] * (float)low[ct][i];
            if constexpr (has_min(T)) settle(totals[ct][i]);
        }
    if constexpr (has_min(T)) wait_groups<0>();
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++) {
        Vec2f two = x.pair(ct, SCALES_256);
        float scale[2] = {two.x, two.y};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if constexpr (has_min(T)) {
                settle(mins[ct][i]);
                totals[ct][i] = fused_multiply_add(-scales.m[i / 2], mins[ct][i], totals[ct][i]);
            }
            acc[ct][i] = fused_multiply_add(scale[i % 2], totals[ct][i], acc[ct][i]);
        }
    }
}

// By a group that has no work: the other one does not wait for it.
template <u32 T> DEVICE void skip_turn() {
    if constexpr (TAKE_TURNS && !is_float(T)) {
        wait_for_turn();
        pass_turn();
    }
}
template <u32 T> DEVICE void multiply_grouped(const u8* tile, const Columns& x, Sums& acc) {
    if constexpr (is_float(T)) multiply_grouped_floats<T>(tile, x, acc);
    else multiply_grouped_by256<T>(tile, x, acc);
}
