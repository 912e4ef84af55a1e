// What matmul_wide.cu computes, to the bit, where one warp of a thread block feeds the others (ring.h).
//
// As many blocks as run at a time take units of work in turn. The feeding warp is ahead of the others by STAGES stages, from one
// unit to the next, and nobody else waits for anybody but for a turn (grouped.h) or for the sums of a cluster (CLUSTER).
// CLUSTER: blocks of a cluster; more than 1: they have the splits of the same outputs, a unit each, of one matrix, and sum them up among themselves.
// CUTS: of the rows of units that are split, groups of warps each.
// TYPES: bit mask of the types in use. GROUPED: all of 256 inputs or all floats of 16 bits, and every four warps multiply together, as grouped.h has it.
#ifndef TYPES
#define TYPES (1 << 12)
#define GROUPED 1
#define COLUMN_TILES 8
#define ROW_WARPS 8
#define STAGES 4
#define RESIDENT 1
#define SHARED_PLACES 1
#define CLUSTER 1
#define CUTS 1
#endif
#define COLUMN_WARPS 1
#define AT_ONCE COLUMN_TILES
#define EARLY_OUTPUTS (COLUMN_TILES <= 4 || GROUPED)
// Groups of floats have the registers for single ones.
#define HOLDS_SUMS (GROUPED && (TYPES & ~(1 << F16 | 1 << BF16)) == 0)
#include "ring.h"
#include "wide.h"
#if GROUPED
#include "grouped.h"
#endif

#if HAS_RINGS
#if CLUSTER > 1
#include "cluster.h"
#endif

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
// Of each warp and of the one that feeds them. Whole lines, so that stages begin with one.
struct alignas(SHARED_LINE) Units {
    Unit of[THREADS / LANES + 1];
#if CLUSTER > 1
    // Of what comes to each warp.
    u64 counters[THREADS / LANES];
#endif
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
        u32 first = unit.first_warp(), all = (unit.rows - unit.first_row + TILE_ROWS - 1) / TILE_ROWS;
        u32 row_tiles = first < all ? smaller(unit.warps(), all - first) : 0;
        bool has_rows = lane - first < row_tiles;
        const u8* rows = unit.weights[matrix] + ((u64)(unit.first_row / TILE_ROWS + lane) * range.tiles + range.from) * tile_bytes(T);
        u64 all_columns = (u64)args.column_blocks * S::COLUMN_BYTES;
        const u8* columns = form_of<T>(args.x) + (range.from + lane) * all_columns + unit.column_block * S::COLUMN_BYTES;
        auto begin = [&](u32 stage, u32 count) {
            if (lane == 0) ring.expect(stage, count * (row_tiles * tile_bytes(T) + S::COLUMN_BYTES));
            sync_warp();
            if (has_rows) {
                u8* to = stages + stage * STAGE_BYTES + lane * S::ROW_BYTES;
                if (args.column_blocks == 1) ring.copy_once(stage, to, rows, count * tile_bytes(T));
                else ring.copy(stage, to, rows, count * tile_bytes(T));
            }
            rows += S::STEP * tile_bytes(T);
        };
        bool is_begun = unit.number == block_x() && matrix == unit.matrix;
        if (is_begun) {
            // Weights are nobody's result: they are on their way before the activations are there. No more of them than a stage, since the first
            // columns queue behind them (docs/tuning.md, "Steps of trees").
            begin(ring.slot, smaller(S::STEP, range.to - range.from));
            wait_for_inputs();
        }
#pragma unroll 1
        for (u32 k = range.from; k < range.to; k += S::STEP) {
            u32 count = smaller(S::STEP, range.to - k);
            if (!is_begun || k > range.from) {
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
        Sums held;
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
            meet_slices(unit, sums, s, slices, held, acc);
        }
    }
};

#if CUTS > 1
// By those whose rows are others' unit.
struct Skip {
    template <u32 T> static DEVICE_MEMBER void of(const WideArgs& args, const Unit& unit, Stages& ring) {
        u32 slices = SLICES / unit.splits;
        Range<T> range(args, unit.split * slices, slices);
#pragma unroll 1
        for (u32 k = range.from; k < range.to; k += Stage<T>::STEP) {
            ring.wait_until_full();
            skip_turn<T>();
            ring.release();
            ring.next();
        }
    }
};
#endif

#if CLUSTER > 1
// A block of the cluster sums up and writes these column tiles.
constexpr u32 OWN_TILES = (COLUMN_TILES + CLUSTER - 1) / CLUSTER;
constexpr u32 INBOX_WORDS = CLUSTER * OWN_TILES * 4 * LANES;
DEVICE void put_in_cluster(const WideArgs& args, const Unit& unit, Inbox inbox, const Sums& acc) {
    u32 rank = unit.split, lane = lane_index(), rows = unit.rows, first_tile = rank * OWN_TILES;
    u32 count = first_tile >= COLUMN_TILES ? 0 : smaller(OWN_TILES, COLUMN_TILES - first_tile);
    if (lane == 0) inbox.expect(CLUSTER * count * LANES * sizeof(Vec4f));
    u32 row = unit.first_row + warp_index() * TILE_ROWS + lane / 4;
    u32 column = (unit.column_block * BLOCK_COLUMN_TILES + first_tile) * COLUMNS + lane % 4 * 2;
    float* first = unit.out + (u64)column * rows + row;
    auto each_own = [&](const auto& each) {
        float* at = first;
#pragma unroll
        for (u32 t = 0; t < OWN_TILES; t++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (t < count && row + i / 2 * 8 < rows && column + t * COLUMNS + i % 2 < args.num_rows) each(t, i, at + i % 2 * rows + i / 2 * 8);
            at += COLUMNS * rows;
        }
    };
    float before[OWN_TILES][4] = {}, factors[OWN_TILES][2];
    if (args.accumulate) each_own([&](u32 t, u32 i, const float* at) { before[t][i] = *at; });
    if (args.factors)
#pragma unroll
        for (u32 t = 0; t < OWN_TILES; t++)
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                u32 c = column + t * COLUMNS + j;
                factors[t][j] = t < count && c < args.num_rows ? args.factors[c] : 0.0f;
            }
    wait_for_cluster();
