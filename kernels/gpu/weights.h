// How weight matrices lie on the device, for every element type. Mirrors src/gpu/matrix.rs.
//
// A tile is 16 rows by 256 inputs (K-quants, IQ4_XS) or by 64; the tiles of 16 rows stand in a row, inputs ascending.
// Quants lie in the order of the fragments of mma.h, in planes: for unit u (64 inputs), sub-unit s (32 inputs), word i
// (row g + 8 (i % 2), inputs 16 (i / 2)..) and byte b (input 4 t + b) of lane 4 g + t
//   nibbles  byte 512 u + 16 lane + 4 i + b, bits 4 s..        16 bytes a lane are a unit's 8 words
//   pairs    byte 512 (u / 2) + 16 lane + 4 (u % 2 * 2 + s) + b, bits 2 i..
//   bits     byte 4 units lane + 4 u + b, bit 4 s + i
//   bytes    byte 512 s + 16 lane + 4 i + b
//   sixes    bits 2.. of byte 512 (u + s) + 16 lane + 4 i + b of even u, of byte 2048 + 512 (u / 2) + 16 lane + 4 i + b where u is odd and s 0;
//            where both are odd, of the lowest two bits of those three bytes: three words make four with as few operations as can be
// Types with a fixed offset are kept as two's complement of their width, but for sixes, which are as files have them. Scales
// come last, by row. Floats: for step s (16 inputs), word i (row g + 8 (i % 2), inputs 8 (i / 2) + 2 t..): 16 bits at 512 s + 16 lane + 4 i, 32 bits at
// 1024 s + 512 (i / 2) + 16 lane + 8 (i % 2).
#pragma once
#include "arch.h"

// Types by their number in GGUF files.
constexpr u32 F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
              Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, BF16 = 30;

constexpr u32 TILE_ROWS = 16;

DEVICE constexpr bool is_float(u32 type) { return type == F32 || type == F16 || type == BF16; }
// One scale for 256 inputs, and integer sub-scales.
DEVICE constexpr bool is_by256(u32 type) { return (type >= Q2_K && type <= Q6_K) || type == IQ4_XS; }
DEVICE constexpr u32 bits_of(u32 type) {
    return type == F32 ? 32 : is_float(type) ? 16 : type == Q8_0 ? 8 : type == Q6_K ? 6
        : type == Q5_0 || type == Q5_1 || type == Q5_K ? 5 : type == Q3_K ? 3 : type == Q2_K ? 2 : 4;
}
DEVICE constexpr u32 tile_cols(u32 type) { return is_by256(type) ? 256 : 64; }
DEVICE constexpr u32 quant_bytes(u32 type) { return bits_of(type) * TILE_ROWS * tile_cols(type) / 8; }
DEVICE constexpr bool has_sixes(u32 type) { return bits_of(type) == 6; }
DEVICE constexpr bool has_nibbles(u32 type) { return bits_of(type) == 4 || bits_of(type) == 5; }
DEVICE constexpr bool has_pairs(u32 type) { return bits_of(type) == 2 || bits_of(type) == 3; }
DEVICE constexpr bool has_bits(u32 type) { return bits_of(type) == 3 || bits_of(type) == 5; }
// Where the second plane begins, or the sixes of odd units.
DEVICE constexpr u32 second_plane(u32 type) { return has_nibbles(type) || has_sixes(type) ? 8 * tile_cols(type) : 4 * tile_cols(type); }
// Scales of a row, and where those of the second kind begin.
DEVICE constexpr u32 sub_bytes(u32 type) { return type == IQ4_XS ? 8 : is_by256(type) ? 16 : 0; }
DEVICE constexpr bool has_min(u32 type) { return type == Q4_1 || type == Q5_1 || type == Q2_K || type == Q4_K || type == Q5_K; }
DEVICE constexpr u32 scales_at(u32 type) { return quant_bytes(type) + TILE_ROWS * sub_bytes(type); }
DEVICE constexpr u32 scale_bytes(u32 type) {
    return is_float(type) || type == Q4_K || type == Q5_K ? 0 : !is_by256(type) ? (has_min(type) ? 8 : 4) : type == Q2_K ? 4 : 2;
}
DEVICE constexpr u32 tile_bytes(u32 type) { return scales_at(type) + TILE_ROWS * scale_bytes(type); }
// Two's complement: the highest bit of a file's quants is turned.
DEVICE constexpr bool is_signed(u32 type) { return type == Q4_0 || type == Q5_0 || type == Q6_K || type == Q3_K; }
// Kept at the top of a byte where signed, so that the byte is the value times a power of two.
DEVICE constexpr u32 shift_of(u32 type) { return is_signed(type) ? 8 - bits_of(type) : 0; }
// Bytes of a quant block in a file, and its inputs.
DEVICE constexpr u32 block_cols(u32 type) { return is_float(type) ? 1 : is_by256(type) ? 256 : 32; }
DEVICE constexpr u32 block_bytes(u32 type) {
    return is_float(type) ? bits_of(type) / 8
        : type == Q4_0 || type == IQ4_NL ? 18 : type == Q4_1 ? 20 : type == Q5_0 ? 22 : type == Q5_1 ? 24 : type == Q8_0 ? 34
        : type == Q2_K ? 84 : type == Q3_K ? 110 : type == Q4_K ? 144 : type == Q5_K ? 176 : type == Q6_K ? 210 : 136;
}

// Values of IQ4 nibbles.
CONSTANT_TABLE u32 IQ4_TABLE[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
