// What matmul_wide.cu computes, to the bit, where one warp of a thread block feeds the others (ring.h).
//
// As many blocks as run at a time take units of work in turn. The feeding warp is ahead of the others by STAGES stages, from one
// unit to the next, and nobody else waits for anybody but where two warps' sums make outputs (PAIRED).
// TYPES: bit mask of the types in use. GROUPED: all of 256 inputs or all floats of 16 bits, and every four warps multiply together, as grouped.h has it. PAIRED:
// gate and up at once, of one type and without splits.
#ifndef TYPES
#define TYPES (1 << 12)
#define GROUPED 1
#define PAIRED 0
#define COLUMN_TILES 8
#define ROW_WARPS 8
#define STAGES 4
#define RESIDENT 1
#endif
#define COLUMN_WARPS 1
#define AT_ONCE COLUMN_TILES
#define EARLY_OUTPUTS (COLUMN_TILES <= 4 || GROUPED)
// Groups of floats have the registers for it.
#define HOLDS_SUMS (GROUPED && (TYPES & ~(1 << F16 | 1 << BF16)) == 0)
#include "ring.h"
#include "wide.h"
#if GROUPED
#include "grouped.h"
#endif

#if HAS_RINGS

typedef Ring<STAGES> Stages;

// Of the feeding warp and, as registers go from four warps to four warps, of three that end at once.
constexpr u32 FEEDERS = ROW_WARPS % 4 == 0 ? 4 * LANES : LANES, FEEDER_REGISTERS = 32;
constexpr u32 FIRST_REGISTERS = 65536 / RESIDENT / (THREADS + FEEDERS) / 8 * 8;
constexpr u32 REGISTERS = smaller(240u, (FIRST_REGISTERS * (THREADS + FEEDERS) - FEEDER_REGISTERS * FEEDERS) / THREADS / 8 * 8);
constexpr bool ARE_GIVEN = ROW_WARPS % 4 == 0 && FIRST_REGISTERS < REGISTERS;

constexpr u32 SHARED_LINE = 128;
DEVICE constexpr u32 whole_lines(u32 bytes) { return (bytes + SHARED_LINE - 1) / SHARED_LINE * SHARED_LINE; }
// How weights and columns lie in a stage: tiles of 256 inputs, of 128 where columns take much room. A warp's rows begin where a line of shared
// memory does, and so do stages.
template <u32 T> struct Stage {
    static constexpr u32 COLS = tile_cols(T), STEP = (is_float(T) ? 128 : 256) / COLS;
    // Of a warp's rows, and of all columns for the inputs of a tile.
    static constexpr u32 ROW_BYTES = whole_lines(STEP * tile_bytes(T)), COLUMN_BYTES = COLUMN_TILES * form_bytes(T);
    static constexpr u32 COLUMNS_AT = ROW_WARPS * ROW_BYTES, BYTES = COLUMNS_AT + STEP * COLUMN_BYTES;
};
template <u32 T> constexpr u32 largest_stage() {
    if constexpr (T == 32) return 0;
    else return (TYPES >> T & 1) != 0 && Stage<T>::BYTES > largest_stage<T + 1>() ? Stage<T>::BYTES : largest_stage<T + 1>();
}
constexpr u32 STAGE_BYTES = whole_lines(largest_stage<0>());
static_assert(Stages::BARRIER_BYTES <= SHARED_LINE, "barriers have a line");
// Of each warp and of the one that feeds them.
struct alignas(SHARED_LINE) Units {
    Unit of[THREADS / LANES + 1];
};

// Tiles of a unit's slices `s..s + count`.
template <u32 T> struct Range {
    u32 tiles, from, to;

    DEVICE_MEMBER Range(const WideArgs& args, u32 s, u32 count) {
        tiles = (args.cols + Stage<T>::COLS - 1) / Stage<T>::COLS;
        from = slice_start(s, args.cols, 256 / Stage<T>::COLS, tiles);
        to = slice_start(s + count, args.cols, 256 / Stage<T>::COLS, tiles);
    }
};

