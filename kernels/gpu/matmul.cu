// y[n, r] = sum over k of W[r, k] x[n, k], for matrices of every type and some rows of x; matmul_wide.cu is for more.
//
// A warp multiplies a piece: 16 rows of W by one slice of the inputs or two, with 8 COLUMN_TILES rows of x (columns here); products.h
// has the order of additions. Thread blocks are as many as run at a time. Each takes as many bytes of W as the others, but for 16 whole rows, and
// its warps take its pieces in turn. Weights come through a ring in shared memory that each warp has for itself: nobody waits for
// another until sums of pieces meet. Rings fill as soon as there is room for the block, be it that several kernels before this one have
// not ended: so memory is busy all the time.
// GATED: the rows of two matrices belong together, and silu(first) * second is stored. ONE_ROW: x is one row as it is, which
// every block norms and rounds for itself meanwhile. TYPES: bit mask of the types in use. STAGES: tiles of a ring.
// SLICES_OF_PIECE: 1 or 2. ROW_BLOCKS: of 256 inputs of the row, that a warp has at once. ONE_JOB: there is one job. CLUSTER: blocks of a
// cluster, which lie on neighbouring multiprocessors. Columns are read from L1, where warps find what others have read for rows beside theirs.
#ifndef TYPES
#define TYPES (1 << 12)
#define GATED 0
#define ONE_ROW 1
#define WARPS 16
#define STAGES 4
#define RESIDENT 1
#define SLICES_OF_PIECE 2
#define COLUMN_TILES 1
#define ROW_BLOCKS 4
#define ONE_JOB 0
#define CLUSTER 1
#endif
#define KEPT (ONE_ROW ? 1 : 8)
#include "activate.h"
#include "products.h"

constexpr u32 THREADS = WARPS * LANES;
// Of 16 rows of a matrix, and of all matrices whose rows belong together.
constexpr u32 OF_MATRIX = SLICES / SLICES_OF_PIECE, PIECES = (GATED ? 2 : 1) * OF_MATRIX;
// Sums of a piece: by row, or [column tile][4][lane].
constexpr u32 SLOT = ONE_ROW ? TILE_ROWS : COLUMN_TILES * 4 * LANES;

struct MatmulArgs {
    // Their blocks are 16 rows.
    Job jobs[MAX_JOBS];
    // 16 bytes of a job's 16 rows.
    u32 row_words[MAX_JOBS];
    Activations x;
    // ONE_ROW: the row, of a multiple of 4 inputs, and what norms it (null: nothing).
    const float* row;
    const float* gamma;
    // Otherwise: factors of normed rows (null: nothing), [N].
    const float* factors;
    float eps;
    u32 num_jobs;
    u32 cols;
    // N.
    u32 num_rows;
    // Add to `out`.
    u32 accumulate;
    // Words for a block of the grid; the first `extra` have one more.
    u32 share, extra;
    // Blocks of a multiprocessor, whose rows are neighbours.
    u32 beside;
    // Sixteens of rows whose sums wait for each other at a time.
    u32 round;
    // Stages that fill before the row is there.
    u32 early_stages;
};

template <u32 T> constexpr u32 largest_tile() {
    if constexpr (T == 32) return 0;
    else return (TYPES >> T & 1) != 0 && tile_bytes(T) > largest_tile<T + 1>() ? tile_bytes(T) : largest_tile<T + 1>();
}
constexpr u32 STAGE_BYTES = largest_tile<0>();
constexpr bool ONE_TYPE = (TYPES & (TYPES - 1)) == 0;
constexpr u32 without_least(u32 types) { return types & (types - 1); }
// Whether there are registers to keep where a thread's first output goes while the row is made ready: of three types there are not.
constexpr bool KEEPS_PLACE = without_least(without_least(TYPES)) == 0;
constexpr u32 least_type(u32 types) { return types & 1 ? 0 : 1 + least_type(types >> 1); }

// Gate and up are added to nothing.
DEVICE bool adds(const MatmulArgs& args) { return !GATED && args.accumulate; }
DEVICE u32 jobs_of(const MatmulArgs& args) { return ONE_JOB ? 1 : args.num_jobs; }
// Whose rows a sixteen is, from `job` on.
DEVICE u32 job_of(const MatmulArgs& args, u32 sixteen, u32 job) {
    while (job + 1 < jobs_of(args) && sixteen >= args.jobs[job + 1].first_block) job++;
    return job;
}

// The first sixteen of rows, of all jobs', of a block.
DEVICE u32 first_of_block(const MatmulArgs& args, u32 number) {
    u32 at = number * args.share + smaller(number, args.extra), all = 0;
    for (u32 j = 0; j < jobs_of(args); j++) {
        u32 sixteens = (args.jobs[j].rows + TILE_ROWS - 1) / TILE_ROWS, words = args.row_words[j];
        if (at <= sixteens * words) return all + (at + words - 1) / words;
        at -= sixteens * words;
        all += sixteens;
    }
    return all;
}

