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
#include "matmul.h"

// Sums of a piece: by row, or [column tile][4][lane].
constexpr u32 SLOT = ONE_ROW ? TILE_ROWS : COLUMN_TILES * 4 * LANES;

struct MatmulArgs {
    Work work;
    // Not ONE_ROW: the rows, and factors of normed ones (null: nothing), [N].
    Activations x;
    const float* factors;
    // N.
    u32 num_rows;
    // Sixteens of rows whose sums wait for each other at a time.
    u32 round;
    // Stages that fill before the row is there.
    u32 early_stages;
};

constexpr u32 STAGE_BYTES = largest_tile<0>();
constexpr u32 without_least(u32 types) { return types & (types - 1); }
// Whether there are registers to keep where a thread's first output goes while the row is made ready: of three types there are not.
constexpr bool KEEPS_PLACE = without_least(without_least(TYPES)) == 0;

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
            Piece piece = piece_of(args.work, number, job);
            left = piece.to - piece.from;
            visit_type<PieceBytes>(piece.type, args.work, args.work.jobs[job], piece, at, bytes);
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
        columns.stride = (u64)((args.work.cols + tile_cols(T) - 1) / tile_cols(T)) * form_bytes(T);
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
    RowOf row = {args.work.row, args.work.cols, true}, gamma = {args.work.gamma, args.work.cols, true};
    u32 blocks = (args.work.cols + 255) / 256;
#pragma unroll 1
    for (u32 first = warp_index(); first < blocks; first += APART) {
        if (first >= APART) load_stretch(row, first, v);
#pragma unroll 1
        for (u32 i = 0; i < TOGETHER; i++) {
            u32 block = first + i * WARPS;
            if (block >= blocks) break;
            if (args.work.gamma) {
                if (i >= EARLY || first >= APART) load_block(gamma, block, early[0]);
                put_squares(norm, block, v[0]);
                scale(v[0], early[0]);
                turn(early);
            }
            put_forms(to, 0, args.work.cols, block, {1, FORM_TERMS, 0}, v[0]);
            turn(v);
        }
    }
}

// Outputs of 16 rows.
constexpr u32 OUTPUTS = TILE_ROWS * KEPT * COLUMN_TILES;
// Number `at` of the outputs of 16 rows `first..`; null: none.
DEVICE float* output_of(const MatmulArgs& args, u32 first, u32 at) {
    u32 sixteen = first + at / OUTPUTS, c = at % OUTPUTS / TILE_ROWS;
    const Job& job = args.work.jobs[job_of(args.work, sixteen, 0)];
    u32 row = (sixteen - job.first_block) * TILE_ROWS + at % TILE_ROWS;
    return row < job.rows && c < args.num_rows ? job.out + (u64)c * job.rows + row : nullptr;
}
// The outputs of 16 rows `first..first + count`, whose sums are all there. `own`, `before`: the thread's first one and what it is added to, where
// `is_known`.
DEVICE void write_out(const MatmulArgs& args, const float* slots, const float* factors, u32 first, u32 count, float* own, float before, bool is_known) {
#pragma unroll 1
    for (u32 at = thread_index(); at < count * OUTPUTS; at += THREADS) {
        float* to = KEEPS_PLACE && is_known ? own : output_of(args, first, at);
        if (adds(args.work) && to && !is_known) before = *to;
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
            sums[m] = multiply(factors[c], add_slices(parts));
        }
        float value = GATED ? silu(sums[0]) * sums[GATED] : sums[0];
        *to = adds(args.work) ? before + value : value;
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
    u32 place = place_of_block(args.work), first = 0, last = 0;
#pragma unroll 1
    for (u32 i = 0; i < 2; i++) {
        first = last;
        last = first_of_block(args.work, place + i);
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
        if (args.work.gamma)
            for (u32 i = 0; i < EARLY; i++) load_block({args.work.gamma, args.work.cols, true}, warp_index() + i * WARPS, early[i]);
        wait_for_inputs();
        ring.x = forms_at(reinterpret_cast<u8*>(slots + args.round * PIECES * SLOT), args.work.cols, BY_256, BY_32, FLOATS);
        Stretch v;
        load_stretch({args.work.row, args.work.cols, true}, warp_index(), v);
        // Nobody waits for it, who would behind the sums.
        if (adds(args.work) && own) before = *own;
#pragma unroll 1
        for (; stage < STAGES; stage++) feed.copy(args, shared_place(ring.stages + stage * STAGE_BYTES + 16 * lane_index()));
        SHARED RowNorm norm;
        put_row(args, ring.x, v, early, norm);
        sync_threads();
        // It has no more pieces than others.
        if (warp_index() == WARPS - 1) {
            if (args.work.gamma) put_factor(norm, args.work.cols, args.work.eps);
            if (lane_index() == 0) factors[0] = args.work.gamma ? norm.factor : 1.0f;
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
            Piece piece = piece_of(args.work, number, job);
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
