// What matmul.cu computes, to the bit, for more rows of x than one column tile.
//
// A thread block takes 16 ROW_WARPS rows of W, 8 COLUMN_TILES COLUMN_WARPS rows of x (columns here) and 8 / `splits` slices of
// the inputs. Weights and columns pass through STAGES stages of shared memory, so that a block's warps share what is read,
// and none waits for memory. A unit of work: column block, split, matrix, row block, the fastest first, so that weights
// are read again from L2. Sums of splits meet in `parts`, where the block that comes last adds them up.
// TYPES: bit mask of the types in use.
#ifndef TYPES
#define TYPES (1 << 12)
#define COLUMN_TILES 3
#define ROW_WARPS 8
#define COLUMN_WARPS 1
#define STAGES 3
#define RESIDENT 2
#endif
#define AT_ONCE COLUMN_TILES
#include "products.h"

constexpr u32 THREADS = ROW_WARPS * COLUMN_WARPS * LANES;
constexpr u32 BLOCK_COLUMN_TILES = COLUMN_WARPS * COLUMN_TILES;
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
    static constexpr u32 BLOCK = is_float(T) ? BYTES_FLOAT : is_by256(T) ? BYTES_256 : BYTES_32;
    static constexpr u32 ROW_BYTES = STEP * tile_bytes(T), COLUMN_BYTES = STEP * BLOCK;
    static constexpr u32 STAGE_BYTES = ROW_WARPS * ROW_BYTES + BLOCK_COLUMN_TILES * COLUMN_BYTES;
    // What this lane copies of the next step: of its warp's rows, and of the column tile of its warp's number.
    const u8* weights;
    const u8* x;
    u64 column_stride;
    bool has_rows;

    // From tile `k` of `tiles` on.
    DEVICE_MEMBER Stream(const WideArgs& args, const Unit& unit, u32 matrix, u32 tiles, u32 k) {
        u32 row_tile = unit.first_row / TILE_ROWS + warp_index() % ROW_WARPS;
        has_rows = row_tile * TILE_ROWS < unit.rows;
        weights = unit.weights[matrix] + ((u64)row_tile * tiles + k) * tile_bytes(T) + 16 * row_lane();
        column_stride = (u64)tiles * BLOCK;
        x = is_float(T) ? args.x.floats : is_by256(T) ? args.x.by256 : args.x.by32;
        x += (unit.column_block * BLOCK_COLUMN_TILES + warp_index()) * column_stride + (u64)k * BLOCK + 16 * lane_index();
    }

    // Among the warps of the same rows.
    static DEVICE_MEMBER u32 row_lane() { return warp_index() / ROW_WARPS * LANES + lane_index(); }

    // Begins to copy `count` tiles and goes on to the next.
    DEVICE_MEMBER void copy(SharedPlace stage, u32 count) {
        SharedPlace to = stage + warp_index() % ROW_WARPS * ROW_BYTES + 16 * row_lane();
        u32 pieces = STEP == 1 ? ROW_BYTES / 16 : count * (tile_bytes(T) / 16);
        if (has_rows)
#pragma unroll
            for (u32 at = 0; at < ROW_BYTES / 16; at += COLUMN_WARPS * LANES)
                if (at + row_lane() < pieces) copy_async(to + 16 * at, weights + 16 * at);
        weights += ROW_BYTES;
        pieces = STEP == 1 ? COLUMN_BYTES / 16 : count * (BLOCK / 16);
#pragma unroll
        for (u32 ct = 0; ct < BLOCK_COLUMN_TILES; ct += ROW_WARPS * COLUMN_WARPS) {
            if (ct + warp_index() >= BLOCK_COLUMN_TILES) continue;
            to = stage + ROW_WARPS * ROW_BYTES + (ct + warp_index()) * COLUMN_BYTES + 16 * lane_index();
#pragma unroll
            for (u32 at = 0; at < COLUMN_BYTES / 16; at += LANES)
                if (at + lane_index() < pieces) copy_async(to + 16 * at, x + ct * column_stride + 16 * at);
        }
        x += COLUMN_BYTES;
    }

    DEVICE_MEMBER void multiply(const u8* stage, u32 count, Sums& acc) const {
        const u8* weights = stage + warp_index() % ROW_WARPS * ROW_BYTES;
        Columns columns;
        columns.stride = COLUMN_BYTES;
        columns.at = stage + ROW_WARPS * ROW_BYTES + warp_index() / ROW_WARPS * COLUMN_TILES * COLUMN_BYTES;
        columns.count = COLUMNS;
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            Tile<T> tile;
            tile.template load<true>(weights + i * tile_bytes(T));
            if constexpr (is_float(T)) multiply_floats<T>(tile, columns, acc);
            else if constexpr (is_by256(T)) multiply_by256<T>(tile, columns, acc);
            else multiply_by32<T>(tile, columns, acc);
            columns.at += BLOCK;
        }
    }
};

