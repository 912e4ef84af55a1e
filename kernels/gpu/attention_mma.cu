// Attention with matrix units: see attention_tiles.h, whose groups of warps are thread blocks here.
//
// Rows share a block if they see the same slots at the same places; a row that goes by its path has a block to itself for the
// splits in which that lies. PATHS: there may be such rows. PREPARES: each row is by itself, and those that attend make its queries and its key
// ready first, which spares a launch; whoever has the split in which the key lies stores it.
#include "arch.h"
#ifndef PATHS
#define PATHS 1
#define PREPARES 0
#endif

DEVICE u32 group_thread() { return thread_index(); }
DEVICE u32 group_warp() { return warp_index(); }
DEVICE void sync_group() { sync_threads(); }
#include "attention_tiles.h"
#if PREPARES
#include "heads.h"
#endif

// Splits of a row whose parts a thread has under way at once.
constexpr u32 FLIGHT = 8;

// The rows that a block is launched for.
struct Tile {
    u32 first_row, split;
    // Rows that share what they see with none before them, and rows that share it with the one before: bits.
    u32 leads, joined;
    // Whether it is a row that goes by its path.
    bool by_path;
};

DEVICE bool sees_one_split(const AttendArgs& args, const Row& row) {
    Places splits = splits_of(seen_by(row, args.window, args.causal));
    return splits.first + 1 == splits.end;
}
#if PREPARES
// Each row is a tile. `rows_seen`: what it sees.
DEVICE Tile find_tile(const AttendArgs& args, RowSeen* rows_seen) {
    u32 num_rows = args.end_row - args.first_row;
    Tile tile = {};
    tile.first_row = args.first_row + block_x() % num_rows;
    tile.split = block_x() / num_rows;
    Row row = args.tables.rows[tile.first_row];
    if (row.segment == NONE) return tile;
    Places seen = seen_of_split(row, args.window, args.causal, tile.split);
    tile.leads = seen.first < seen.end;
    if (thread_index() == 0) *rows_seen = {seen, args.tickets && sees_one_split(args, row)};
    return tile;
}
DEVICE void take_rows(Block& block, Tile& tile, RowSeen* rows_seen) {
    tile.leads = 0;
    block.rows = 1;
    block.seen = rows_seen->places;
    block.lead = tile.first_row;
    block.rows_seen = rows_seen;
}
#else
// The first blocks take single rows that go by their paths, the others tiles of rows that do not. `rows_seen`: what each
// row of the tile sees of the split.
DEVICE Tile find_tile(const AttendArgs& args, RowSeen* rows_seen) {
    Tile tile = {};
    u32 num_rows = args.end_row - args.first_row, path_blocks = num_rows * args.path_splits, x = block_x(), limit = 1;
    tile.by_path = PATHS && x < path_blocks;
    if (tile.by_path) {
        tile.first_row = args.first_row + x % num_rows;
    } else {
        u32 tiles = (num_rows + args.tile_rows - 1) / args.tile_rows;
        limit = args.tile_rows;
        tile.first_row = args.first_row + (x - path_blocks) % tiles * limit;
        tile.split = (x - path_blocks) / tiles;
    }
    u32 lane = lane_index(), index = tile.first_row + lane, segment_index = NONE;
    Places seen = {0, 0};
    bool is_taken = false, is_alone = false;
    if (lane < limit && index < args.end_row) {
        Row row = args.tables.rows[index];
        segment_index = row.segment;
        if (row.segment != NONE && (row.path != NONE || !tile.by_path)) {
            Segment segment = args.tables.segments[row.segment];
            if (tile.by_path) tile.split = segment.committed_len / SPLIT + x / num_rows;
            seen = seen_of_split(row, args.window, args.causal, tile.split);
            is_taken = seen.first < seen.end && is_in_place(row, segment, tile.split) != tile.by_path;
            is_alone = args.tickets && sees_one_split(args, row);
        }
    }
    if (tile.by_path) tile.split = shuffle(tile.split, 0);
    u32 before = larger(lane, 1u) - 1;
    u32 segment_before = shuffle(segment_index, before), taken_before = shuffle((u32)is_taken, before);
    bool joins = lane > 0 && is_taken && taken_before && segment_before == segment_index;
    tile.joined = ballot(joins);
    tile.leads = ballot(is_taken) & ~tile.joined;
    if (warp_index() == 0) rows_seen[lane] = {seen, is_alone};
    return tile;
}
// The next lead and the rows that follow it.
DEVICE void take_rows(Block& block, Tile& tile, RowSeen* rows_seen) {
    u32 lane = lane_index(), lead = 0;
    while (!(tile.leads >> lead & 1)) lead++;
    tile.leads &= tile.leads - 1;
    block.rows = 1;
    while (lead + block.rows < LANES && tile.joined >> (lead + block.rows) & 1) block.rows++;
    Places seen = rows_seen[lead + smaller(lane, block.rows - 1)].places;
    block.seen.first = warp_least(seen.first);
    block.seen.end = ~warp_least(~seen.end);
    block.lead = tile.first_row + lead;
    block.rows_seen = rows_seen + lead;
}
#endif

