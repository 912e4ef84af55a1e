// y[n, r] = sum over k of W[r, k] x[n, k], for matrices of every type and up to 8 rows of x; matmul_wide.cu is for more.
//
// A warp multiplies 16 rows of W by 8 rows of x (columns here); products.h has the order of additions. A thread block:
// ROW_WARPS x 8 warps; slices beside each other, then rows. Grid: row blocks of all jobs. GATED: the rows of two matrices alternate among the row warps, and silu(first) * second is stored.
// TYPES: bit mask of the types in use.
#ifndef TYPES
#define TYPES (1 << 12)
#define ROW_WARPS 1
#define GATED 0
#endif
#define COLUMN_TILES 1
#include "products.h"

constexpr u32 THREADS = ROW_WARPS * SLICES * LANES;
constexpr u32 MATRICES = GATED ? 2 : 1;
constexpr u32 BLOCK_ROWS = ROW_WARPS / MATRICES * TILE_ROWS;

struct MatmulArgs {
    Job jobs[MAX_JOBS];
    Activations x;
    u32 num_jobs;
    u32 cols;
    // N.
    u32 num_rows;
    // Add to `out`.
    u32 accumulate;
};

// Adds a slice of 16 rows to `acc`; `weights`: the tiles of these rows.
template <u32 T> DEVICE void multiply_slice(const MatmulArgs& args, const u8* weights, u32 slice, Sums& acc) {
    constexpr u32 COLS = tile_cols(T), BLOCK = is_float(T) ? BYTES_FLOAT : is_by256(T) ? BYTES_256 : BYTES_32;
    u32 tiles = (args.cols + COLS - 1) / COLS;
    u32 from = slice_start(slice, args.cols, COLS, tiles), to = slice_start(slice + 1, args.cols, COLS, tiles);
    if (from >= to) return;
    const u8* x = is_float(T) ? args.x.floats : is_by256(T) ? args.x.by256 : args.x.by32;
    Columns columns;
    columns.stride = 0;
    columns.at = x + (u64)from * BLOCK;
    columns.count = args.num_rows;
    weights += (u64)from * tile_bytes(T);
    // Weights are nobody's result: they are on their way before the activations are there.
    if (lane_index() == 0) prefetch(weights, (to - from) * tile_bytes(T));
    Tile<T> next;
    next.load(weights);
    wait_for_inputs();
    for (u32 k = from; k < to; k++) {
        Tile<T> tile = next;
        weights += tile_bytes(T);
        if (k + 1 < to) next.load(weights);
        if constexpr (is_float(T)) multiply_floats<T>(tile, columns, acc);
        else if constexpr (is_by256(T)) multiply_by256<T>(tile, columns, acc);
        else multiply_by32<T>(tile, columns, acc);
        columns.at += BLOCK;
    }
}

template <u32 T> DEVICE void multiply_if(const MatmulArgs& args, u32 type, const u8* weights, u32 row_tile, u32 slice, Sums& acc) {
    if constexpr ((TYPES >> T & 1) != 0) {
        if (type == T) {
            u32 tiles = (args.cols + tile_cols(T) - 1) / tile_cols(T);
            multiply_slice<T>(args, weights + (u64)row_tile * tiles * tile_bytes(T), slice, acc);
        }
    }
}

// Sums of a warp, [4][lane].
constexpr u32 SLOT = 4 * LANES;

KERNEL_AHEAD(matmul, MatmulArgs, THREADS) {
    SHARED float slots[ROW_WARPS * SLICES * SLOT];
    u32 j = 0;
    while (j + 1 < args.num_jobs && block_x() >= args.jobs[j + 1].first_block) j++;
    const Job& job = args.jobs[j];
    u32 slice = warp_index() % SLICES, row_warp = warp_index() / SLICES;
    u32 matrix = row_warp % MATRICES, first_row = (block_x() - job.first_block) * BLOCK_ROWS;
    u32 row_tile = first_row / TILE_ROWS + row_warp / MATRICES;
    if (row_tile * TILE_ROWS < job.rows) {
        const u8* weights = job.weights[matrix];
        u32 type = job.types[matrix];
        Sums acc = {};
        multiply_if<F32>(args, type, weights, row_tile, slice, acc);
        multiply_if<F16>(args, type, weights, row_tile, slice, acc);
        multiply_if<BF16>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q4_0>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q4_1>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q5_0>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q5_1>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q8_0>(args, type, weights, row_tile, slice, acc);
        multiply_if<IQ4_NL>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q2_K>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q3_K>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q4_K>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q5_K>(args, type, weights, row_tile, slice, acc);
        multiply_if<Q6_K>(args, type, weights, row_tile, slice, acc);
        multiply_if<IQ4_XS>(args, type, weights, row_tile, slice, acc);
#pragma unroll
        for (u32 i = 0; i < 4; i++) slots[warp_index() * SLOT + i * LANES + lane_index()] = acc[0][i];
    }
    wait_for_inputs();
    sync_threads();
    for (u32 at = thread_index(); at < BLOCK_ROWS * COLUMNS; at += THREADS) {
        u32 r = at % BLOCK_ROWS, c = at / BLOCK_ROWS, row = first_row + r;
        if (row >= job.rows || c >= args.num_rows) continue;
        float sums[MATRICES];
        for (u32 m = 0; m < MATRICES; m++) {
            u32 warp = (r / TILE_ROWS * MATRICES + m) * SLICES;
            u32 i = r % TILE_ROWS / 8 * 2 + c % 2, from = 4 * (r % 8) + c / 2;
            const float* part = slots + warp * SLOT + i * LANES + from;
            float parts[SLICES];
#pragma unroll
            for (u32 k = 0; k < SLICES; k++) parts[k] = part[k * SLOT];
#pragma unroll
            for (u32 width = 1; width < SLICES; width *= 2)
#pragma unroll
                for (u32 k = 0; k < SLICES; k += 2 * width) parts[k] += parts[k + width];
            sums[m] = parts[0];
        }
        float value = sums[0];
        if (GATED) value = silu(sums[0]) * sums[MATRICES - 1];
        float* to = job.out + (u64)c * job.rows + row;
        *to = args.accumulate ? *to + value : value;
    }
}
