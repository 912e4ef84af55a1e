// Attention of a step's row: keys are scored, values mixed split by split, and splits put together. Needs what attention_tiles.h and phases.h
// need.
#pragma once
#include "phases.h"
#include "ring.h"

// So many warps mix values together, and so many of such groups at a time.
constexpr u32 MIXERS = 8, MIXING_GROUPS = BLOCK_WARPS / MIXERS;
static_assert(TILES < 5, "eight warps attend together");
DEVICE u32 group_thread() { return thread_index() % (MIXERS * LANES); }
DEVICE u32 group_warp() { return warp_index() % MIXERS; }
// racecheck does not follow barriers of some warps: for it groups go in step.
DEVICE void sync_group() {
    if constexpr (FOR_RACECHECK) sync_threads();
    else sync_some(1 + warp_index() / MIXERS, MIXERS * LANES);
}
namespace attention {
#include "attention_tiles.h"
#include "quantise.h"
#include "turns.h"
}

// Of a block that scores keys.
struct ScoreShared {
    float q[GROUP][HEAD_DIM];
    float key[HEAD_DIM];
    // The queries as columns.
    u8 queries[TILES * 8 * attention::Q_PITCH];
};
// Parts of a head's dims that groups mix each for itself, where groups are many and splits few.
constexpr u32 MOST_PARTS = 4, RUNS_OF_PART = (attention::DIM_RUNS + MOST_PARTS - 1) / MOST_PARTS;
constexpr u32 PARTS = (attention::DIM_RUNS + RUNS_OF_PART - 1) / RUNS_OF_PART;
// Of a group of warps that mixes values.
struct MixShared {
    float gates[GROUP][HEAD_DIM];
    Vec4u at[attention::SPLIT / 4];
    attention::RowSeen seen;
    u32 unused;
    u8 weights[TILES * 8 * attention::WEIGHT_PITCH];
};

// A head of the row, normed and rotated, from words to shared memory.
DEVICE void prepare_head(const Context& step, const Attend& layer, const Source& from, u32 first, const float* gamma, float* to) {
    constexpr u32 DIMS = (HEAD_DIM + LANES - 1) / LANES;
    float values[DIMS];
    take_strided(step.waiting, from, first, first + HEAD_DIM, values);
#pragma unroll
    for (u32 i = 0; i < DIMS; i++)
        if (lane_index() + i * LANES < HEAD_DIM) to[lane_index() + i * LANES] = values[i];
    sync_warp();
    attention::HeadArgs args = {gamma, layer.turns, layer.eps, layer.pairs, layer.adjacent};
    attention::prepare_head<HEAD_DIM>(to, to, args, (u64)step.segment.first_position + step.row.place);
    if constexpr (attention::ROTATES_KEYS) {
#pragma unroll
        for (u32 i = 0; i < DIMS; i++) values[i] = lane_index() + i * LANES < HEAD_DIM ? to[lane_index() + i * LANES] : 0.0f;
        attention::rotate(values, false);
#pragma unroll
        for (u32 i = 0; i < DIMS; i++)
            if (lane_index() + i * LANES < HEAD_DIM) to[lane_index() + i * LANES] = values[i];
    }
    sync_warp();
}
// A head's page that a slot lies in.
DEVICE u64 page_at(const Context& step, const Attend& layer, u32 kv_head, u32 slot) {
    return (u64)page_of(step.tables, step.segment, slot) * layer.num_kv_heads + kv_head;
}
DEVICE attention::KeyUnit* key_page(const Context& step, const Attend& layer, u32 kv_head, u32 slot) {
    return static_cast<attention::KeyUnit*>(layer.cache_k) + page_at(step, layer, kv_head, slot) * attention::KeyFormat::PAGE_UNITS;
}
DEVICE attention::ValueUnit* value_page(const Context& step, const Attend& layer, u32 kv_head, u32 slot) {
    return static_cast<attention::ValueUnit*>(layer.cache_v) + page_at(step, layer, kv_head, slot) * attention::ValueFormat::PAGE_UNITS;
}
constexpr u32 KEY_PAGE_BYTES = attention::KeyFormat::PAGE_UNITS * sizeof(attention::KeyUnit);
constexpr u32 VALUE_PAGE_BYTES = attention::ValueFormat::PAGE_UNITS * sizeof(attention::ValueUnit);
// The row's own key and value, into the cache.
constexpr u32 HEAD_VALUES = (HEAD_DIM + LANES - 1) / LANES;
DEVICE void keep_key(const Context& step, const Attend& layer, u32 kv_head, const float* key) {
    float values[HEAD_VALUES];
#pragma unroll
    for (u32 i = 0; i < HEAD_VALUES; i++) values[i] = lane_index() + i * LANES < HEAD_DIM ? key[lane_index() + i * LANES] : 0.0f;
    attention::store_row<K_TYPE, true>(key_page(step, layer, kv_head, step.row.slot), step.row.slot % PAGE_TOKENS, values);
}
DEVICE void keep_value(const Context& step, const Attend& layer, u32 kv_head) {
    float values[HEAD_VALUES];
    take_strided(step.waiting, layer.v, kv_head * HEAD_DIM, (kv_head + 1) * HEAD_DIM, values);
    attention::store_row<V_TYPE, false>(value_page(step, layer, kv_head, step.row.slot), step.row.slot % PAGE_TOKENS, values);
}

