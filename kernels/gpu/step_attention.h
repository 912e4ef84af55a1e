// Attention of a step's row: keys are scored, and values mixed split by split; step_combine.h puts the splits together. Needs what attention_tiles.h
// and phases.h need.
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
static_assert(attention::SPLIT % BLOCK_WORDS == 0, "words of a split's scores are of whole blocks");
// Where units are few, a warp has 16 keys, or 16 dims of a split's values, and brings so many steps of them at once: as many as some 64
// registers have room for. Elsewhere it has as many tiles as in graphs, for which half as many instructions do.
constexpr u32 held_steps(u32 words, u32 steps) {
    u32 count = 1;
    while (steps % (2 * count) == 0 && 2 * count * words <= 64) count *= 2;
    return count;
}
constexpr u32 HELD_KEYS = held_steps(sizeof(attention::RawKeys<K_TYPE, 1>) / 4, attention::DIM_STEPS);
constexpr u32 HELD_VALUES = held_steps(sizeof(attention::RawValues<V_TYPE, 1>), attention::KEY_STEPS);
constexpr u32 WIDE_KEYS = attention::KEY_TILES, WIDE_DIMS = attention::DIM_TILES;
typedef attention::HeldValues<1, HELD_VALUES> Values;
// Parts of a head's dims that groups mix each for itself, where groups are many and splits few.
constexpr u32 MOST_PARTS = 4, DIM_TILES = HEAD_DIM / 16, TILES_OF_PART = (DIM_TILES + MOST_PARTS - 1) / MOST_PARTS;
constexpr u32 PARTS = (DIM_TILES + TILES_OF_PART - 1) / TILES_OF_PART;
// Of a group of warps that mixes values.
struct MixShared {
    float gates[GROUP][HEAD_DIM];
    Vec4u at[attention::SPLIT / 4];
    u8 weights[TILES * 8 * attention::WEIGHT_PITCH];
};

// A head of the row, normed and rotated, to shared memory.
DEVICE void prepare_head(const Context& step, const Attend& layer, const Source& from, u32 first, const float* gamma, float* to) {
    constexpr u32 DIMS = (HEAD_DIM + LANES - 1) / LANES;
    attention::HeadArgs args = {gamma, layer.turns, layer.eps, layer.pairs, layer.adjacent};
    attention::HeadTurns<HEAD_DIM> turns(args, (u64)step.segment.first_position + step.row.place);
    Some<DIMS, HEAD_DIM> head(step.waiting, from, first, first, first + HEAD_DIM);
    turns.turn();
    float values[DIMS];
    head.wait(step.waiting, values);
    turns.make_ready(args, values, to);
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
    take_strided<HEAD_DIM>(step.waiting, layer.v, kv_head * HEAD_DIM, (kv_head + 1) * HEAD_DIM, values);
    attention::store_row<V_TYPE, false>(value_page(step, layer, kv_head, step.row.slot), step.row.slot % PAGE_TOKENS, values);
}

// Where a row sees one split alone, its answers are made where that is attended to.
DEVICE bool is_one(const attention::Places& splits) { return splits.first + 1 == splits.end; }

