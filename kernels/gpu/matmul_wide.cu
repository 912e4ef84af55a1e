// What matmul.cu computes, to the bit, for more rows of x than one column tile.
//
// Weights and columns pass through STAGES stages of shared memory, so that a block's warps share what is read, and none waits for
// memory. TYPES: bit mask of the types in use.
#ifndef TYPES
#define TYPES (1 << 12)
#define COLUMN_TILES 3
#define ROW_WARPS 8
#define COLUMN_WARPS 1
#define STAGES 3
#define RESIDENT 2
#endif
#define AT_ONCE COLUMN_TILES
#define EARLY_OUTPUTS (COLUMN_TILES <= 4)
#define HOLDS_SUMS 0
#define SHARED_PLACES 1
#define CUTS 1
#include "wide.h"

// Of 16 rows, that are asked for as far as L2 before the activations are there.
constexpr u32 AHEAD_BYTES = 6 << 10;
// Where the weights and columns of a unit of work lie, and how they pass through a stage.
template <u32 T> struct Stream {
    // Tiles of 256 inputs at a time, of 64 where columns take much room.
    static constexpr u32 COLS = tile_cols(T), STEP = is_float(T) ? 1 : 256 / COLS;
    static constexpr u32 BLOCK = form_bytes(T);
    static constexpr u32 ROW_BYTES = STEP * tile_bytes(T), COLUMN_BYTES = STEP * BLOCK;
    static constexpr u32 STAGE_BYTES = ROW_WARPS * ROW_BYTES + BLOCK_COLUMN_TILES * COLUMN_BYTES;
    // What this lane copies of the next step: of its warp's rows, and of the column tile of its warp's number. In 16 bytes, and
    // for no rows NONE: registers are for sums.
    static constexpr u32 NONE = ~0u;
    u32 row, column;

    // From tile `k` of `tiles` on.
    DEVICE_MEMBER Stream(const Unit& unit, u32 tiles, u32 k) {
        u32 row_tile = unit.first_row / TILE_ROWS + warp_index() % ROW_WARPS;
        row = row_tile * TILE_ROWS < unit.rows ? (row_tile * tiles + k) * (tile_bytes(T) / 16) + row_lane() : NONE;
        column = ((unit.column_block * BLOCK_COLUMN_TILES + warp_index()) * tiles + k) * (BLOCK / 16) + lane_index();
    }

    // Among the warps of the same rows.
    static DEVICE_MEMBER u32 row_lane() { return warp_index() / ROW_WARPS * LANES + lane_index(); }

    // Begin to copy `count` tiles and go on to the next.
    DEVICE_MEMBER void copy_rows(const u8* weights, SharedPlace stage, u32 count) {
        if (row == NONE) return;
        SharedPlace to = stage + warp_index() % ROW_WARPS * ROW_BYTES + 16 * row_lane();
        const u8* from = weights + 16 * (u64)row;
        u32 pieces = STEP == 1 ? ROW_BYTES / 16 : count * (tile_bytes(T) / 16);
#pragma unroll
        for (u32 at = 0; at < ROW_BYTES / 16; at += COLUMN_WARPS * LANES)
            if (at + row_lane() < pieces) copy_async(to + 16 * at, from + 16 * at);
        row += ROW_BYTES / 16;
    }
    // Asks for what comes next, of `left` bytes.
    DEVICE_MEMBER void prefetch_rows(const u8* weights, u32 left) const {
        if (row != NONE && row_lane() == 0) prefetch(weights + 16 * (u64)row, smaller(AHEAD_BYTES, left));
    }
    DEVICE_MEMBER void copy_columns(const WideArgs& args, u32 tiles, SharedPlace stage, u32 count) {
        u32 pieces = STEP == 1 ? COLUMN_BYTES / 16 : count * (BLOCK / 16);
#pragma unroll
        for (u32 ct = 0; ct < BLOCK_COLUMN_TILES; ct += ROW_WARPS * COLUMN_WARPS) {
            if (ct + warp_index() >= BLOCK_COLUMN_TILES) continue;
            SharedPlace to = stage + ROW_WARPS * ROW_BYTES + (ct + warp_index()) * COLUMN_BYTES + 16 * lane_index();
            const u8* from = form_of<T>(args.x) + 16 * (u64)(column + ct * tiles * (BLOCK / 16));
#pragma unroll
            for (u32 at = 0; at < COLUMN_BYTES / 16; at += LANES)
                if (at + lane_index() < pieces) copy_async(to + 16 * at, from + 16 * at);
        }
        column += COLUMN_BYTES / 16;
    }

    DEVICE_MEMBER void multiply(const u8* stage, u32 count, Sums& acc) const {
        const u8* weights = stage + warp_index() % ROW_WARPS * ROW_BYTES;
        Columns columns;
        columns.stride = COLUMN_BYTES;
        columns.at = stage + ROW_WARPS * ROW_BYTES + warp_index() / ROW_WARPS * COLUMN_TILES * COLUMN_BYTES;
        columns.count = COLUMNS;
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            multiply_tile<T>(weights + i * tile_bytes(T), columns, acc);
            columns.at += BLOCK;
        }
    }
};