// Where a row sees one split alone, its answers are made where that is attended to.
DEVICE bool is_one(const attention::Places& splits) { return splits.first + 1 == splits.end; }

// Keys are scored by units of so many warps, and a unit is always the same block's: it finds what it has written itself.
constexpr u32 SCORERS = 4, SCORED = SCORERS * attention::RUN, SCORED_PAGES = SCORED / PAGE_TOKENS;
constexpr u32 SPLIT_PAGES = attention::SPLIT / PAGE_TOKENS;
// A warp's run of keys, with all queries; scores go out as words.
DEVICE void score(const Context& step, const Attend& layer, u32 number, u32 kv_head, u32 first, ScoreShared& shared) {
    attention::Block block = {};
    block.q = shared.queries;
    block.tiles = TILES;
    float sums[attention::KEY_TILES][TILES][4] = {};
    u32 slot = slot_of(step.tables, step.row, step.segment, larger(first, step.row.seen_first));
    attention::score_run(sums, key_page(step, layer, kv_head, slot), first % PAGE_TOKENS, block);
    u64* words = static_cast<u64*>(const_cast<void*>(layer.scores.at));
    u64 stamp = (u64)(step.waiting.epoch + number) << 32;
    // As `store_scores` has them.
    u32 key = first + lane_index() / 4 * attention::KEY_TILES * 2;
#pragma unroll
    for (u32 n = 0; n < TILES; n++)
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            u32 column = n * 8 + lane_index() % 4 * 2 + c;
            if (column >= GROUP) continue;
            u64* to = words + (u64)(kv_head * GROUP + column) * layer.num_splits * attention::SPLIT + key;
#pragma unroll
            for (u32 i = 0; i < attention::KEY_TILES; i++) {
                store_word(to + 2 * i, stamp | f32_to_bits(sums[i][n][c]));
                store_word(to + 2 * i + 1, stamp | f32_to_bits(sums[i][n][c + 2]));
            }
        }
}
DEVICE void score_all(const Context& step, const Attend& layer, u32 number, ScoreShared& shared) {
    attention::Places seen = attention::seen_by(step.row, 0, 1);
    u32 heads = layer.num_kv_heads, units = ((seen.end + SCORED - 1) / SCORED) * heads;
    // Of units as far apart as there are blocks, those that have the same queries.
    u32 together = grid_x() % heads == 0 ? BLOCK_WARPS / SCORERS : 1;
#pragma unroll 1
    for (u32 first = block_x(); first < units; first += together * grid_x()) {
        u32 kv_head = first % heads;
        bool is_first = first == block_x();
        // Pages come as far as L2 while nobody has the row: they depend on earlier tokens alone. By the last warps, for to ask takes long, and
        // the first ones have heads to make ready.
        u32 which = warp_index() - (BLOCK_WARPS - together * SCORED_PAGES);
        if (lane_index() == 0 && which < together * SCORED_PAGES) {
            u32 slot = (first + which / SCORED_PAGES * grid_x()) / heads * SCORED + which % SCORED_PAGES * PAGE_TOKENS;
            if (slot < seen.end) prefetch(key_page(step, layer, kv_head, slot), KEY_PAGE_BYTES);
        }
        // The row's own key belongs to one of those units.
        u32 own = step.row.slot / SCORED * heads + kv_head;
        bool has_own = own >= first && (own - first) % grid_x() == 0 && (own - first) / grid_x() < together;
        attention::Block block = {};
        block.q = shared.queries;
        // The key is a head like those of the queries, and goes through the same code.
#pragma unroll 1
        for (u32 head = warp_index(); head <= GROUP; head += BLOCK_WARPS) {
            bool is_key = head == GROUP;
            if (is_key ? !has_own : !is_first && together > 1) continue;
            float* to = is_key ? shared.key : shared.q[head];
            u32 at = is_key ? kv_head * HEAD_DIM : (kv_head * GROUP + head) * layer.q_stride;
            prepare_head(step, layer, is_key ? layer.k : layer.q, at, is_key ? layer.k_gamma : layer.q_gamma, to);
            if (is_key) {
                keep_key(step, layer, kv_head, to);
                continue;
            }
            for (u32 quad = lane_index(); quad < HEAD_DIM / 4; quad += LANES)
                attention::put_query(block, head, quad, reinterpret_cast<const Vec4f*>(to)[quad]);
        }
        sync_threads();
        u32 unit = first + warp_index() / SCORERS * grid_x(), key = unit / heads * SCORED + warp_index() % SCORERS * attention::RUN;
        bool is_seen = key < seen.end && key + attention::RUN > seen.first;
        if (warp_index() / SCORERS < together && unit < units && is_seen) score(step, layer, number, kv_head, key, shared);
        sync_threads();
    }
}