// Keys are scored by units of a page, and a unit is always the same block's: it finds what it has written itself.
constexpr u32 SPLIT_PAGES = attention::SPLIT / PAGE_TOKENS;
// Units of a block at a time, by single tiles.
constexpr u32 UNITS = BLOCK_WARPS * 16 / PAGE_TOKENS;
// Scores of a warp's N tiles of keys from place `first` on, with all queries; they go out as words.
template <u32 N, u32 COUNT>
DEVICE void score(const Context& step, const Attend& layer, u32 number, u32 kv_head, u32 first, const attention::KeyUnit* page,
                  const attention::Block& block) {
    float sums[N][TILES][4] = {};
    attention::score_run<N, COUNT>(sums, page, first % PAGE_TOKENS, block);
    u64* words = static_cast<u64*>(const_cast<void*>(layer.scores.at));
    u64 stamp = (u64)(step.waiting.epoch + number) << 32;
#pragma unroll
    for (u32 n = 0; n < TILES; n++)
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            u32 column = n * 8 + lane_index() % 4 * 2 + c;
            if (column >= GROUP) continue;
            u64* row = words + (u64)(kv_head * GROUP + column) * layer.num_splits * attention::SPLIT;
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                u64* to = row + word_place(first + lane_index() / 4 * 2 * N + 2 * i);
                store_words(to, stamp | f32_to_bits(sums[i][n][c]), stamp | f32_to_bits(sums[i][n][c + 2]));
            }
        }
}
DEVICE void score_all(const Context& step, const Attend& layer, u32 number, Share share, ScoreShared& shared) {
    attention::Places seen = attention::seen_by(step.row, 0, 1);
    u32 kv_head = share.of_head - 1, units = (seen.end + PAGE_TOKENS - 1) / PAGE_TOKENS, own_unit = step.row.slot / PAGE_TOKENS;
    bool is_wide = units > UNITS * layer.stride;
    u32 keys = is_wide ? 16 * WIDE_KEYS : 16, together = is_wide ? UNITS * WIDE_KEYS : UNITS;
    attention::Block block = {};
    block.q = shared.queries;
    block.tiles = TILES;
#pragma unroll 1
    for (u32 first = share.first; first < units; first += together * layer.stride) {
        bool is_first = first == share.first, has_own = false;
        u32 warp = warp_index(), at = warp * keys, unit = first + at / PAGE_TOKENS * layer.stride;
        u32 token = at % PAGE_TOKENS, key = unit * PAGE_TOKENS + token;
        bool has_run = unit < units && key < seen.end && key + keys > seen.first;
#pragma unroll
        for (u32 i = 0; i < UNITS * WIDE_KEYS; i++) has_own |= i < together && first + i * layer.stride == own_unit;
        u32 slot = has_run ? slot_of(step.tables, step.row, step.segment, larger(key, seen.first)) : 0;
        const attention::KeyUnit* page = has_run ? key_page(step, layer, kv_head, slot) : nullptr;
        // Keys come as far as L2 while nobody has the row: but for its own they depend on earlier tokens alone. By the last warps, for to ask takes
        // long, and the first ones make heads ready.
        u32 nth = BLOCK_WARPS - 1 - warp, asked = first + nth * layer.stride;
        if (lane_index() == 0 && nth < together && asked < units) prefetch(key_page(step, layer, kv_head, asked * PAGE_TOKENS), KEY_PAGE_BYTES);
        // The key is a head like those of the queries, and goes through the same code.
#pragma unroll 1
        for (u32 head = warp; head <= GROUP; head += BLOCK_WARPS) {
            bool is_key = head == GROUP;
            if (is_key ? !has_own : !is_first) continue;
            float* to = is_key ? shared.key : shared.q[head];
            u32 of_head = is_key ? kv_head * HEAD_DIM : (kv_head * GROUP + head) * layer.q_stride;
            prepare_head(step, layer, is_key ? layer.k : layer.q, of_head, is_key ? layer.k_gamma : layer.q_gamma, to);
            if (is_key) {
                keep_key(step, layer, kv_head, to);
                continue;
            }
            for (u32 quad = lane_index(); quad < HEAD_DIM / 4; quad += LANES)
                attention::put_query(block, head, quad, reinterpret_cast<const Vec4f*>(to)[quad]);
        }
        sync_threads();
        if (has_run) {
            if (is_wide) score<WIDE_KEYS, attention::DIM_DEPTH>(step, layer, number, kv_head, key, page, block);
            else score<1, HELD_KEYS>(step, layer, number, kv_head, key, page, block);
        }
        sync_threads();
    }
}

