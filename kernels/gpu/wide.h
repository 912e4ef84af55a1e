// Units of work of products of many rows of x: what a thread block multiplies, and where sums meet. Needs ROW_WARPS, COLUMN_WARPS,
// HOLDS_SUMS (registers suffice for one slice's sums), SHARED_PLACES (where more wait) and EARLY_OUTPUTS (registers suffice to load what outputs are
// added to while sums meet) and CUTS (of the rows of units that are split, each a unit).
//
// A thread block takes 16 ROW_WARPS rows of W, 8 COLUMN_TILES COLUMN_WARPS rows of x (columns here) and all slices of the inputs,
// or 8 / `splits` of them; where rows are cut as well, only as many of its warps have work. Units of work: first those that are whole, by column
// block and row block, the fastest first, then the others by column block, cut, split, matrix and row block, so that weights are read again from
// L2. Sums of splits meet in `parts`, where the warp that comes last adds them up, or in a cluster (matmul_fed.cu), or where the outputs are read
// (rest.h).
#pragma once
#include "products.h"
#include "rest.h"

constexpr u32 THREADS = ROW_WARPS * COLUMN_WARPS * LANES;
constexpr u32 BLOCK_COLUMN_TILES = COLUMN_WARPS * COLUMN_TILES;
// Of a thread's sums: 16 bytes for each column tile.
constexpr u32 SUM_WORDS = COLUMN_TILES * THREADS;

struct WideArgs {
    Job jobs[MAX_JOBS];
    Activations x;
    // Of normed rows, [N]; null: there is no norm.
    const float* factors;
    // If units are whole, three sums for each block of the grid; then those of split and matrix, for each output of the others.
    Vec4f* parts;
    u32* tickets;
    // Of units that are not whole, where there is one job; no sums: theirs meet here.
    Rest rest;
    u32 num_jobs;
    u32 cols;
    // N.
    u32 num_rows;
    // Add to `out`.
    u32 accumulate;
    // 1 or 2: silu(first) * second is stored.
    u32 matrices;
    // 1, 2, 4 or 8, of units that are not whole.
    u32 splits;
    u32 column_blocks;
    // Row blocks, the first ones, that are not split.
    u32 whole_blocks;
    u32 units;
};

// A unit of work; in shared memory, since registers are for sums.
struct Unit {
    const u8* weights[2];
    u32 types[2];
    float* out;
    Vec4f* parts;
    // Of its warps.
    u32* tickets;
    u32 rows;
    u32 first_row;
    u32 column_block;
    u32 splits, split;
    u32 matrix;
    // Of its rows, CUTS: all of them.
    u32 cut;
    // Of the launch.
    u32 number;

    DEVICE_MEMBER bool is_cut() const { return CUTS > 1 && cut < CUTS; }
    // The first one that has work, and those that have.
    DEVICE_MEMBER u32 first_warp() const { return is_cut() ? cut * (ROW_WARPS / CUTS) : 0; }
    DEVICE_MEMBER u32 warps() const { return is_cut() ? ROW_WARPS / CUTS : ROW_WARPS; }
    DEVICE_MEMBER bool has_work(u32 warp) const { return !is_cut() || warp / (ROW_WARPS / CUTS) == cut; }
};
static_assert(CUTS == 1 || COLUMN_WARPS == 1 && ROW_WARPS % CUTS == 0, "cuts have whole warps");

// Where a split's sums wait for the others'. It has the place to itself until it is complete.
DEVICE Vec4f* part_of(const Unit& unit) {
    return unit.parts + (unit.splits == 1 ? 0 : unit.matrix * unit.splits + unit.split) * SUM_WORDS;
}
// Levels of a slice's sums: single ones, pairs, and pairs of pairs.
constexpr u32 LEVELS = SLICES == 8 ? 3 : 2;
static_assert(1 << LEVELS == SLICES, "");
// Where sums wait for others: those of levels that are not held in registers, and then the first of two matrices'. The first
// SHARED_PLACES are in shared memory, the others in memory that stays in L2.
template <u32 PLACE> DEVICE Vec4f* sums_at(const Unit& unit, u8* shared) {
    if constexpr (PLACE < SHARED_PLACES) return reinterpret_cast<Vec4f*>(shared) + PLACE * SUM_WORDS;
    else return part_of(unit) + (PLACE - SHARED_PLACES) * SUM_WORDS;
}
constexpr u32 OF_FIRST_MATRIX = LEVELS - HOLDS_SUMS;

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