// Parts that a head's dims are cut in: so that no group has two, or they are not cut.
DEVICE u32 parts_of(u32 num_kv_heads, const attention::Places& splits) {
    u32 units = (splits.end - splits.first) * num_kv_heads;
    return units * PARTS <= grid_x() * MIXING_GROUPS ? PARTS : 1;
}
// Weights of a head in a group's column, from its scores.
DEVICE void weigh(const Context& step, const Attend& layer, u32 head, attention::Places seen, u32 first, u8* column, bool is_alone, u64 result) {
    u32 own = first + 8 * lane_index();
    float scores[8] = {};
    if (own < seen.end && own + 8 > seen.first)
        take_run<false>(step.waiting, layer.scores, head * layer.num_splits * attention::SPLIT + own, scores);
    Vec4f* to = reinterpret_cast<Vec4f*>(column) + 2 * lane_index();
    to[0] = {scores[0], scores[1], scores[2], scores[3]};
    to[1] = {scores[4], scores[5], scores[6], scores[7]};
    Vec2f sums = attention::weigh(column, seen, first);
    if (lane_index() > 0) return;
    *reinterpret_cast<float*>(column + attention::WEIGHT_TOTAL) = sums.y;
    if (!is_alone) layer.sums[result] = sums;
}
// Dims `part` of `parts` of a split's values.
DEVICE void mix(const Context& step, const Attend& layer, u32 number, u32 kv_head, u32 split, u32 part, u32 parts, bool is_alone, MixShared& shared) {
    attention::Block block = {};
    block.rows = 1;
    block.columns = GROUP;
    block.tiles = TILES;
    block.split = split;
    block.first = split * attention::SPLIT;
    block.kv_head = kv_head;
    block.seen = attention::seen_of_split(step.row, 0, 1, split);
    block.at = reinterpret_cast<u32*>(shared.at);
    block.weights = shared.weights;
    block.rows_seen = &shared.seen;
    attention::AttendArgs args = {};
    args.v = layer.cache_v;
    args.partials = layer.partials;
    args.sums = layer.sums;
    args.num_heads = layer.num_heads;
    args.num_kv_heads = layer.num_kv_heads;
    args.num_splits = layer.num_splits;
    // The row and its segment are at hand.
    args.tables = step.tables;
    args.tables.rows = &step.row;
    args.tables.segments = &step.segment - step.row.segment;
    if (group_thread() == 0) shared.seen = {block.seen, is_alone};
    if (group_warp() == MIXERS - 1 && lane_index() < SPLIT_PAGES && lane_index() % parts == part) {
        u32 slot = block.first + lane_index() * PAGE_TOKENS;
        if (slot < block.seen.end) prefetch(value_page(step, layer, kv_head, slot), VALUE_PAGE_BYTES);
    }
    attention::find_places(args, block);
    u32 first_run = parts == 1 ? 0 : part * RUNS_OF_PART;
    u32 end_run = parts == 1 ? attention::DIM_RUNS : smaller(first_run + RUNS_OF_PART, attention::DIM_RUNS);
    // Each part of the split that has the row's own value keeps it: it reads what it has written.
    bool has_own = step.row.slot / attention::SPLIT == split;
#pragma unroll 1
    for (u32 c = group_warp(); c < GROUP + has_own; c += MIXERS) {
        if (c == GROUP) {
            keep_value(step, layer, kv_head);
            continue;
        }
        u32 head = kv_head * GROUP + c;
        if (is_alone && layer.gates.at) {
            float gates[HEAD_VALUES];
            u32 first = head * layer.q_stride + HEAD_DIM;
            take_strided(step.waiting, layer.gates, first, first + HEAD_DIM, gates);
#pragma unroll
            for (u32 i = 0; i < HEAD_VALUES; i++)
                if (lane_index() + i * LANES < HEAD_DIM) shared.gates[c][lane_index() + i * LANES] = gates[i];
        }
        u8* column = block.weights + c * attention::WEIGHT_PITCH;
        weigh(step, layer, head, block.seen, block.first, column, is_alone, attention::result_at(args, block, c));
    }
    sync_group();
    auto put_dims = [&](u32 column, u32 dim, const float (&sum)[2 * attention::DIM_TILES]) {
        for (u32 i = 0; i < 2 * attention::DIM_TILES; i++) {
            float value = layer.gates.at ? sum[i] * sigmoid(shared.gates[column][dim + i]) : sum[i];
            put(layer.out, (kv_head * GROUP + column) * HEAD_DIM + dim + i, value, step.waiting.epoch + layer.answer);
        }
    };
#pragma unroll 1
    for (u32 run = first_run + group_warp(); run < end_run; run += MIXERS) attention::mix(args, block, run, put_dims);
    // The next unit takes the place of weights, and whoever finds the number finds the parts.
    sync_group();
    u32* done = layer.done + (kv_head * layer.num_splits + split) * PARTS + part;
    if (!is_alone && group_thread() == 0) store_release(done, step.waiting.epoch + number);
}
DEVICE void mix_all(const Context& step, const Attend& layer, u32 number, MixShared* shared) {
    attention::Places splits = attention::splits_of(attention::seen_by(step.row, 0, 1));
    u32 parts = parts_of(layer.num_kv_heads, splits), group = warp_index() / MIXERS;
    u32 units = (splits.end - splits.first) * layer.num_kv_heads * parts;
    auto mix_unit = [&](u32 unit) {
        u32 kv_head = unit / parts % layer.num_kv_heads, split = splits.first + unit / parts / layer.num_kv_heads;
        mix(step, layer, number, kv_head, split, unit % parts, parts, is_one(splits), shared[group]);
    };
    u32 apart = grid_x() * MIXING_GROUPS;
    if constexpr (FOR_RACECHECK) {
        // A group without a unit does the last one once more.
        for (u32 first = block_x(); first < units; first += apart) mix_unit(smaller(first + grid_x() * group, units - 1));
        return;
    }
#pragma unroll 1
    for (u32 unit = block_x() + grid_x() * group; unit < units; unit += apart) mix_unit(unit);
}