// What a warp multiplies next: tiles `from..to` of 16 rows, in slices that meet at `middle`.
struct Piece {
    u32 sixteen, matrix, type;
    u32 from, middle, to;
};

// A warp has every WARPS-th of its block's.
DEVICE Piece piece_of(const MatmulArgs& args, u32 number, u32& job) {
    Piece piece;
    piece.sixteen = number / PIECES;
    piece.matrix = number % PIECES / OF_MATRIX;
    job = job_of(args, piece.sixteen, job);
    piece.type = ONE_TYPE ? least_type(TYPES) : args.jobs[job].types[piece.matrix];
    bool by256 = is_by256(piece.type);
    u32 slice = number % OF_MATRIX * SLICES_OF_PIECE, of_256 = by256 ? 1 : 4, tiles = by256 ? (args.cols + 255) / 256 : (args.cols + 63) / 64;
    piece.from = slice_start(slice, args.cols, of_256, tiles);
    piece.middle = slice_start(slice + 1, args.cols, of_256, tiles);
    piece.to = slice_start(slice + SLICES_OF_PIECE, args.cols, of_256, tiles);
    return piece;
}

struct PieceBytes {
    template <u32 T> static DEVICE_MEMBER void of(const MatmulArgs& args, const Job& job, const Piece& piece, const u8*& at, u32& bytes) {
        u32 tiles = (args.cols + tile_cols(T) - 1) / tile_cols(T);
        bytes = tile_bytes(T);
        at = job.weights[piece.matrix] + ((u64)(piece.sixteen - job.first_block) * tiles + piece.from) * tile_bytes(T);
    }
};

// The weights of a warp's pieces, one after another.
struct Feed {
    // That comes after the present one.
    u32 number, end;
    // This lane's first byte of it.
    const u8* at;
    // Of a tile, and tiles left.
    u32 bytes, left;

    // Of a tile; where there is only one type, a constant.
    DEVICE_MEMBER u32 tile() const { return ONE_TYPE ? STAGE_BYTES : bytes; }
    // To the next piece that has inputs.
    DEVICE_MEMBER void seek(const MatmulArgs& args) {
        for (; left == 0 && number < end; number += WARPS) {
            u32 job = 0;
            Piece piece = piece_of(args, number, job);
            left = piece.to - piece.from;
            visit_type<PieceBytes>(piece.type, args, args.jobs[job], piece, at, bytes);
            at += 16 * lane_index();
        }
    }
    // Begins to copy the next tile; `to`: this lane's first place.
    DEVICE_MEMBER void copy(const MatmulArgs& args, SharedPlace to) {
        if (left > 0) {
#pragma unroll
            for (u32 first = 0; first < STAGE_BYTES; first += 16 * LANES)
                if (first + 16 * lane_index() < tile()) copy_async(to + first, at + first);
            at += tile();
            left--;
            if (left == 0) seek(args);
        }
        commit_copies();
    }
};

// Keeps sums for the others of their rows, on top of what is there unless they are the first of their piece.
DEVICE void put_sums(float* slot, const Sums& sums, bool is_first) {
    u32 lane = lane_index();
    if (ONE_ROW && lane % 4 != 0) return;
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
        for (u32 i = 0; i < 4; i += NEXT_SUM) {
            float* to = ONE_ROW ? slot + lane / 4 + 4 * i : slot + (4 * ct + i) * LANES + lane;
            *to = is_first ? sums[ct][i] : *to + sums[ct][i];
        }
}

// A warp's ring, and the activations.
struct Ring {
    u8* stages;
    // Of the tile that comes next.
    u32 offset;
    Activations x;

    template <u32 T>
    static DEVICE_MEMBER void of(const MatmulArgs& args, const Piece& piece, Ring& ring, Feed& feed, float* slot) {
        Columns columns;
        columns.stride = (u64)((args.cols + tile_cols(T) - 1) / tile_cols(T)) * form_bytes(T);
        columns.count = args.num_rows;
        columns.at = form_of<T>(ring.x) + (u64)piece.from * form_bytes(T);
#pragma unroll 1
        for (u32 k = piece.from; k < piece.to;) {
            bool is_first = k == piece.from;
            u32 to = k < piece.middle ? piece.middle : piece.to;
            Sums sums = {};
#pragma unroll 1
            for (; k < to; k++) {
                wait_copies<STAGES - 1>();
                sync_warp();
                multiply_tile<T>(ring.stages + ring.offset, columns, sums);
                columns.at += form_bytes(T);
                sync_warp();
                feed.copy(args, shared_place(ring.stages + ring.offset + 16 * lane_index()));
                ring.offset = ring.offset + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : ring.offset + STAGE_BYTES;
            }
            put_sums(slot, sums, is_first);
        }
    }
};