// Adds to the sums of slice `s` of a unit's `slices` those that wait for it, or has them wait for the next: a binary counter.
template <u32 LEVEL = 0> DEVICE void meet_slices(const Unit& unit, u8* shared, u32 s, u32 slices, Sums& held, Sums& acc) {
    if constexpr (LEVEL < LEVELS) {
        bool is_second = (s >> LEVEL & 1) != 0;
        if constexpr (LEVEL < HOLDS_SUMS) {
#pragma unroll
            for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    if (is_second) acc[ct][i] = held[ct][i] + acc[ct][i];
                    else held[ct][i] = acc[ct][i];
                }
        } else {
            Vec4f* at = sums_at<LEVEL - HOLDS_SUMS>(unit, shared);
            if (is_second) add_sums(at, acc);
            else if (s + 1 < slices) store_sums(at, acc);
        }
        if (is_second) meet_slices<LEVEL + 1>(unit, shared, s, slices, held, acc);
    }
}

// Sums of all splits, as pairs and pairs of pairs; all are on their way together.
template <u32 SPLITS> DEVICE void gather(const Vec4f* parts, Sums& acc) {
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++) {
        Vec4f v[SPLITS];
#pragma unroll
        for (u32 i = 0; i < SPLITS; i++) v[i] = parts[i * SUM_WORDS + ct * THREADS + thread_index()];
#pragma unroll
        for (u32 apart = 1; apart < SPLITS; apart *= 2)
#pragma unroll
            for (u32 i = 0; i < SPLITS; i += 2 * apart) {
                const Vec4f& other = v[i + apart];
                v[i] = {v[i].x + other.x, v[i].y + other.y, v[i].z + other.z, v[i].w + other.w};
            }
        acc[ct][0] = v[0].x;
        acc[ct][1] = v[0].y;
        acc[ct][2] = v[0].z;
        acc[ct][3] = v[0].w;
    }
}
DEVICE void gather_splits(const Vec4f* parts, u32 splits, Sums& acc) {
    if (splits == 2) gather<2>(parts, acc);
    else if (splits == 4) gather<4>(parts, acc);
    else gather<8>(parts, acc);
}

// Of a norm, what a warp's columns are multiplied with when they are summed up: of column `lane` and those 32 further.
struct Factors {
    float of[(COLUMN_TILES * COLUMNS + LANES - 1) / LANES];
};
DEVICE Factors factors_of(const WideArgs& args, const Unit& unit) {
    Factors factors = {};
    u32 first = (unit.column_block * BLOCK_COLUMN_TILES + warp_index() / ROW_WARPS * COLUMN_TILES) * COLUMNS + lane_index();
#pragma unroll
    for (u32 i = 0; i * LANES < COLUMN_TILES * COLUMNS; i++)
        if (args.factors && first + i * LANES < args.num_rows) factors.of[i] = args.factors[first + i * LANES];
    return factors;
}
// `more`: sums of the first of two matrices.
DEVICE void apply(const WideArgs& args, const Factors& factors, Sums& more, Sums& acc) {
    if (!args.factors) return;
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float factor = shuffle(factors.of[ct * COLUMNS / LANES], ct * COLUMNS % LANES + lane_index() % 4 * 2 + i);
#pragma unroll
            for (u32 j = i; j < 4; j += 2) {
                acc[ct][j] = multiply(factor, acc[ct][j]);
                if (args.matrices == 2) more[ct][j] = multiply(factor, more[ct][j]);
            }
        }
}

// Whether all other warps that share this one's outputs are done, and what they stored can be read.
DEVICE bool comes_last(u32* ticket, u32 count) {
    sync_warp();
    u32 is_last = 0;
    if (lane_index() == 0) {
        fence_device();
        is_last = take_ticket(ticket, count) + 1 == count;
        if (is_last) fence_device();
    }
    sync_warp();
    return shuffle(is_last, 0) != 0;
}

// Calls `each` with column tile, number and place of a thread's outputs of column tiles `first..end` in `out`, of which a column has `rows`; i = 0..3
// as in c of mma.h.
template <bool ARE_ALL, typename Each>
DEVICE void for_outputs_in(float* out, u32 rows, const WideArgs& args, const Unit& unit, u32 first, u32 end, const Each& each) {
    u32 row = unit.first_row + warp_index() % ROW_WARPS * TILE_ROWS + lane_index() / 4;
    u32 column = (unit.column_block * BLOCK_COLUMN_TILES + warp_index() / ROW_WARPS * COLUMN_TILES + first) * COLUMNS + lane_index() % 4 * 2;
    bool is_row[2] = {row < unit.rows, row + 8 < unit.rows};
    float* at = out + (u64)column * rows + row;
#pragma unroll
    for (u32 ct = first; ct < end; ct++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (ARE_ALL || (is_row[i / 2] && column + i % 2 < args.num_rows)) each(ct, i, at + i % 2 * rows + i / 2 * 8);
        at += COLUMNS * rows;
        column += COLUMNS;
    }
}
template <typename Each>
DEVICE void for_outputs_in(float* out, u32 rows, const WideArgs& args, const Unit& unit, u32 first, u32 end, const Each& each) {
    // Mostly all of a unit's are there, and to look at each takes longer than to write it.
    bool are_all = unit.first_row + ROW_WARPS * TILE_ROWS <= unit.rows && (unit.column_block + 1) * BLOCK_COLUMN_TILES * COLUMNS <= args.num_rows;
    if (are_all) for_outputs_in<true>(out, rows, args, unit, first, end, each);
    else for_outputs_in<false>(out, rows, args, unit, first, end, each);
}
template <typename Each> DEVICE void for_outputs(const WideArgs& args, const Unit& unit, u32 first, u32 end, const Each& each) {
    for_outputs_in(unit.out, unit.rows, args, unit, first, end, each);
}
// What outputs are added to. Some at once: the compiler would have each wait for what is written before it.
DEVICE void load_outputs(const WideArgs& args, const Unit& unit, u32 first, u32 end, Sums& before) {
    for_outputs(args, unit, first, end, [&](u32 ct, u32 i, const float* at) { before[ct][i] = *at; });
}
// Column tiles whose outputs are loaded at once.
constexpr u32 LOADED = EARLY_OUTPUTS ? COLUMN_TILES : 4;
// `more`: sums of the first of two matrices; else, with EARLY_OUTPUTS, what outputs are added to.
DEVICE void write_out(const WideArgs& args, const Unit& unit, Sums& more, Sums& acc) {
    bool adds = args.matrices == 1 && args.accumulate;
    // All of them, whatever is written: side by side, where each would wait for the one before.
    if (args.matrices == 2)
#pragma unroll
        for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) acc[ct][i] = silu(more[ct][i]) * acc[ct][i];