// By the warp that feeds the others: one matrix of a unit of work. Each lane copies a warp's rows, or all columns for a tile's inputs.
struct Feed {
    template <u32 T> static DEVICE_MEMBER void of(const WideArgs& args, const Unit& unit, u32 matrix, Stages& ring, u8* stages) {
        using S = Stage<T>;
        u32 slices = SLICES / unit.splits, lane = lane_index();
        Range<T> range(args, unit.split * slices, slices);
        u32 row_tiles = smaller(ROW_TILES, (unit.rows - unit.first_row + TILE_ROWS - 1) / TILE_ROWS), tile = lane % ROW_TILES;
        bool has_rows = lane < ROW_WARPS && tile < row_tiles;
        const u8* rows = unit.weights[PAIRED ? lane / ROW_TILES % 2 : matrix];
        rows += ((u64)(unit.first_row / TILE_ROWS + tile) * range.tiles + range.from) * tile_bytes(T);
        u64 all_columns = (u64)args.column_blocks * S::COLUMN_BYTES;
        const u8* columns = form_of<T>(args.x) + (range.from + lane) * all_columns + unit.column_block * S::COLUMN_BYTES;
        auto begin = [&](u32 stage, u32 count) {
            if (lane == 0) ring.expect(stage, count * ((PAIRED ? 2 : 1) * row_tiles * tile_bytes(T) + S::COLUMN_BYTES));
            sync_warp();
            if (has_rows) ring.copy(stage, stages + stage * STAGE_BYTES + lane * S::ROW_BYTES, rows, count * tile_bytes(T));
            rows += S::STEP * tile_bytes(T);
        };
        u32 begun = range.from;
        if (unit.number == block_x() && matrix == unit.matrix) {
            // Weights are nobody's result: they are on their way before the activations are there.
#pragma unroll 1
            for (u32 stage = 0; stage < STAGES && begun < range.to; stage++, begun += S::STEP) begin(stage, smaller(S::STEP, range.to - begun));
            if (has_rows && begun < range.to) prefetch(rows, smaller(AHEAD_BYTES, (range.to - begun) * tile_bytes(T)));
            wait_for_inputs();
        }
#pragma unroll 1
        for (u32 k = range.from; k < range.to; k += S::STEP) {
            u32 count = smaller(S::STEP, range.to - k);
            if (k >= begun) {
                ring.wait_until_free();
                begin(ring.slot, count);
            }
            u8* to = stages + ring.slot * STAGE_BYTES + S::COLUMNS_AT + lane * S::COLUMN_BYTES;
            if (lane < count) ring.copy(ring.slot, to, columns, S::COLUMN_BYTES);
            columns += S::STEP * all_columns;
            ring.next();
        }
    }
};

// By the others: its sums.
struct Multiply {
    template <u32 T>
    static DEVICE_MEMBER void of(const WideArgs& args, const Unit& unit, u32 matrix, Stages& ring, const u8* stages, u8* sums, Sums& acc) {
        using S = Stage<T>;
        u32 slices = SLICES / unit.splits, first = unit.split * slices;
        Sums held = {};
#pragma unroll 1
        for (u32 s = 0; s < slices; s++) {
            Range<T> range(args, first + s, 1);
#pragma unroll
            for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) acc[ct][i] = 0.0f;
#pragma unroll 1
            for (u32 k = range.from; k < range.to; k += S::STEP) {
                ring.wait_until_full();
                // The compiler knows it for the same in all lanes so.
                const u8* stage = stages + shuffle(ring.slot, 0) * STAGE_BYTES;
                const u8* weights = stage + warp_index() * S::ROW_BYTES;
                Columns columns = {stage + S::COLUMNS_AT, form_bytes(T), COLUMNS};
#pragma unroll 1
                for (u32 i = 0; i < smaller(S::STEP, range.to - k); i++) {
#if GROUPED
                    multiply_grouped<T>(weights + i * tile_bytes(T), columns, acc);
#else
                    multiply_tile<T>(weights + i * tile_bytes(T), columns, acc);
#endif
                    columns.at += S::COLUMN_BYTES;
                }
                ring.release();
                ring.next();
            }
            // A binary counter.
            u32 level = 0;
            if constexpr (HOLDS_SUMS) {
                level = s % 2;
#pragma unroll
                for (u32 ct = 0; ct < COLUMN_TILES; ct++)
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        if (level == 0) held[ct][i] = acc[ct][i];
                        else acc[ct][i] = held[ct][i] + acc[ct][i];
                    }
                if (level == 0) continue;
            }
#pragma unroll 1
            for (; s >> level & 1; level++) add_sums(waiting(unit, sums, level), acc);
            if (s + 1 < slices) store_sums(waiting(unit, sums, level), acc);
        }
    }
};