// Blocks of 256 inputs of a warp whose values are on their way together.
constexpr u32 TOGETHER = ROW_BLOCKS;
typedef float Stretch[TOGETHER][OWN];
// Of them, those whose norm's weights are there before the row is; for more, registers are too few.
constexpr u32 EARLY = TOGETHER < 2 ? TOGETHER : 2;
typedef float EarlyGamma[EARLY][OWN];

// Values of a row, from block `first` on.
DEVICE void load_stretch(const RowOf& row, u32 first, Stretch& v) {
#pragma unroll
    for (u32 i = 0; i < TOGETHER; i++) load_block(row, first + i * WARPS, v[i]);
}

// The first goes behind the last: what is done to the first, again and again, is one piece of code for all.
template <u32 COUNT> DEVICE void turn(float (&v)[COUNT][OWN]) {
#pragma unroll
    for (u32 j = 0; j < OWN; j++) {
        float first = v[0][j];
#pragma unroll
        for (u32 i = 0; i + 1 < COUNT; i++) v[i][j] = v[i + 1][j];
        v[COUNT - 1][j] = first;
    }
}

// ONE_ROW: the row in the forms that are read. `v`, `early`: the warp's first stretch and its norm's weights.
DEVICE void put_row(const MatmulArgs& args, const Activations& to, Stretch& v, EarlyGamma& early, RowNorm& norm) {
    constexpr u32 APART = WARPS * TOGETHER;
    RowOf row = {args.row, args.cols, true}, gamma = {args.gamma, args.cols, true};
    u32 blocks = (args.cols + 255) / 256;
#pragma unroll 1
    for (u32 first = warp_index(); first < blocks; first += APART) {
        if (first >= APART) load_stretch(row, first, v);
#pragma unroll 1
        for (u32 i = 0; i < TOGETHER; i++) {
            u32 block = first + i * WARPS;
            if (block >= blocks) break;
            if (args.gamma) {
                if (i >= EARLY || first >= APART) load_block(gamma, block, early[0]);
                put_squares(norm, block, v[0]);
                scale(v[0], early[0]);
                turn(early);
            }
            put_forms(to, 0, args.cols, block, {1, FORM_TERMS, 0}, v[0]);
            turn(v);
        }
    }
}

constexpr bool BY_256 = (TYPES & (1 << Q2_K | 1 << Q3_K | 1 << Q4_K | 1 << Q5_K | 1 << Q6_K | 1 << IQ4_XS)) != 0;
constexpr bool FLOATS = (TYPES & (1 << F32 | 1 << F16 | 1 << BF16)) != 0;
constexpr bool BY_32 = (TYPES & (1 << Q4_0 | 1 << Q4_1 | 1 << Q5_0 | 1 << Q5_1 | 1 << Q8_0 | 1 << IQ4_NL)) != 0;

// Outputs of 16 rows.
constexpr u32 OUTPUTS = TILE_ROWS * KEPT * COLUMN_TILES;
// Number `at` of the outputs of 16 rows `first..`; null: none.
DEVICE float* output_of(const MatmulArgs& args, u32 first, u32 at) {
    u32 sixteen = first + at / OUTPUTS, c = at % OUTPUTS / TILE_ROWS;
    const Job& job = args.jobs[job_of(args, sixteen, 0)];
    u32 row = (sixteen - job.first_block) * TILE_ROWS + at % TILE_ROWS;
    return row < job.rows && c < args.num_rows ? job.out + (u64)c * job.rows + row : nullptr;
}
// The outputs of 16 rows `first..first + count`, whose sums are all there. `own`, `before`: the thread's first one and what it is added to, where
// `is_known`.
DEVICE void write_out(const MatmulArgs& args, const float* slots, const float* factors, u32 first, u32 count, float* own, float before, bool is_known) {
#pragma unroll 1
    for (u32 at = thread_index(); at < count * OUTPUTS; at += THREADS) {
        float* to = KEEPS_PLACE && is_known ? own : output_of(args, first, at);
        if (adds(args) && to && !is_known) before = *to;
        is_known = false;
        if (!to) continue;
        u32 r = at % TILE_ROWS, c = at % OUTPUTS / TILE_ROWS;
        u32 place = ONE_ROW ? r : (c / COLUMNS * 4 + r / 8 * 2 + c % 2) * LANES + 4 * (r % 8) + c % COLUMNS / 2;
        const float* part = slots + at / OUTPUTS * PIECES * SLOT + place;
        float sums[2];
#pragma unroll
        for (u32 m = 0; m < PIECES / OF_MATRIX; m++) {
            float parts[OF_MATRIX];
#pragma unroll
            for (u32 k = 0; k < OF_MATRIX; k++) parts[k] = part[(m * OF_MATRIX + k) * SLOT];
#pragma unroll
            for (u32 width = 1; width < OF_MATRIX; width *= 2)
#pragma unroll
                for (u32 k = 0; k < OF_MATRIX; k += 2 * width) parts[k] += parts[k + width];
            sums[m] = multiply(factors[c], parts[0]);
        }
        float value = GATED ? silu(sums[0]) * sums[GATED] : sums[0];
        *to = adds(args) ? before + value : value;
    }
}

