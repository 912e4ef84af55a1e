// What matmul.cu computes, to the bit, for more rows of x than one column tile.
//
// A thread block takes 16 ROW_WARPS rows of W, 8 COLUMN_TILES COLUMN_WARPS rows of x (columns here) and 8 / `splits` slices of
// the inputs. Weights and columns pass through STAGES stages of shared memory, so that a block's warps share what is read,
// and none waits for memory. A unit of work: column block, split, matrix, row block, the fastest first, so that weights
// are read again from L2. Sums of splits meet in `parts`, where the block that comes last adds them up.
// TYPES: bit mask of the types in use. GROUPED: all of 256 inputs, and every four warps multiply together, as grouped.h has it.
#ifndef TYPES
#define TYPES (1 << 12)
#define GROUPED 0
#define COLUMN_TILES 3
#define ROW_WARPS 8
#define COLUMN_WARPS 1
#define STAGES 3
#define RESIDENT 2
#endif
#define AT_ONCE COLUMN_TILES
#include "products.h"
#if GROUPED
#include "grouped.h"
#endif

constexpr u32 THREADS = ROW_WARPS * COLUMN_WARPS * LANES;
constexpr u32 BLOCK_COLUMN_TILES = COLUMN_WARPS * COLUMN_TILES;
// Of 16 rows, that are asked for as far as L2 before the activations are there.
constexpr u32 AHEAD_BYTES = 6 << 10;
// Of a thread's sums: 16 bytes for each column tile.
constexpr u32 SUM_WORDS = COLUMN_TILES * THREADS;

struct WideArgs {
    Job jobs[MAX_JOBS];
    Activations x;
    // Sums of split, matrix and unit of work; with one split, three for each block of the grid.
    Vec4f* parts;
    u32* tickets;
    u32 num_jobs;
    u32 cols;
    // N.
    u32 num_rows;
    // Add to `out`.
    u32 accumulate;
    // 1 or 2: silu(first) * second is stored.
    u32 matrices;
    // 1, 2, 4 or 8.
    u32 splits;
    u32 column_blocks;
    u32 units;
};

// A unit of work; in shared memory, since registers are for sums.
struct Unit {
    const u8* weights[2];
    u32 types[2];
    float* out;
    Vec4f* parts;
    u32* ticket;
    u32 rows;
    u32 first_row;
    u32 column_block;
    u32 split;
    u32 matrix;
    // Of the launch.
    u32 number;
};

// Where the sums of slices wait for their neighbours': single ones in shared memory, pairs and pairs of pairs in memory that
// stays in L2. A part has its place to itself until it is complete.
DEVICE Vec4f* waiting(const WideArgs& args, const Unit& unit, u8* shared, u32 level) {
    if (level == 0) return reinterpret_cast<Vec4f*>(shared);
    return unit.parts + ((args.splits == 1 ? 0 : unit.matrix * args.splits + unit.split) + level - 1) * SUM_WORDS;
}

DEVICE void store_sums(Vec4f* to, const Sums& acc) {
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++)
        to[ct * THREADS + thread_index()] = Vec4f{acc[ct][0], acc[ct][1], acc[ct][2], acc[ct][3]};
}
DEVICE void add_sums(const Vec4f* from, Sums& acc) {
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++) {
        Vec4f v = from[ct * THREADS + thread_index()];
        acc[ct][0] = v.x + acc[ct][0];
        acc[ct][1] = v.y + acc[ct][1];
        acc[ct][2] = v.z + acc[ct][2];
        acc[ct][3] = v.w + acc[ct][3];
    }
}
DEVICE void load_sums(const Vec4f* from, Sums& acc) {
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++) {
        Vec4f v = from[ct * THREADS + thread_index()];
        acc[ct][0] = v.x;
        acc[ct][1] = v.y;
        acc[ct][2] = v.z;
        acc[ct][3] = v.w;
    }
}

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
#if GROUPED
        multiply_grouped<T>(weights, columns, COLUMN_BYTES, acc);
#else
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            multiply_tile<T>(weights + i * tile_bytes(T), columns, acc);
            columns.at += BLOCK;
        }
#endif
    }
};

// The sums of one matrix of a unit of work.
template <u32 T> DEVICE void multiply_unit(const WideArgs& args, const Unit& unit, u32 matrix, u8* shared, Sums& acc) {
    using S = Stream<T>;
    u8* stages = shared + (args.splits < SLICES ? SUM_WORDS * sizeof(Vec4f) : 0);
    SharedPlace places = shared_place(stages);
    u32 slices = SLICES / args.splits, first = unit.split * slices;
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
#if GROUPED
            show_to_groups();
#endif
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
        // A binary counter.
        u32 level = 0;
#pragma unroll 1
        for (; s >> level & 1; level++) add_sums(waiting(args, unit, shared, level), acc);
        if (s + 1 < slices) store_sums(waiting(args, unit, shared, level), acc);
    }
    // What is left there has been used.
    sync_threads();
}