// Puts the splits of a row's heads together, MEMBERS at most, where the block's queries were.
DEVICE void combine_row(const AttendArgs& args, const Block& block, u32 row_index) {
    constexpr u32 QUADS = HEAD_DIM / 4;
    // Maxima and sums of each head's splits.
    Vec2f* sums = reinterpret_cast<Vec2f*>(block.q);
    Places splits = splits_of(seen_by(args.tables.rows[row_index], args.window, args.causal));
    u32 count = splits.end - splits.first;
    u64 heads = (u64)(row_index - args.first_row) * args.num_heads + block.kv_head * GROUP;
    sync_threads();
    for (u32 i = thread_index(); i < GROUP * count; i += THREADS)
        sums[i] = args.sums[(heads + i / count) * args.num_splits + splits.first + i % count];
    sync_threads();
    for (u32 i = thread_index(); i < GROUP * QUADS; i += THREADS) {
        u32 head = i / QUADS, quad = i % QUADS;
        u64 answer_at = (u64)row_index * args.num_heads + block.kv_head * GROUP + head;
        Vec4f gates = gates_of(args, answer_at, quad);
        const Vec4f* partials = reinterpret_cast<const Vec4f*>(args.partials + ((heads + head) * args.num_splits + splits.first) * HEAD_DIM) + quad;
        float top = -1e30f;
        for (u32 s = 0; s < count; s++) top = larger(top, sums[head * count + s].x);
        Mixed mixed = {};
#pragma unroll 1
        for (u32 first = 0; first < count; first += FLIGHT) {
            Vec4f parts[FLIGHT];
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) parts[j] = partials[(u64)smaller(first + j, count - 1) * QUADS];
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) {
                if (first + j >= count) continue;
                Vec2f of_split = sums[head * count + first + j];
                Mixed member = {};
                add_split(member, exp2_fast(of_split.x - top), of_split.y, parts[j]);
                add_split(mixed, 1.0f, member.total, member.sum);
            }
        }
        put_answer(args, answer_at, quad, mixed, gates);
    }
}
// Puts those rows of a block together that have no splits left to be done, of those with more than one.
DEVICE void combine_rows(const AttendArgs& args, const Block& block) {
    SHARED u32 complete;
    u32 lane = lane_index();
    bool is_one_of_several = lane < block.rows && !block.rows_seen[lane].is_alone;
    if (!ballot(is_one_of_several)) return;
    sync_threads();
    if (warp_index() == 0) {
        bool is_last = false;
        fence_device();
        if (is_one_of_several) {
            Places splits = splits_of(seen_by(args.tables.rows[block.lead + lane], args.window, args.causal));
            u32* ticket = args.tickets + (block.lead - args.first_row + lane) * args.num_kv_heads + block.kv_head;
            u32 count = splits.end - splits.first;
            is_last = take_ticket(ticket, count) + 1 == count;
        }
        fence_device();
        u32 rows = ballot(is_last);
        if (lane == 0) complete = rows;
    }
    sync_threads();
    for (u32 i = 0; i < block.rows; i++)
        if (complete >> i & 1) combine_row(args, block, block.lead + i);
}