#pragma unroll
    for (u32 ct = 0; ct < COLUMN_TILES; ct++) {
        Inbox to = inbox.of_block(ct / OWN_TILES);
        to.send(((rank * OWN_TILES + ct % OWN_TILES) * LANES + lane) * 4, Vec4f{acc[ct][0], acc[ct][1], acc[ct][2], acc[ct][3]});
    }
    inbox.wait_until_full();
    float own[OWN_TILES][4];
#pragma unroll
    for (u32 t = 0; t < OWN_TILES; t++) {
        Vec4f v[CLUSTER];
#pragma unroll
        for (u32 s = 0; s < CLUSTER; s++) v[s] = inbox.four(((s * OWN_TILES + t) * LANES + lane) * 4);
#pragma unroll
        for (u32 apart = 1; apart < CLUSTER; apart *= 2)
#pragma unroll
            for (u32 s = 0; s + apart < CLUSTER; s += 2 * apart) {
                const Vec4f& other = v[s + apart];
                v[s] = {v[s].x + other.x, v[s].y + other.y, v[s].z + other.z, v[s].w + other.w};
            }
        own[t][0] = v[0].x, own[t][1] = v[0].y, own[t][2] = v[0].z, own[t][3] = v[0].w;
        if (args.factors)
#pragma unroll
            for (u32 i = 0; i < 4; i++) own[t][i] = multiply(factors[t][i % 2], own[t][i]);
    }
    each_own([&](u32 t, u32 i, float* to) { *to = args.accumulate ? before[t][i] + own[t][i] : own[t][i]; });
}
#endif

DEVICE void find_unit_of_warp(const WideArgs& args, u32 number, Unit& unit) {
    sync_warp();
    if (lane_index() == 0) find_unit(args, number, unit);
    sync_warp();
}

#if CLUSTER > 1
KERNEL_CLUSTERED(matmul_fed, WideArgs, THREADS + FEEDERS, RESIDENT, CLUSTER) {
#else
KERNEL_AHEAD(matmul_fed, WideArgs, THREADS + FEEDERS, RESIDENT) {
#endif
    let_next_start();
    DYNAMIC_SHARED(shared);
    SHARED Units units;
    u8* sums = shared + SHARED_LINE;
    u8* stages = sums + SHARED_PLACES * SUM_WORDS * sizeof(Vec4f);
#if CLUSTER > 1
    // A warp's sums meet those of the same rows.
    u32 of_warp = smaller(warp_index(), THREADS / LANES - 1);
    Inbox inbox = Inbox::at(stages + of_warp * INBOX_WORDS * sizeof(float), units.counters[of_warp]);
    stages += THREADS / LANES * INBOX_WORDS * sizeof(float);
    if (lane_index() == 0 && warp_index() == of_warp) inbox.begin();
#endif
    Stages ring(shared, THREADS / LANES);
#if CLUSTER > 1
    arrive_at_cluster();
#endif
    if (warp_index() >= THREADS / LANES) {
        if constexpr (ARE_GIVEN) give_registers<FEEDER_REGISTERS>();
        bool feeds = warp_index() == THREADS / LANES;
        Unit& unit = units.of[THREADS / LANES];
#pragma unroll 1
        for (u32 number = block_x(); feeds && number < args.units; number += grid_x()) {
            find_unit_of_warp(args, number, unit);
            u32 last = unit.splits == 1 ? args.matrices - 1 : unit.matrix;
#pragma unroll 1
            for (u32 m = unit.matrix; m <= last; m++) visit_type<Feed>(unit.types[m], args, unit, m, ring, stages);
        }
#if CLUSTER > 1
        // No thread of a cluster is gone before all have come.
        wait_for_cluster();
#endif
    } else {
        if constexpr (ARE_GIVEN) take_registers<REGISTERS>();
#if GROUPED
        begin_turns();
#endif
        Unit& unit = units.of[warp_index()];
#pragma unroll 1
        for (u32 number = block_x(); number < args.units; number += grid_x()) {
            find_unit_of_warp(args, number, unit);
            if (number == block_x()) wait_for_inputs();
            Sums acc;
#if CLUSTER > 1
            visit_type<Multiply>(unit.types[0], args, unit, unit.matrix, ring, stages, sums, acc);
            put_in_cluster(args, unit, inbox, acc);
#else
#if CUTS > 1
            if (!unit.has_work(warp_index())) {
                visit_type<Skip>(unit.types[unit.matrix], args, unit, ring);
                continue;
            }
#endif
            // On their way with the first stage.
            Factors factors = factors_of(args, unit);
            // If it is whole, both matrices in turn.
            u32 last = unit.splits == 1 ? args.matrices - 1 : unit.matrix;
#pragma unroll 1
            for (u32 m = unit.matrix; m <= last; m++) {
                visit_type<Multiply>(unit.types[m], args, unit, m, ring, stages, sums, acc);
                if (m < last) store_sums(sums_at<OF_FIRST_MATRIX>(unit, sums), acc);
            }
            put_out(args, unit, sums, factors, acc);
#endif
        }
#if GROUPED
        end_turns();
#endif
    }
}

#endif
