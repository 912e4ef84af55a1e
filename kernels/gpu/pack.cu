// From a file's quant blocks to tiles, and from tiles to values. Nothing is rounded on the way.
#include "values.h"

// Rows of a file's bytes that become whole rows of tiles; rows that are missing in the last one count as zeros.
struct PackArgs {
    const u8* source;
    u8* tiles;
    u64 row_bytes;
    u32 type, rows, cols, tiles_per_row;
};

// A row's quant block, or null where there is none.
DEVICE const u8* block_at(const PackArgs& args, u32 row, u32 index) {
    if (row >= args.rows || index * block_cols(args.type) >= args.cols) return nullptr;
    return args.source + row * args.row_bytes + (u64)index * block_bytes(args.type);
}

// Integer `k` of a block as it is kept.
DEVICE u32 quant(u32 type, const u8* b, u32 k) {
    switch (type) {
        case Q4_0: return nibble(b[2 + k % 16], k / 16) ^ 8;
        case IQ4_NL: return nibble(b[2 + k % 16], k / 16);
        case Q4_1: return nibble(b[4 + k % 16], k / 16);
        case Q5_0: return (nibble(b[6 + k % 16], k / 16) | (b[2 + k / 8] >> (k % 8) & 1) << 4) ^ 16;
        case Q5_1: return nibble(b[8 + k % 16], k / 16) | (b[4 + k / 8] >> (k % 8) & 1) << 4;
        case Q8_0: return b[2 + k];
        case Q4_K: return nibble(b[16 + 32 * (k / 64) + k % 32], k / 32 % 2);
        case Q5_K: return nibble(b[48 + 32 * (k / 64) + k % 32], k / 32 % 2) | (b[16 + k % 32] >> (k / 32) & 1) << 4;
        case Q6_K: {
            u32 part = k % 128 / 32;
            u32 low = nibble(b[64 * (k / 128) + 32 * (part % 2) + k % 32], part / 2);
            return low | (b[128 + 32 * (k / 128) + k % 32] >> (2 * part) & 3) << 4;
        }
        case Q2_K: return b[16 + 32 * (k / 128) + k % 32] >> (2 * (k % 128 / 32)) & 3;
        case Q3_K:
            return ((b[32 + 32 * (k / 128) + k % 32] >> (2 * (k % 128 / 32)) & 3) | (b[k % 32] >> (k / 32) & 1) << 2) ^ 4;
        default: return nibble(b[8 + 16 * (k / 32) + k % 16], k / 16 % 2);
    }
}

// Byte `at` of the sub-scales of a block.
DEVICE u8 sub_scale(u32 type, const u8* b, u32 at) {
    switch (type) {
        case Q6_K: return b[192 + at];
        case Q3_K: return (u8)((nibble(b[96 + at % 8], at / 8) | (b[104 + at % 4] >> (2 * (at / 4)) & 3) << 4) - 32);
        case IQ4_XS: return (u8)((nibble(b[4 + at / 2], at % 2) | (b[2 + at / 4] >> (2 * (at % 4)) & 3) << 4) - 32);
        default: return b[at];
    }
}

// Where the scales of a block of 256 stand.
DEVICE u32 block_scale_at(u32 type) { return type == Q2_K ? 80 : type == Q3_K ? 108 : type == Q6_K ? 208 : 0; }

// Quant of row and input of a tile, as it is kept.
DEVICE u32 quant_at(const PackArgs& args, u32 row, u32 col) {
    u32 cols = block_cols(args.type);
    const u8* b = block_at(args, row, col / cols);
    return b ? quant(args.type, b, col % cols) : 0;
}