// Four dims of a head's answer, with its gate.
constexpr u32 QUADS = HEAD_DIM / 4;
DEVICE void put_quad(const Context& step, const Source& gated, u32 q_stride, u32 head, u32 quad, const attention::Mixed& mixed,
                     const Target& to, u32 number) {
    float values[4] = {mixed.sum.x, mixed.sum.y, mixed.sum.z, mixed.sum.w}, gates[4];
    if (gated.at) take_run(step.waiting, gated, head * q_stride + HEAD_DIM + quad * 4, gates);
    float share = reciprocal(mixed.total);
    for (u32 i = 0; i < 4; i++) {
        float value = values[i] * share;
        if (gated.at) value *= sigmoid(gates[i]);
        put(to, head * HEAD_DIM + quad * 4 + i, value, step.waiting.epoch + number);
    }
}

// As combine.cu does it: a warp is a member, a lane has four dims.
constexpr u32 RUNS = (QUADS + LANES - 1) / LANES;
struct CombineShared {
    Vec4f sums[attention::MEMBERS][LANES];
    float totals[attention::MEMBERS][LANES];
};
static_assert(sizeof(CombineShared) == 16 * 32 * 20, "as src/gpu/megakernel.rs has it");
DEVICE void combine(const Context& step, const Combine& layer, u32 number, u32 unit, CombineShared& shared) {
    u32 head = unit / RUNS, quad = unit % RUNS * LANES + lane_index(), kv_head = head / layer.heads_of_key;
    attention::Places splits = attention::splits_of(attention::seen_by(step.row, 0, 1));
    if (is_one(splits)) return;
    const u32* done = layer.done + kv_head * layer.num_splits * PARTS;
    u32 parts = parts_of(layer.num_heads / layer.heads_of_key, splits);
    for (u32 s = splits.first * PARTS + thread_index(); s < splits.end * PARTS; s += BLOCK_THREADS) {
        u32 looks = 0;
        while (s % PARTS < parts && load_acquire(done + s) != step.waiting.epoch + layer.number && keeps_waiting(step.waiting, looks)) {}
    }
    sync_threads();
    bool is_used = quad < QUADS;
    const Vec2f* sums = layer.sums + (u64)head * layer.num_splits;
    const Vec4f* partials = reinterpret_cast<const Vec4f*>(layer.partials + (u64)head * layer.num_splits * HEAD_DIM) + (is_used ? quad : 0);
    float top = -1e30f;
    for (u32 s = splits.first + lane_index(); s < splits.end; s += LANES) top = larger(top, sums[s].x);
    top = warp_max(top);
#pragma unroll 1
    for (u32 member = warp_index(); member < attention::MEMBERS; member += BLOCK_WARPS) {
        attention::Mixed mixed = {};
#pragma unroll 4
        for (u32 s = splits.first / attention::MEMBERS * attention::MEMBERS + member; s < splits.end; s += attention::MEMBERS)
            if (s >= splits.first) attention::add_split(mixed, exp2_fast(sums[s].x - top), sums[s].y, partials[(u64)s * QUADS]);
        shared.sums[member][lane_index()] = mixed.sum;
        shared.totals[member][lane_index()] = mixed.total;
    }
    sync_threads();
    if (warp_index() == 0 && is_used) {
        attention::Mixed mixed = {shared.sums[0][lane_index()], shared.totals[0][lane_index()]};
        for (u32 m = 1; m < attention::MEMBERS; m++)
            attention::add_split(mixed, 1.0f, shared.totals[m][lane_index()], shared.sums[m][lane_index()]);
        put_quad(step, layer.gates, layer.q_stride, head, quad, mixed, layer.out, number);
    }
    sync_threads();
}