// Asks for the pages of keys and values that the first rows of a tile see, as far as L2: what of them is still to be written
// is read later.
DEVICE void prefetch_pages(const AttendArgs& args, const Tile& tile, const RowSeen* rows_seen) {
    u32 first_row = 0, page = lane_index() / 2;
    sync_warp();
    if (tile.leads == 0 || page >= SPLIT / PAGE_TOKENS) return;
    while (!(tile.leads >> first_row & 1)) first_row++;
    Places seen = rows_seen[first_row].places;
    u32 slot = tile.split * SPLIT + page * PAGE_TOKENS;
    if (slot + PAGE_TOKENS <= seen.first || slot >= seen.end) return;
    Segment segment = args.tables.segments[args.tables.rows[tile.first_row + first_row].segment];
    u64 at = (u64)page_of(args.tables, segment, slot) * args.num_kv_heads + block_y();
    u32 bytes = (lane_index() % 2 ? ValueFormat::PAGE_UNITS : KeyFormat::PAGE_UNITS) * sizeof(u16);
    prefetch(static_cast<const u8*>(lane_index() % 2 ? args.v : args.k) + at * bytes, bytes);
}

#if PREPARES
struct LaunchArgs {
    AttendArgs attend;
    PrepareArgs prepare;
};
DEVICE const AttendArgs& attend_args(const LaunchArgs& args) { return args.attend; }
#else
typedef AttendArgs LaunchArgs;
DEVICE const AttendArgs& attend_args(const LaunchArgs& args) { return args; }
#endif

// Grid: single rows and tiles of rows by splits, key heads.
KERNEL_AHEAD(attend, LaunchArgs, THREADS, 2) {
    DYNAMIC_SHARED(memory);
    // Read by four.
    SHARED Vec4u at[SPLIT / 4];
    SHARED RowSeen rows_seen[LANES];
    let_next_start();
    // A copy, with which the compiler needs fewer registers.
    AttendArgs attend = attend_args(args);
#if PREPARES
    // Heads of a row that share the key, the key, and its values.
    u32 queries = block_y() * GROUP;
    auto number_of = [&](u32 i) { return i < GROUP ? queries + i : attend.num_heads + block_y(); };
    Head head(args.prepare, number_of(smaller(warp_index(), (u32)GROUP)));
#endif
    Tile tile = find_tile(attend, rows_seen);
    if (warp_index() == 0 && !tile.by_path) prefetch_pages(attend, tile, rows_seen);
    if (tile.leads == 0) {
        // The first block waits for all that have nothing to do, whose room others need: the launch ends after the one before it.
        if (block_x() + block_y() == 0) wait_for_inputs();
        return;
    }
    Block block;
    block.split = tile.split;
    block.first = tile.split * SPLIT;
    block.kv_head = block_y();
    block.at = reinterpret_cast<u32*>(at);
    block.q = memory;
    auto next = [&] {
        // Also: what the rows before left in shared memory is done with.
        sync_threads();
        take_rows(block, tile, rows_seen);
        find_places(attend, block);
    };
    next();
#if PREPARES
    Row row = attend.tables.rows[tile.first_row];
    u32 count = GROUP + (row.slot / SPLIT == tile.split);
    float* heads = reinterpret_cast<float*>(memory + TILES * 8 * (Q_PITCH > WEIGHT_PITCH ? Q_PITCH : WEIGHT_PITCH));
    head.take(args.prepare, row);
    wait_for_inputs();
#pragma unroll 1
    for (u32 i = warp_index(); i < count; i += WARPS) {
        if (GROUP + 1 > WARPS && i != warp_index()) {
            head = Head(args.prepare, number_of(i));
            head.take(args.prepare, row);
        }
        float* values = heads + i * HEAD_DIM;
        head.make_ready(args.prepare, tile.first_row, values, values);
        if (i == GROUP) continue;
        sync_warp();
        for (u32 quad = lane_index(); quad < HEAD_DIM / 4; quad += LANES) put_query(block, i, quad, reinterpret_cast<const Vec4f*>(values)[quad]);
    }
    // Others read them, and the key.
    sync_threads();
#else
    wait_for_inputs();
#endif
#pragma unroll 1
    for (;;) {
        attend_rows(attend, block, PATHS && tile.by_path, PREPARES);
        if (attend.tickets) combine_rows(attend, block);
        if (tile.leads == 0) return;
        next();
    }
}
