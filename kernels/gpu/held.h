// A row by itself beside weights that lie in shared memory when it comes. What is passed through from then on is what a launch takes:
// instructions that are passed through once come at less than half of the chip's speed, so it is kept short, and what can be found out
// before is.
//
// A piece is 16 rows of a matrix by one slice of the inputs or two.
#pragma once
#include "activate.h"
#include "products.h"

struct Held {
    u32 type;
    // Tiles from..to, in slices that meet at `middle`.
    u32 from, middle, to;
};

// Begins to copy a piece's tiles, one after another; all lanes of a warp. `to` goes on to where the next may lie.
struct CopyHeld {
    template <u32 T> static DEVICE_MEMBER void of(const Held& piece, const u8* from, u8*& to) {
        u32 bytes = (piece.to - piece.from) * tile_bytes(T);
        SharedPlace place = shared_place(to);
#pragma unroll 4
        for (u32 at = 16 * lane_index(); at < bytes; at += 16 * LANES) copy_async(place + at, from + at);
        to += bytes;
    }
};
// A piece's sums, by row; `tiles` goes on to what lies behind. HAS_ONE: it has one tile at most.
template <bool HAS_ONE> struct MultiplyHeld {
    template <u32 T> static DEVICE_MEMBER void of(const Held& piece, const u8*& tiles, const Activations& x, float* slot) {
        Columns columns = {form_of<T>(x) + piece.from * form_bytes(T), 0, 1};
        float own[2] = {0.0f, 0.0f};
        if constexpr (HAS_ONE) {
            Sums sums = {};
            if (piece.from < piece.to) {
                multiply_tile<T>(tiles, columns, sums);
                tiles += tile_bytes(T);
            }
            for (u32 i = 0; i < 2; i++) own[i] = sums[0][2 * i];
        } else {
#pragma unroll 1
            for (u32 k = piece.from; k < piece.to;) {
                bool is_first = k == piece.from;
                u32 to = k < piece.middle ? piece.middle : piece.to;
                Sums sums = {};
                // Side by side, as far as there are registers.
                if constexpr (T == BF16)
                    for (; k + 4 <= to; k += 4, tiles += 4 * tile_bytes(T), columns.at += 4 * form_bytes(T))
                        multiply_floats<T, 4>({tiles, tiles + tile_bytes(T), tiles + 2 * tile_bytes(T), tiles + 3 * tile_bytes(T)}, columns, sums);
#pragma unroll 1
                for (; k < to; k++, tiles += tile_bytes(T), columns.at += form_bytes(T)) multiply_tile<T>(tiles, columns, sums);
                for (u32 i = 0; i < 2; i++) own[i] = is_first ? sums[0][2 * i] : own[i] + sums[0][2 * i];
            }
        }
        if (lane_index() % 4 != 0) return;
        slot[lane_index() / 4] = own[0];
        slot[lane_index() / 4 + 8] = own[1];
    }
};

// The sum of a row's COUNT pieces, of which `sum` gives each.
template <u32 COUNT, typename Sum> DEVICE float add_pieces(const Sum& sum) {
    float parts[COUNT];
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) parts[k] = sum(k);
    return add_slices(parts);
}

// A row that a block of OF_BLOCK warps makes ready for itself, a warp 256 of its inputs. Where it is normed and there are warps enough,
// others add up the squares.
template <bool HAS_NORM, u32 OF_BLOCK> struct OwnRow {
    u32 block;
    bool is_rounded, is_added_up;
    float gamma[OWN];

    // Rows that are read by 256 inputs have whole ones: nobody need look whether an input is there.
    static DEVICE_MEMBER u32 end_of(u32 cols) { return BY_256 ? 0xffffffffu : cols; }
    // Before it is there.
    DEVICE_MEMBER OwnRow(const float* weights, u32 cols) : block(warp_index()), is_rounded(true), is_added_up(HAS_NORM), gamma{} {
        u32 blocks = (cols + 255) / 256;
        if (HAS_NORM && 2 * blocks <= OF_BLOCK) {
            is_rounded = block < blocks;
            is_added_up = !is_rounded;
            if (is_added_up) block -= blocks;
        }
        if (block >= blocks) is_rounded = is_added_up = false;
        if (HAS_NORM && is_rounded) load_block({weights, end_of(cols), true}, block, gamma);
    }
    DEVICE_MEMBER void put(const float* row, u32 cols, const Activations& to, RowNorm& norm) {
        float v[OWN];
        if (!is_rounded && !is_added_up) return;
        load_block({row, end_of(cols), true}, block, v);
        if (is_added_up) put_squares(norm, block, v);
        if (!is_rounded) return;
        // Which forms there are is a matter of types, which a compiler does not find in addresses.
        if ((BY_256 && !to.by256) || (BY_32 && !to.by32) || (FLOATS && !to.floats)) __builtin_unreachable();
        if (HAS_NORM) scale(v, gamma);
        put_forms(to, 0, cols, block, {1, FORM_TERMS, 0}, v);
    }
};