struct Multiply {
    template <u32 T> static DEVICE_MEMBER void of(const WideArgs& args, const Unit& unit, u32 matrix, u8* shared, Sums& acc) {
        multiply_unit<T>(args, unit, matrix, shared, acc);
    }
};

// Sums of all splits, as pairs and pairs of pairs.
DEVICE void gather_splits(const Vec4f* parts, u32 splits, Sums& acc) {
    load_sums(parts, acc);
    if (splits >= 2) add_sums(parts + SUM_WORDS, acc);
#pragma unroll 1
    for (u32 half = 2; half < splits; half *= 2) {
        Sums rest, pair;
        load_sums(parts + half * SUM_WORDS, rest);
        add_sums(parts + (half + 1) * SUM_WORDS, rest);
        if (half == 4) {
            load_sums(parts + 6 * SUM_WORDS, pair);
            add_sums(parts + 7 * SUM_WORDS, pair);
#pragma unroll
            for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) rest[ct][i] += pair[ct][i];
        }
#pragma unroll
        for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) acc[ct][i] += rest[ct][i];
    }
}

// Whether all other blocks that share this one's outputs are done, and what they stored can be read.
DEVICE bool comes_last(u32* ticket, u32 count) {
    SHARED u32 is_last;
    fence_device();
    sync_threads();
    if (thread_index() == 0) {
        is_last = atomic_add(ticket, 1) + 1 == count;
        if (is_last) *ticket = 0;
    }
    sync_threads();
    fence_device();
    return is_last != 0;
}

DEVICE void write_out(const WideArgs& args, const Unit& unit, const Sums& gate, const Sums& acc) {
    u32 row = unit.first_row + warp_index() % ROW_WARPS * TILE_ROWS + lane_index() / 4;
    u32 column = (unit.column_block * BLOCK_COLUMN_TILES + warp_index() / ROW_WARPS * COLUMN_TILES) * COLUMNS + lane_index() % 4 * 2;
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 r = row + i / 2 * 8, c = column + ct * COLUMNS + i % 2;
            if (r >= unit.rows || c >= args.num_rows) continue;
            float value = acc[ct][i];
            if (args.matrices == 2) value = silu(gate[ct][i]) * value;
            float* to = unit.out + (u64)c * unit.rows + r;
            *to = args.accumulate ? *to + value : value;
        }
}

DEVICE void find_unit(const WideArgs& args, u32 number, Unit& unit) {
    bool is_whole = args.splits == 1;
    u32 rest = number / args.column_blocks, in_turn = is_whole ? 1 : args.matrices;
    unit.number = number;
    unit.column_block = number % args.column_blocks;
    unit.split = rest % args.splits;
    rest /= args.splits;
    unit.matrix = rest % in_turn;
    u32 row_block = rest / in_turn, j = 0;
    while (j + 1 < args.num_jobs && row_block >= args.jobs[j + 1].first_block) j++;
    const Job& job = args.jobs[j];
    for (u32 m = 0; m < 2; m++) {
        unit.weights[m] = job.weights[m];
        unit.types[m] = job.types[m];
    }
    unit.out = job.out;
    unit.rows = job.rows;
    unit.first_row = (row_block - job.first_block) * ROW_WARPS * TILE_ROWS;
    u32 outputs = row_block * args.column_blocks + unit.column_block;
    unit.ticket = args.tickets + outputs;
    unit.parts = args.parts + (u64)(is_whole ? 3 * block_x() : outputs * args.splits * in_turn) * SUM_WORDS;
}

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
        // Without splits, both matrices in turn.
        u32 last = args.splits == 1 ? args.matrices - 1 : unit.matrix;
#pragma unroll 1
        for (u32 m = unit.matrix; m <= last; m++) {
            visit_type<Multiply>(unit.types[m], args, unit, m, shared, acc);
            if (m < last) store_sums(unit.parts + 2 * SUM_WORDS, acc);
        }
        Sums gate = {};
        if (args.splits == 1) {
            if (args.matrices == 2) load_sums(unit.parts + 2 * SUM_WORDS, gate);
        } else {
            store_sums(waiting(args, unit, shared, 1), acc);
            if (!comes_last(unit.ticket, args.splits * args.matrices)) continue;
            gather_splits(unit.parts + (args.matrices - 1) * args.splits * SUM_WORDS, args.splits, acc);
            if (args.matrices == 2) gather_splits(unit.parts, args.splits, gate);
        }
        write_out(args, unit, gate, acc);
    }
}