// Byte `at` of the quants of the tile that begins at row and col.
DEVICE u32 quant_byte(const PackArgs& args, u32 row, u32 col, u32 at) {
    u32 type = args.type, bits = bits_of(type), word = at % 16 / 4, byte = at % 4, lane = at % 512 / 16;
    u32 rest = at - second_plane(type);
    u32 value = 0;
    if (has_bits(type) && at >= second_plane(type)) {
        u32 units = tile_cols(type) / 64;
        lane = rest / (4 * units);
        u32 from = col + 64 * (rest / 4 % units) + 4 * (lane % 4) + byte;
        for (u32 i = 0; i < 8; i++)
            value |= (quant_at(args, row + lane / 4 + 8 * (i % 2), from + 32 * (i / 4) + 16 * (i / 2 % 2)) >> (bits - 1) & 1) << i;
    } else if (has_sixes(type)) {
        // Which of three, and of which two units.
        u32 which = at < second_plane(type) ? at / 512 % 2 : 2, units = at < second_plane(type) ? at / 1024 : rest / 512;
        u32 first = col + 128 * units + 16 * (word / 2) + 4 * (lane % 4) + byte;
        row += lane / 4 + 8 * (word % 2);
        // Its own, and what it has of the fourth one's.
#pragma unroll 1
        for (u32 i = 0; i < 2; i++) {
            u32 q = quant_at(args, row, first + 32 * (i == 0 ? which : 3));
            value |= i == 0 ? q << 2 : q >> (2 * which) & 3;
        }
    } else if (has_pairs(type) && at < second_plane(type)) {
        u32 first = col + 32 * (at / 512 * 4 + word) + 4 * (lane % 4) + byte;
        for (u32 i = 0; i < 4; i++) {
            u32 q = quant_at(args, row + lane / 4 + 8 * (i % 2), first + 16 * (i / 2));
            value |= (q & 3) << (2 * i);
        }
    } else {
        row += lane / 4 + 8 * (word % 2);
        u32 from = col + 16 * (word / 2) + 4 * (lane % 4) + byte;
        if (bits == 8) return quant_at(args, row, from + 32 * (at / 512));
        from += 64 * (at / 512);
        value = (quant_at(args, row, from) & 15) | (quant_at(args, row, from + 32) & 15) << 4;
    }
    return value;
}

// Byte `at` of what follows the quants.
DEVICE u32 scale_byte(const PackArgs& args, u32 row, u32 col, u32 at) {
    u32 type = args.type;
    if (!is_by256(type)) {
        const u8* b = block_at(args, row + at % 64 / 4, col / 32 + at % 4 / 2);
        return b ? b[2 * (at / 64) + at % 2] : 0;
    }
    u32 sub = sub_bytes(type), scale = scale_bytes(type);
    bool is_sub = at < TILE_ROWS * sub;
    if (!is_sub) at -= TILE_ROWS * sub;
    const u8* b = block_at(args, row + at / (is_sub ? sub : scale), col / 256);
    if (!b) return 0;
    return is_sub ? sub_scale(type, b, at % sub) : b[block_scale_at(type) + at % scale];
}

DEVICE u32 float_byte(const PackArgs& args, u32 row, u32 col, u32 at) {
    u32 bytes = block_bytes(args.type), lane = at % 512 / 16;
    u32 step = at / (256 * bytes), high, low;
    if (bytes == 2) {
        low = at % 8 / 4;
        high = at % 16 / 8;
    } else {
        low = at % 16 / 8;
        high = at % 1024 / 512;
    }
    u32 k = 16 * step + 8 * high + 2 * (lane % 4) + at / bytes % 2;
    const u8* b = block_at(args, row + lane / 4 + 8 * low, col + k);
    return b ? b[at % bytes] : 0;
}

// A thread block a tile, a thread a word at a time.
KERNEL(pack, PackArgs, 128) {
    u32 bytes = tile_bytes(args.type), quants = quant_bytes(args.type);
    u32 row = block_x() / args.tiles_per_row * TILE_ROWS, col = block_x() % args.tiles_per_row * tile_cols(args.type);
    u32* to = reinterpret_cast<u32*>(args.tiles + (u64)block_x() * bytes);
    for (u32 at = 4 * thread_index(); at < bytes; at += 4 * block_threads()) {
        u32 word = 0;
        for (u32 i = 0; i < 4; i++) {
            u32 byte = is_float(args.type) ? float_byte(args, row, col, at + i)
                : at < quants ? quant_byte(args, row, col, at + i) : scale_byte(args, row, col, at + i - quants);
            word |= byte << (8 * i);
        }
        to[at / 4] = word;
    }
}

// out[i] = table[ids[i]]; a thread block a row, on y 256 of its inputs.
struct EmbedArgs {
    const u8* tiles;
    const u32* ids;
    float* out;
    u32 type, rows, cols, tiles_per_row;
};

// What comes next may read the tables of its step before it waits, and so begins when what brought them, and the ids, has ended.
KERNEL_AHEAD(embed, EmbedArgs, 256, 1) {
    wait_for_inputs();
    let_next_start();
    u32 id = args.ids[block_x()], col = 256 * block_y() + thread_index();
    // An id that no table has is a mistake of the caller's; it must not read what is not there.
    if (id >= args.rows) id = 0;
    if (col >= args.cols || args.rows == 0) return;
    args.out[(u64)block_x() * args.cols + col] = value_of(args.type, args.tiles, args.tiles_per_row, id, col);
}
