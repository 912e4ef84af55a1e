// The products of matmul.cu for a row by itself and matrices so small that a block's weights are all in shared memory when its row
// comes: to the bit the same.
//
// TYPES, GATED, WARPS, RESIDENT, SLICES_OF_PIECE, ONE_JOB and CLUSTER are what they are there. NORMED: the row is. ONE_TILE: a piece has
// one tile at most.
#ifndef TYPES
#define TYPES (1 << 12)
#define GATED 0
#define WARPS 16
#define RESIDENT 1
#define SLICES_OF_PIECE 2
#define ONE_JOB 1
#define CLUSTER 1
#define NORMED 1
#define ONE_TILE 1
#endif
#define KEPT 1
#define COLUMN_TILES 1
#include "held.h"
#include "matmul.h"

struct RowArgs {
    Work work;
    // Bytes of a warp's weights, and sixteens of rows of a block, at most.
    u32 warp_bytes, sixteens;
};

// Number `at` of the outputs of 16 rows `first..`; null: none.
DEVICE float* output_of(const Work& work, u32 first, u32 at) {
    u32 sixteen = first + at / TILE_ROWS;
    const Job& job = work.jobs[job_of(work, sixteen, 0)];
    u32 row = (sixteen - job.first_block) * TILE_ROWS + at % TILE_ROWS;
    return row < job.rows ? job.out + row : nullptr;
}

#if CLUSTER > 1 && (ON_HOST || (ON_CUDA && __CUDA_ARCH__ >= 900))
KERNEL_CLUSTERED(matmul_row, RowArgs, THREADS, RESIDENT, CLUSTER) {
#else
KERNEL_AHEAD(matmul_row, RowArgs, THREADS, RESIDENT) {
#endif
    let_next_start();
    DYNAMIC_SHARED(shared);
    SHARED RowNorm norm;
    const Work& work = args.work;
    u32 place = place_of_block(work), warp = warp_index(), first = 0, last = 0;
#pragma unroll 1
    for (u32 i = 0; i < 2; i++) {
        first = last;
        last = first_of_block(work, place + i);
    }
    u32 count = last - first, pieces = count * PIECES;
    // Of all pieces: weights, warp by warp, sums, and what there is to know; then the row.
    const u8* tiles = shared + warp * args.warp_bytes;
    float* slots = reinterpret_cast<float*>(shared + WARPS * args.warp_bytes);
    Held* held = reinterpret_cast<Held*>(slots + args.sixteens * PIECES * TILE_ROWS);
    Activations x = forms_at(reinterpret_cast<u8*>(held + args.sixteens * PIECES), work.cols, BY_256, BY_32, FLOATS);
    u8* to = shared + warp * args.warp_bytes;
#pragma unroll 1
    for (u32 number = warp; number < pieces; number += WARPS) {
        u32 job = 0, bytes;
        const u8* from;
        Piece found = piece_of(work, first * PIECES + number, job);
        Held piece = {found.type, found.from, found.middle, found.to};
        visit_type<PieceBytes>(piece.type, work, work.jobs[job], found, from, bytes);
        visit_type<CopyHeld>(piece.type, piece, from, to);
        if (lane_index() == 0) held[number] = piece;
    }
    commit_copies();
    float* own = nullptr;
    float before = 0.0f;
    if (thread_index() < count * TILE_ROWS) own = output_of(work, first, thread_index());
    OwnRow<NORMED, WARPS> row(work.gamma, work.cols);
    wait_for_inputs();

    row.put(work.row, work.cols, x, norm);
    // Nobody waits for it, who would behind the sums.
    if (adds(work) && own) before = *own;
    sync_threads();
    if (NORMED && warp == WARPS - 1) put_factor(norm, work.cols, work.eps);
    wait_copies<0>();
    sync_warp();
#pragma unroll 1
    for (u32 number = warp; number < pieces; number += WARPS) {
        const Held& piece = held[number];
        float* slot = slots + number * TILE_ROWS;
        visit_type<MultiplyHeld<ONE_TILE>>(piece.type, piece, tiles, x, slot);
    }
    sync_threads();
    if (!own) return;
    const float* part = slots + thread_index() / TILE_ROWS * PIECES * TILE_ROWS + thread_index() % TILE_ROWS;
    float sums[2], factor = NORMED ? norm.factor : 1.0f;
#pragma unroll
    for (u32 m = 0; m < PIECES / OF_MATRIX; m++)
        sums[m] = multiply(factor, add_pieces<OF_MATRIX>([&](u32 k) { return part[(m * OF_MATRIX + k) * TILE_ROWS]; }));
    float value = GATED ? silu(sums[0]) * sums[GATED] : sums[0];
    *own = adds(work) ? before + value : value;
}