#pragma unroll
    for (u32 first = 0; first < COLUMN_TILES; first += LOADED) {
        u32 end = smaller(first + LOADED, (u32)COLUMN_TILES);
        if (adds && !EARLY_OUTPUTS) load_outputs(args, unit, first, end, more);
        for_outputs(args, unit, first, end, [&](u32 ct, u32 i, float* to) { *to = adds ? more[ct][i] + acc[ct][i] : acc[ct][i]; });
    }
}

DEVICE void find_unit(const WideArgs& args, u32 number, Unit& unit) {
    u32 rest = number, first_block = 0, split_bits = 0, turn_bits = 0, j = 0;
    unit.column_block = 0;
    unit.cut = CUTS;
    // A division takes longer than all else here.
    if (args.column_blocks > 1) {
        rest = number / args.column_blocks;
        unit.column_block = number % args.column_blocks;
    }
    if (rest >= args.whole_blocks) {
        first_block = args.whole_blocks;
        rest -= first_block;
        if constexpr (CUTS > 1) {
            unit.cut = rest % CUTS;
            rest /= CUTS;
        }
        // Of at most eight.
        split_bits = (args.splits > 1) + (args.splits > 2) + (args.splits > 4);
        turn_bits = args.matrices - 1;
    }
    unit.splits = 1u << split_bits;
    unit.number = number;
    unit.split = rest & (unit.splits - 1);
    rest >>= split_bits;
    unit.matrix = rest & turn_bits;
    u32 row_block = first_block + (rest >> turn_bits);
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
    unit.tickets = args.tickets + outputs * (THREADS / LANES);
    u32 of_whole = 3 * (unit.splits == 1 ? block_x() : args.whole_blocks > 0 ? grid_x() : 0);
    u32 of_splits = unit.splits == 1 ? 0 : (outputs - first_block * args.column_blocks) << (split_bits + turn_bits);
    unit.parts = args.parts + (u64)(of_whole + of_splits) * SUM_WORDS;
}

// Writes the outputs of a unit whose last sums are `acc`, or puts those down for the warp that comes last.
DEVICE void put_out(const WideArgs& args, const Unit& unit, u8* shared, const Factors& factors, Sums& acc) {
    Sums more = {};
    bool loads = EARLY_OUTPUTS && args.matrices == 1 && args.accumulate;
    if (unit.splits == 1) {
        if (args.matrices == 2) load_sums(sums_at<OF_FIRST_MATRIX>(unit, shared), more);
        if (loads) load_outputs(args, unit, 0, COLUMN_TILES, more);
    } else if (args.rest.sums) {
        float* sums = args.rest.of_part(unit.matrix * unit.splits + unit.split) - args.rest.first;
        for_outputs_in(sums, args.rest.rows, args, unit, 0, COLUMN_TILES, [&](u32 ct, u32 i, float* to) { *to = acc[ct][i]; });
        return;
    } else {
        store_sums(part_of(unit), acc);
        // They come while the warp hears whether it is the last.
        if (loads) load_outputs(args, unit, 0, COLUMN_TILES, more);
        if (!comes_last(unit.tickets + warp_index(), unit.splits * args.matrices)) return;
        gather_splits(unit.parts + (args.matrices - 1) * unit.splits * SUM_WORDS, unit.splits, acc);
        if (args.matrices == 2) gather_splits(unit.parts, unit.splits, more);
    }
    apply(args, factors, more, acc);
    write_out(args, unit, more, acc);
}
