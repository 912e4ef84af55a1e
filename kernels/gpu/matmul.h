// How the products of few rows are shared among thread blocks: each takes as many bytes of W as the others, but for 16 whole rows, and its warps
// take its pieces in turn: 16 rows of W by one slice of the inputs or two.
#pragma once
#include "activate.h"
#include "products.h"

constexpr u32 THREADS = WARPS * LANES;
// Of 16 rows of a matrix, and of all matrices whose rows belong together.
constexpr u32 OF_MATRIX = SLICES / SLICES_OF_PIECE, PIECES = (GATED ? 2 : 1) * OF_MATRIX;

struct Work {
    // Their blocks are 16 rows.
    Job jobs[MAX_JOBS];
    // 16 bytes of a job's 16 rows.
    u32 row_words[MAX_JOBS];
    // ONE_ROW: the row, of a multiple of 4 inputs, and what norms it (null: nothing).
    const float* row;
    const float* gamma;
    float eps;
    u32 num_jobs;
    u32 cols;
    // Add to `out`.
    u32 accumulate;
    // Words for a block of the grid; the first `extra` have one more.
    u32 share, extra;
    // Blocks of a multiprocessor, whose rows are neighbours.
    u32 beside, unused;
};

template <u32 T> constexpr u32 largest_tile() {
    if constexpr (T == 32) return 0;
    else return (TYPES >> T & 1) != 0 && tile_bytes(T) > largest_tile<T + 1>() ? tile_bytes(T) : largest_tile<T + 1>();
}
constexpr bool ONE_TYPE = (TYPES & (TYPES - 1)) == 0;
constexpr u32 least_type(u32 types) { return types & 1 ? 0 : 1 + least_type(types >> 1); }

// Gate and up are added to nothing.
DEVICE bool adds(const Work& work) { return !GATED && work.accumulate; }
DEVICE u32 jobs_of(const Work& work) { return ONE_JOB ? 1 : work.num_jobs; }
// Whose rows a sixteen is, from `job` on.
DEVICE u32 job_of(const Work& work, u32 sixteen, u32 job) {
    while (job + 1 < jobs_of(work) && sixteen >= work.jobs[job + 1].first_block) job++;
    return job;
}

// The first sixteen of rows, of all jobs', of a block.
DEVICE u32 first_of_block(const Work& work, u32 number) {
    u32 at = number * work.share + smaller(number, work.extra), all = 0;
    for (u32 j = 0; j < jobs_of(work); j++) {
        u32 sixteens = (work.jobs[j].rows + TILE_ROWS - 1) / TILE_ROWS, words = work.row_words[j];
        if (at <= sixteens * words) return all + (at + words - 1) / words;
        at -= sixteens * words;
        all += sixteens;
    }
    return all;
}

// A multiprocessor's blocks are, as far as is known, apart by the number of multiprocessors.
DEVICE u32 place_of_block(const Work& work) {
    u32 apart = grid_x() / work.beside;
    return block_x() % apart * work.beside + block_x() / apart;
}

// What a warp multiplies next: tiles `from..to` of 16 rows, in slices that meet at `middle`.
struct Piece {
    u32 sixteen, matrix, type;
    u32 from, middle, to;
};

// A warp has every WARPS-th of its block's.
DEVICE Piece piece_of(const Work& work, u32 number, u32& job) {
    Piece piece;
    piece.sixteen = number / PIECES;
    piece.matrix = number % PIECES / OF_MATRIX;
    job = job_of(work, piece.sixteen, job);
    piece.type = ONE_TYPE ? least_type(TYPES) : work.jobs[job].types[piece.matrix];
    bool by256 = is_by256(piece.type);
    u32 slice = number % OF_MATRIX * SLICES_OF_PIECE, of_256 = by256 ? 1 : 4, tiles = by256 ? (work.cols + 255) / 256 : (work.cols + 63) / 64;
    piece.from = slice_start(slice, work.cols, of_256, tiles);
    piece.middle = slice_start(slice + 1, work.cols, of_256, tiles);
    piece.to = slice_start(slice + SLICES_OF_PIECE, work.cols, of_256, tiles);
    return piece;
}

struct PieceBytes {
    template <u32 T> static DEVICE_MEMBER void of(const Work& work, const Job& job, const Piece& piece, const u8*& at, u32& bytes) {
        u32 tiles = (work.cols + tile_cols(T) - 1) / tile_cols(T);
        bytes = tile_bytes(T);
        at = job.weights[piece.matrix] + ((u64)(piece.sixteen - job.first_block) * tiles + piece.from) * tile_bytes(T);
    }
};