#if PAIRED
// Of what two warps have summed up, each makes half of the outputs.
DEVICE void put_pairs(const WideArgs& args, const Unit& unit, u8* shared, const Sums& acc) {
    constexpr u32 FROM_SUMS = 1;
    Vec4f* sums = reinterpret_cast<Vec4f*>(shared);
    store_sums(sums, acc);
    sync_some(FROM_SUMS, THREADS);
    bool is_up = warp_index() >= ROW_TILES;
    u32 half = is_up, partner = thread_index() + THREADS / 2 - half * THREADS;
    for_outputs(args, unit, 0, COLUMN_TILES, [&](u32 ct, u32 i, float* to) {
        if (i / 2 != half) return;
        float own = acc[ct][i], other = reinterpret_cast<const float*>(sums + ct * THREADS + partner)[i];
        float gate = is_up ? other : own, up = is_up ? own : other;
        *to = silu(gate) * up;
    });
    // The next unit's take their place.
    sync_some(FROM_SUMS, THREADS);
}
#endif

DEVICE void find_unit_of_warp(const WideArgs& args, u32 number, Unit& unit) {
    sync_warp();
    if (lane_index() == 0) find_unit(args, number, unit);
    sync_warp();
}

KERNEL_AHEAD(matmul_fed, WideArgs, THREADS + FEEDERS, RESIDENT) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    SHARED Units units;
    Stages ring(shared, THREADS / LANES);
    u8* sums = shared + SHARED_LINE;
    u8* stages = sums + waiting_bytes(args);
    if (warp_index() >= THREADS / LANES) {
        if constexpr (ARE_GIVEN) give_registers<FEEDER_REGISTERS>();
        if (warp_index() > THREADS / LANES) return;
        Unit& unit = units.of[THREADS / LANES];
#pragma unroll 1
        for (u32 number = block_x(); number < args.units; number += grid_x()) {
            find_unit_of_warp(args, number, unit);
            u32 last = unit.splits == 1 && !PAIRED ? args.matrices - 1 : unit.matrix;
#pragma unroll 1
            for (u32 m = unit.matrix; m <= last; m++) visit_type<Feed>(unit.types[m], args, unit, m, ring, stages);
        }
    } else {
        if constexpr (ARE_GIVEN) take_registers<REGISTERS>();
        wait_for_inputs();
        Unit& unit = units.of[warp_index()];
#pragma unroll 1
        for (u32 number = block_x(); number < args.units; number += grid_x()) {
            find_unit_of_warp(args, number, unit);
            // On their way with the first stage.
            Factors factors = factors_of(args, unit);
            Sums acc;
#if PAIRED
            visit_type<Multiply>(unit.types[0], args, unit, unit.matrix, ring, stages, sums, acc);
            apply(args, factors, acc);
            put_pairs(args, unit, sums, acc);
#else
            // If it is whole, both matrices in turn.
            u32 last = unit.splits == 1 ? args.matrices - 1 : unit.matrix;
#pragma unroll 1
            for (u32 m = unit.matrix; m <= last; m++) {
                visit_type<Multiply>(unit.types[m], args, unit, m, ring, stages, sums, acc);
                if (m < last) store_sums(unit.parts + 2 * SUM_WORDS, acc);
            }
            put_out(args, unit, factors, acc);
#endif
        }
    }
}

#endif