// Parts that a head's dims are cut in: so that no group has two, or they are not cut.
DEVICE u32 parts_of(u32 stride, const attention::Places& splits) {
    return (splits.end - splits.first) * PARTS <= stride * MIXING_GROUPS ? PARTS : 1;
}
// Weights of a head in a group's column, from its scores. `puts_sums`: whoever puts splits together has their maximum and sum from here.
DEVICE void weigh(const Context& step, const Attend& layer, u32 number, u32 head, const attention::Block& block, u8* column, bool puts_sums) {
    u32 of_head = head * layer.num_splits;
    Source scores = {static_cast<const u64*>(layer.scores.at) + (u64)of_head * attention::SPLIT, layer.scores.number};
    float x[8];
    // Whole tiles are scored.
    take_block<Words>(step.waiting, scores, block.split, (block.seen.end + 15) / 16 * 16, x, block.seen.first / 16 * 16);
    Vec2f sums = attention::weigh(x, column, block.seen, block.first);
    if (lane_index() > 0) return;
    *reinterpret_cast<float*>(column + attention::WEIGHT_TOTAL) = sums.y;
    if (!puts_sums) return;
    u64 stamp = (u64)(step.waiting.epoch + number) << 32;
    u64* to = layer.sums + 2 * of_head + block.split;
    store_word(to, stamp | f32_to_bits(sums.x));
    store_word(to + layer.num_splits, stamp | f32_to_bits(sums.y));
}
// A warp's dims of a split's values, weighed: answers, or parts of them.
template <u32 N>
DEVICE void put_mixed(const Context& step, const Attend& layer, u32 number, u32 dim, const float (&sums)[N][TILES][4], const attention::Block& block,
                      bool is_alone, const MixShared& shared) {
    u64 stamp = (u64)(step.waiting.epoch + number) << 32;
    bool is_gated = layer.gates.at != nullptr;
#pragma unroll
    for (u32 n = 0; n < TILES; n++)
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            u32 column = n * 8 + lane_index() % 4 * 2 + c, head = block.kv_head * GROUP + column;
            if (column >= GROUP) continue;
            float share = is_alone ? reciprocal(*reinterpret_cast<const float*>(
                                         shared.weights + column * attention::WEIGHT_PITCH + attention::WEIGHT_TOTAL))
                                   : 0.0f;
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                float two[2] = {sums[i][n][c], sums[i][n][c + 2]};
                u32 at = dim + 2 * i;
                if (!is_alone) {
                    u64* to = layer.partials + ((u64)head * layer.num_splits + block.split) * HEAD_DIM + at;
                    store_words(to, stamp | f32_to_bits(two[0]), stamp | f32_to_bits(two[1]));
                    continue;
                }
                for (u32 k = 0; k < 2; k++) {
                    float value = attention::answer(two[k], share, is_gated, is_gated ? shared.gates[column][at + k] : 0.0f);
                    put(step.waiting, layer.out, head * HEAD_DIM + at + k, value);
                }
            }
        }
}
// Dims of a split's values from tile `first_tile` on.
DEVICE void mix(const Context& step, const Attend& layer, u32 number, u32 kv_head, u32 split, u32 first_tile, u32 end_tile, bool is_alone,
                MixShared& shared) {
    bool is_wide = end_tile - first_tile == DIM_TILES;
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
    attention::AttendArgs args = {};
    args.v = layer.cache_v;
    args.num_kv_heads = layer.num_kv_heads;
    // The row and its segment are at hand.
    args.tables = step.tables;
    args.tables.rows = &step.row;
    args.tables.segments = &step.segment - step.row.segment;
    const u16* values = static_cast<const u16*>(args.v);
    // All of them come as far as L2 where warps have scores to wait for before they read them.
    if (is_wide && group_warp() == MIXERS - 1 && lane_index() < SPLIT_PAGES) {
        u32 slot = block.first + lane_index() * PAGE_TOKENS;
        if (slot < block.seen.end) prefetch(value_page(step, layer, kv_head, slot), VALUE_PAGE_BYTES);
    }
    attention::find_places(args, block);
    // Each part of the split that has the row's own value keeps it: it reads what it has written. Later tokens' parts may be other blocks'.
    if (step.row.slot / attention::SPLIT == split && group_warp() == 0) {
        keep_value(step, layer, kv_head);
        fence_device();
    }
    sync_group();
    // The last warps have the first tiles, for the first ones have scores to weigh.
    u32 warp = group_warp(), tiles = is_wide ? WIDE_DIMS : 1, tile = first_tile + (MIXERS - 1 - warp) * tiles;
    bool is_early = !is_wide && warp >= GROUP;
    auto dim_of = [&](u32 at) { return at * 16 + lane_index() / 4 * 2 * tiles; };
    Values held;
    if (is_early && tile < end_tile) {
        held.load(values, dim_of(tile), 0, block);
    } else {
#pragma unroll 1
        for (u32 c = warp; c < GROUP; c += MIXERS) {
            u32 head = kv_head * GROUP + c;
            if (is_alone && layer.gates.at) {
                float gates[HEAD_VALUES];
                u32 first = head * layer.q_stride + HEAD_DIM;
                take_strided<HEAD_DIM>(step.waiting, layer.gates, first, first + HEAD_DIM, gates);
#pragma unroll
                for (u32 i = 0; i < HEAD_VALUES; i++)
                    if (lane_index() + i * LANES < HEAD_DIM) shared.gates[c][lane_index() + i * LANES] = gates[i];
            }
            weigh(step, layer, number, head, block, block.weights + c * attention::WEIGHT_PITCH, !is_alone && first_tile == 0);
        }
        // Written on one way alone they would have registers on the other one, too, and from the loop's beginning on.
        held = {};
    }
    sync_group();
    if (is_wide) {
#pragma unroll 1
        for (; tile < end_tile; tile += MIXERS * WIDE_DIMS) {
            float sums[WIDE_DIMS][TILES][4] = {};
            attention::mix_run(sums, args, block, dim_of(tile));
            put_mixed(step, layer, number, dim_of(tile), sums, block, is_alone, shared);
        }
    } else {
#pragma unroll 1
        for (; tile < end_tile; tile += MIXERS) {
            float sums[1][TILES][4] = {};
#pragma unroll 1
            for (u32 i = 0; i * attention::STEP < block.seen.end - block.first; i += HELD_VALUES) {
                if (!is_early) held.load(values, dim_of(tile), i, block);
                is_early = false;
                held.multiply_all(sums, dim_of(tile), i, block);
            }
            put_mixed(step, layer, number, dim_of(tile), sums, block, is_alone, shared);
        }
    }
    // The next unit takes the place of weights.
    sync_group();
}
DEVICE void mix_all(const Context& step, const Attend& layer, u32 number, Share share, MixShared* shared) {
    attention::Places splits = attention::splits_of(attention::seen_by(step.row, 0, 1));
    u32 parts = parts_of(layer.stride, splits), group = warp_index() / MIXERS, units = (splits.end - splits.first) * parts;
    auto mix_unit = [&](u32 unit) {
        u32 split = splits.first + (parts == 1 ? unit : unit / PARTS), first_tile = parts == 1 ? 0 : unit % PARTS * TILES_OF_PART;
        u32 end_tile = parts == 1 ? DIM_TILES : smaller(first_tile + TILES_OF_PART, DIM_TILES);
        mix(step, layer, number, share.of_head - 1, split, first_tile, end_tile, is_one(splits), shared[group]);
    };
    u32 apart = layer.stride * MIXING_GROUPS;
    if constexpr (FOR_RACECHECK) {
        // A group without a unit does the last one once more.
        for (u32 first = share.first; first < units; first += apart) mix_unit(smaller(first + layer.stride * group, units - 1));
        return;
    }
#pragma unroll 1
    for (u32 unit = share.first + layer.stride * group; unit < units; unit += apart) mix_unit(unit);
}