// Chips without clusters are asked for none.
#if CLUSTER > 1 && (ON_HOST || (ON_CUDA && __CUDA_ARCH__ >= 900))
KERNEL_CLUSTERED(matmul, MatmulArgs, THREADS, RESIDENT, CLUSTER) {
#else
KERNEL_AHEAD(matmul, MatmulArgs, THREADS, RESIDENT) {
#endif
    let_next_start();
    DYNAMIC_SHARED(shared);
    // A multiprocessor's blocks are, as far as is known, apart by the number of multiprocessors.
    u32 apart = grid_x() / args.beside, place = block_x() % apart * args.beside + block_x() / apart;
    u32 first = 0, last = 0;
#pragma unroll 1
    for (u32 i = 0; i < 2; i++) {
        first = last;
        last = first_of_block(args, place + i);
    }
    u32 number = first * PIECES + warp_index();
    Feed feed = {number, last * PIECES, nullptr, 0, 0};
    feed.seek(args);
    Ring ring = {shared + warp_index() * STAGES * STAGE_BYTES, 0, args.x};
    // Weights are nobody's result: they are on their way before the activations are there. Not all, so that the row does not wait for
    // them.
    u32 stage = 0;
#pragma unroll 1
    for (; stage < (ONE_ROW ? args.early_stages : STAGES); stage++) feed.copy(args, shared_place(ring.stages + stage * STAGE_BYTES + 16 * lane_index()));
    float* slots = reinterpret_cast<float*>(shared + WARPS * STAGES * STAGE_BYTES);
    float* own = nullptr;
    float before = 0.0f;
    // Of the norm, a column's, and this thread's; whole lines of 128 bytes (see row_norm.h).
    SHARED float factors[ONE_ROW ? 1 : (COLUMNS * COLUMN_TILES + LANES - 1) / LANES * LANES];
    float factor = 1.0f;
    if constexpr (ONE_ROW) {
        if (thread_index() < smaller(args.round, last - first) * OUTPUTS) own = output_of(args, first, thread_index());
        EarlyGamma early = {};
        if (args.gamma)
            for (u32 i = 0; i < EARLY; i++) load_block({args.gamma, args.cols, true}, warp_index() + i * WARPS, early[i]);
        wait_for_inputs();
        ring.x = forms_at(reinterpret_cast<u8*>(slots + args.round * PIECES * SLOT), args.cols, BY_256, BY_32, FLOATS);
        Stretch v;
        load_stretch({args.row, args.cols, true}, warp_index(), v);
        // Nobody waits for it, who would behind the sums.
        if (adds(args) && own) before = *own;
#pragma unroll 1
        for (; stage < STAGES; stage++) feed.copy(args, shared_place(ring.stages + stage * STAGE_BYTES + 16 * lane_index()));
        SHARED RowNorm norm;
        put_row(args, ring.x, v, early, norm);
        sync_threads();
        // It has no more pieces than others.
        if (warp_index() == WARPS - 1) {
            if (args.gamma) put_factor(norm, args.cols, args.eps);
            if (lane_index() == 0) factors[0] = args.gamma ? norm.factor : 1.0f;
        }
    } else {
        wait_for_inputs();
        if (args.factors && thread_index() < args.num_rows) factor = args.factors[thread_index()];
    }
    bool is_known = ONE_ROW;
#pragma unroll 1
    for (; first < last; first += args.round) {
        u32 count = smaller(args.round, last - first);
#pragma unroll 1
        for (; number < (first + count) * PIECES; number += WARPS) {
            u32 job = 0;
            Piece piece = piece_of(args, number, job);
            float* slot = slots + (number - first * PIECES) * SLOT;
            if (piece.from == piece.to) put_sums(slot, Sums{}, true);
            else visit_type<Ring>(piece.type, args, piece, ring, feed, slot);
        }
        if (!ONE_ROW && thread_index() < KEPT * COLUMN_TILES) factors[thread_index()] = factor;
        sync_threads();
        write_out(args, slots, factors, first, count, own, before, is_known);
        is_known = false;
        sync_threads();
    }
}