// Of shared memory for sums.
DEVICE u32 waiting_bytes(const WideArgs& args) { return args.whole_blocks > 0 || args.splits < SLICES ? SUM_WORDS * sizeof(Vec4f) : 0; }

// The sums of one matrix of a unit of work.
template <u32 T> DEVICE void multiply_unit(const WideArgs& args, const Unit& unit, u32 matrix, u8* shared, Sums& acc) {
    using S = Stream<T>;
    u8* stages = shared + waiting_bytes(args);
    SharedPlace places = shared_place(stages);
    u32 slices = SLICES / unit.splits, first = unit.split * slices;
    u32 tiles = (args.cols + S::COLS - 1) / S::COLS, slot = 0;
    u32 k = slice_start(first, args.cols, 256 / S::COLS, tiles), end = slice_start(first + slices, args.cols, 256 / S::COLS, tiles);
    S stream(unit, tiles, k);
    // Weights are nobody's result: they are on their way before the activations are there.
#pragma unroll 1
    for (u32 i = 0; i < STAGES - 1; i++)
        if (k + i * S::STEP < end) stream.copy_rows(unit.weights[matrix], places + i * S::STAGE_BYTES, smaller(S::STEP, end - k - i * S::STEP));
    u32 copied = k + (STAGES - 1) * S::STEP;
    if (unit.number == block_x() && copied < end) stream.prefetch_rows(unit.weights[matrix], (end - copied) * tile_bytes(T));
    wait_for_inputs();
#pragma unroll 1
    for (u32 i = 0; i < STAGES - 1; i++) {
        if (k + i * S::STEP < end) stream.copy_columns(args, tiles, places + i * S::STAGE_BYTES, smaller(S::STEP, end - k - i * S::STEP));
        commit_copies();
    }
    Sums held;
#pragma unroll 1
    for (u32 s = 0; s < slices; s++) {
        u32 to = slice_start(first + s + 1, args.cols, 256 / S::COLS, tiles);
#pragma unroll
        for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) acc[ct][i] = 0.0f;
#pragma unroll 1
        for (; k < to; k += S::STEP) {
            wait_copies<STAGES - 2>();
            sync_threads();
            u32 ahead = k + (STAGES - 1) * S::STEP, used = slot == 0 ? STAGES - 1 : slot - 1;
            if (ahead < end) {
                stream.copy_rows(unit.weights[matrix], places + used * S::STAGE_BYTES, smaller(S::STEP, end - ahead));
                stream.copy_columns(args, tiles, places + used * S::STAGE_BYTES, smaller(S::STEP, end - ahead));
            }
            commit_copies();
            stream.multiply(stages + slot * S::STAGE_BYTES, smaller(S::STEP, end - k), acc);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        meet_slices(unit, shared, s, slices, held, acc);
    }
    // What is left there has been used.
    sync_threads();
}

struct Multiply {
    template <u32 T> static DEVICE_MEMBER void of(const WideArgs& args, const Unit& unit, u32 matrix, u8* shared, Sums& acc) {
        multiply_unit<T>(args, unit, matrix, shared, acc);
    }
};

KERNEL_AHEAD(matmul_wide, WideArgs, THREADS, RESIDENT) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    SHARED Unit unit;
#pragma unroll 1
    for (u32 number = block_x(); number < args.units; number = unit.number + grid_x()) {
        sync_threads();
        if (thread_index() == 0) find_unit(args, number, unit);
        sync_threads();
        Sums acc;
        // If it is whole, both matrices in turn.
        u32 last = unit.splits == 1 ? args.matrices - 1 : unit.matrix;
#pragma unroll 1
        for (u32 m = unit.matrix; m <= last; m++) {
            visit_type<Multiply>(unit.types[m], args, unit, m, shared, acc);
            if (m < last) store_sums(sums_at<OF_FIRST_MATRIX>(unit, shared), acc);
        }
        put_out(args, unit, shared, factors_of(args, unit), acc);
    }
}