// The sums of one matrix of a unit of work.
template <u32 T> DEVICE void multiply_unit(const WideArgs& args, const Unit& unit, u32 matrix, u8* shared, Sums& acc) {
    using S = Stream<T>;
    u8* stages = shared + (args.splits < SLICES ? SUM_WORDS * sizeof(Vec4f) : 0);
    SharedPlace places = shared_place(stages);
    u32 slices = SLICES / args.splits, first = unit.split * slices;
    u32 tiles = (args.cols + S::COLS - 1) / S::COLS, slot = 0;
    u32 k = slice_start(first, args.cols, S::COLS, tiles), end = slice_start(first + slices, args.cols, S::COLS, tiles);
    S stream(args, unit, matrix, tiles, k);
#pragma unroll 1
    for (u32 i = 0; i < STAGES - 1; i++) {
        if (k + i * S::STEP < end) stream.copy(places + i * S::STAGE_BYTES, smaller(S::STEP, end - k - i * S::STEP));
        commit_copies();
    }
#pragma unroll 1
    for (u32 s = 0; s < slices; s++) {
        u32 to = slice_start(first + s + 1, args.cols, S::COLS, tiles);
#pragma unroll
        for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) acc[ct][i] = 0.0f;
#pragma unroll 1
        for (; k < to; k += S::STEP) {
            wait_copies<STAGES - 2>();
            sync_threads();
            u32 ahead = k + (STAGES - 1) * S::STEP, used = slot == 0 ? STAGES - 1 : slot - 1;
            if (ahead < end) stream.copy(places + used * S::STAGE_BYTES, smaller(S::STEP, end - ahead));
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

template <u32 T> DEVICE void multiply_if(const WideArgs& args, const Unit& unit, u32 matrix, u8* shared, Sums& acc) {
    if constexpr ((TYPES >> T & 1) != 0)
        if (unit.types[matrix] == T) multiply_unit<T>(args, unit, matrix, shared, acc);
}

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

KERNEL_RESIDENT(matmul_wide, WideArgs, THREADS, RESIDENT) {
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
            multiply_if<F32>(args, unit, m, shared, acc);
            multiply_if<F16>(args, unit, m, shared, acc);
            multiply_if<BF16>(args, unit, m, shared, acc);
            multiply_if<Q4_0>(args, unit, m, shared, acc);
            multiply_if<Q4_1>(args, unit, m, shared, acc);
            multiply_if<Q5_0>(args, unit, m, shared, acc);
            multiply_if<Q5_1>(args, unit, m, shared, acc);
            multiply_if<Q8_0>(args, unit, m, shared, acc);
            multiply_if<IQ4_NL>(args, unit, m, shared, acc);
            multiply_if<Q2_K>(args, unit, m, shared, acc);
            multiply_if<Q3_K>(args, unit, m, shared, acc);
            multiply_if<Q4_K>(args, unit, m, shared, acc);
            multiply_if<Q5_K>(args, unit, m, shared, acc);
            multiply_if<Q6_K>(args, unit, m, shared, acc);
            multiply_if<IQ4_XS>(args, unit, m, shared, acc);
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
