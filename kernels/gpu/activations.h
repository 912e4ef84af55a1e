// What products read: rows of activations as eight columns of fragments B (mma.h) at a time, in up to three forms.
//
// For every 8 rows (a column tile) and every 256 or 64 inputs a block of bytes:
//   by256   4 units of quants, sums of 16 quants as f16 (per lane 4), 8 scales
//   by32    a unit of quants, 2 x 8 scales, 2 x 8 products of scale and sum
//   floats  two or three bf16 terms, each 4 steps of 16 inputs: three are the value, two are good to 2^-18 of it
// A unit (64 inputs) of quants has for each lane 16 bytes: b[0] and b[1] of inputs 0.., then of inputs 32... A term has for
// each lane 16 bytes of steps 0 and 1, then for all lanes those of steps 2 and 3.
// For products by groups of warps, by256 and the terms of floats have their bytes in core matrices (warpgroup.h) instead: inputs ascending,
// and sums as f16, the four of a lane in the order of a[0] and a[2] of 16 bits (mma.h).
// Inputs ascend from block to block, and then come the next 8 rows; for matmul_fed.cu the blocks of all rows for the same inputs come first.
// KEPT: of the 8, only the first so many are there, in as much less room; all eight begin where a line of 128 bytes does.
#pragma once
#include "arch.h"

#ifndef KEPT
#define KEPT 8
#endif

constexpr u32 COLUMNS = 8;
constexpr u32 UNIT_BYTES = 64 * KEPT;
constexpr u32 BEGINS_AT = KEPT == COLUMNS ? 128 : 16;
constexpr u32 SUMS_256 = 4 * UNIT_BYTES, SCALES_256 = SUMS_256 + 32 * KEPT;
constexpr u32 BYTES_256 = (SCALES_256 + 4 * KEPT + BEGINS_AT - 1) / BEGINS_AT * BEGINS_AT;
constexpr u32 SCALES_32 = UNIT_BYTES, TOTALS_32 = SCALES_32 + 8 * KEPT, BYTES_32 = TOTALS_32 + 8 * KEPT;
constexpr u32 TERM_BYTES = 2 * UNIT_BYTES;

// Null where no product of the call reads a form.
struct Activations {
    u8* by256;
    u8* by32;
    u8* floats;
};
// Where those forms of a row lie that are read, one after another.
DEVICE Activations forms_at(u8* at, u32 cols, bool by256, bool by32, bool floats) {
    Activations x = {};
    if (by256) x.by256 = at;
    if (by256) at += cols / 256 * BYTES_256;
    if (by32) x.by32 = at;
    if (by32) at += (cols + 63) / 64 * BYTES_32;
    if (floats) x.floats = at;
    return x;
}
