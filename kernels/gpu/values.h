// Values of tiles, one by one.
#pragma once
#include "weights.h"

DEVICE u32 nibble(u8 byte, u32 high) { return high ? byte >> 4 : byte & 15; }
DEVICE u16 half_at(const u8* at) { return *reinterpret_cast<const u16*>(at); }

// The value of a row and an input of a tile.
DEVICE float value_at(u32 type, const u8* tile, u32 row, u32 col) {
    if (is_float(type)) {
        u32 lane = 4 * (row % 8) + col % 8 / 2, high = col % 16 / 8, low = row / 8;
        if (type == F32) return *reinterpret_cast<const float*>(tile + 1024 * (col / 16) + 512 * high + 16 * lane + 8 * low + 4 * (col % 2));
        u16 half = half_at(tile + 512 * (col / 16) + 16 * lane + 8 * high + 4 * low + 2 * (col % 2));
        return type == F16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
    u32 unit = col / 64, sub = col % 64 / 32, lane = 4 * (row % 8) + col % 16 / 4, word = col % 32 / 16 * 2 + row / 8, byte = col % 4;
    u32 bits = bits_of(type);
    const u8* second = tile + second_plane(type);
    const u8* pairs = tile + 512 * (unit / 2) + 16 * lane + 4 * (unit % 2 * 2 + sub) + byte;
    i32 q;
    if (bits == 8) q = (i8)tile[512 * sub + 16 * lane + 4 * word + byte];
    else if (has_sixes(type)) {
        u32 at = 16 * lane + 4 * word + byte, which = unit % 2 * 2 + sub, even = unit / 2 * 1024;
        const u8 *first = tile + even + at, *third = second + unit / 2 * 512 + at;
        q = which < 3 ? (which == 2 ? *third : first[512 * which]) >> 2 : (first[0] & 3) | (first[512] & 3) << 2 | (*third & 3) << 4;
    } else if (bits < 4) q = *pairs >> (2 * word) & 3;
    else q = nibble(tile[512 * unit + 16 * lane + 4 * word + byte], sub);
    if (has_bits(type)) {
        u32 units = tile_cols(type) / 64;
        q |= (second[4 * units * lane + 4 * unit + byte] >> (4 * sub + word) & 1) << (bits - 1);
    }
    if (type == IQ4_NL || type == IQ4_XS) q = (i8)(IQ4_TABLE[q / 4] >> (8 * (q % 4)));
    if (is_signed(type)) q = (has_sixes(type) ? q : q ^ (1 << (bits - 1))) - (1 << (bits - 1));
    const u8* scales = tile + scales_at(type) + row * scale_bytes(type);
    const u8* subs = tile + quant_bytes(type) + row * sub_bytes(type);
    if (!is_by256(type)) {
        const u8* at = tile + scales_at(type) + 4 * row + 2 * sub;
        float d = f16_to_f32(half_at(at));
        return has_min(type) ? d * q + f16_to_f32(half_at(at + 64)) : d * q;
    }
    if (type == Q4_K || type == Q5_K) {
        u32 j = col / 32, scale, min;
        if (j < 4) {
            scale = subs[4 + j] & 63;
            min = subs[8 + j] & 63;
        } else {
            scale = (subs[8 + j] & 15) | subs[j] >> 6 << 4;
            min = subs[8 + j] >> 4 | subs[4 + j] >> 6 << 4;
        }
        return f16_to_f32(half_at(subs)) * (float)scale * q - f16_to_f32(half_at(subs + 2)) * (float)min;
    }
    float d = f16_to_f32(half_at(scales));
    if (type == Q2_K) {
        u32 scale = subs[col / 16];
        return d * (float)(scale & 15) * q - f16_to_f32(half_at(scales + 2)) * (float)(scale >> 4);
    }
    return d * (float)(i8)subs[type == IQ4_XS ? col / 32 : col / 16] * q;
}
// The same of a matrix.
DEVICE float value_of(u32 type, const u8* tiles, u32 tiles_per_row, u32 row, u32 col) {
    u32 cols = tile_cols(type);
    const u8* tile = tiles + ((u64)(row / TILE_ROWS) * tiles_per_row + col / cols) * tile_bytes(type);
    return value_at(type, tile, row % TILE_ROWS, col % cols);
}
