// Attention of a step's row, split by split, and the splits put together. Needs what attention_tiles.h and phases.h need.
#pragma once
#include "phases.h"
#include "ring.h"

// So many warps attend together, and so many of such groups at a time.
constexpr u32 ATTENDING = 8, ATTENDING_GROUPS = BLOCK_WARPS / ATTENDING;
static_assert(TILES < 5, "eight warps attend together");
DEVICE u32 group_thread() { return thread_index() % (ATTENDING * LANES); }
DEVICE u32 group_warp() { return warp_index() % ATTENDING; }
// racecheck does not follow barriers of some warps: for it groups go in step.
DEVICE void sync_group() {
    if constexpr (FOR_RACECHECK) sync_threads();
    else sync_some(1 + warp_index() / ATTENDING, ATTENDING * LANES);
}
namespace attention {
#include "attention_tiles.h"
#include "quantise.h"
#include "turns.h"
}

// Of a group of warps.
struct AttendShared {
    float q[GROUP][HEAD_DIM];
    float key[HEAD_DIM];
    Vec4u at[attention::SPLIT / 4];
    attention::RowSeen seen;
    u32 unused;
    // Queries, then weights.
    u8 columns[TILES * 8 * (attention::Q_PITCH > attention::WEIGHT_PITCH ? attention::Q_PITCH : attention::WEIGHT_PITCH)];
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
// The row's own key and value, into the cache.
constexpr u32 HEAD_VALUES = (HEAD_DIM + LANES - 1) / LANES;
DEVICE u64 own_page(const Context& step, const Attend& layer, u32 kv_head) {
    return (u64)page_of(step.tables, step.segment, step.row.slot) * layer.num_kv_heads + kv_head;
}
DEVICE void keep_key(const Context& step, const Attend& layer, u32 kv_head, float* key) {
    float values[HEAD_VALUES];
    prepare_head(step, layer, layer.k, kv_head * HEAD_DIM, layer.k_gamma, key);
    auto* page = static_cast<attention::KeyUnit*>(layer.cache_k) + own_page(step, layer, kv_head) * attention::KeyFormat::PAGE_UNITS;
#pragma unroll
    for (u32 i = 0; i < HEAD_VALUES; i++) values[i] = lane_index() + i * LANES < HEAD_DIM ? key[lane_index() + i * LANES] : 0.0f;
    attention::store_row<K_TYPE, true>(page, step.row.slot % PAGE_TOKENS, values);
}
DEVICE void keep_value(const Context& step, const Attend& layer, u32 kv_head) {
    float values[HEAD_VALUES];
    auto* page = static_cast<attention::ValueUnit*>(layer.cache_v) + own_page(step, layer, kv_head) * attention::ValueFormat::PAGE_UNITS;
    take_strided(step.waiting, layer.v, kv_head * HEAD_DIM, (kv_head + 1) * HEAD_DIM, values);
    attention::store_row<V_TYPE, false>(page, step.row.slot % PAGE_TOKENS, values);
}

// Four dims of a head's answer, with its gate.
constexpr u32 QUADS = HEAD_DIM / 4;
DEVICE void put_quad(const Context& step, const Source& gated, u32 q_stride, u32 head, u32 quad, const attention::Mixed& mixed, const Target& to, u32 number) {
    float values[4] = {mixed.sum.x, mixed.sum.y, mixed.sum.z, mixed.sum.w}, gates[4];
    if (gated.at) take_run(step.waiting, gated, head * q_stride + HEAD_DIM + quad * 4, gates);
    float share = reciprocal(mixed.total);
    for (u32 i = 0; i < 4; i++) {
        float value = values[i] * share;
        if (gated.at) value *= sigmoid(gates[i]);
        put(to, head * HEAD_DIM + quad * 4 + i, value, step.waiting.epoch + number);
    }
}
// Where a row sees one split alone, its answers are made where that is attended to.
DEVICE bool is_one(const attention::Places& splits) { return splits.first + 1 == splits.end; }
DEVICE void answer(const Context& step, const Attend& layer, u32 kv_head, u32 split) {
#pragma unroll 1
    for (u32 i = group_thread(); i < GROUP * QUADS; i += ATTENDING * LANES) {
        u32 head = kv_head * GROUP + i / QUADS, quad = i % QUADS;
        u64 at = (u64)head * layer.num_splits + split;
        attention::Mixed mixed = {};
        attention::add_split(mixed, 1.0f, layer.sums[at].y, reinterpret_cast<const Vec4f*>(layer.partials)[at * QUADS + quad]);
        put_quad(step, layer.gates, layer.q_stride, head, quad, mixed, layer.out, layer.answer);
    }
}

DEVICE void attend(const Context& step, const Attend& layer, u32 number, u32 kv_head, u32 split, bool is_alone, AttendShared& shared) {
    attention::Places seen = attention::seen_of_split(step.row, 0, 1, split);
    bool has_own = step.row.slot / attention::SPLIT == split;
#pragma unroll 1
    for (u32 head = group_warp(); head < GROUP + 2 * has_own; head += ATTENDING) {
        if (head < GROUP) prepare_head(step, layer, layer.q, (kv_head * GROUP + head) * layer.q_stride, layer.q_gamma, shared.q[head]);
        else if (head == GROUP) keep_key(step, layer, kv_head, shared.key);
        else keep_value(step, layer, kv_head);
    }
    if (group_thread() == 0) shared.seen = {seen, false};
    sync_group();
    attention::AttendArgs args = {};
    // Heads are counted from the first one.
    args.q = shared.q[0] - (u64)kv_head * GROUP * HEAD_DIM;
    args.q_stride = HEAD_DIM;
    args.k = layer.cache_k;
    args.v = layer.cache_v;
    // The row and its segment are at hand.
    args.tables = step.tables;
    args.tables.rows = &step.row;
    args.tables.segments = &step.segment - step.row.segment;
    args.partials = layer.partials;
    args.sums = layer.sums;
    args.num_heads = layer.num_heads;
    args.num_kv_heads = layer.num_kv_heads;
    args.num_splits = layer.num_splits;
    attention::Block block = {};
    block.rows = 1;
    block.split = split;
    block.first = split * attention::SPLIT;
    block.kv_head = kv_head;
    block.seen = seen;
    block.at = reinterpret_cast<u32*>(shared.at);
    block.q = shared.columns;
    block.rows_seen = &shared.seen;
    attention::find_places(args, block);
    attention::attend_rows(args, block, false, false);
    sync_group();
    if (is_alone) answer(step, layer, kv_head, split);
    else if (group_thread() == 0) store_release(layer.done + kv_head * layer.num_splits + split, step.waiting.epoch + number);
}
DEVICE void attend_all(const Context& step, const Attend& layer, u32 number, AttendShared* shared) {
    attention::Places splits = attention::splits_of(attention::seen_by(step.row, 0, 1));
    u32 count = splits.end - splits.first, group = warp_index() / ATTENDING, units = count * layer.num_kv_heads;
    auto attend_unit = [&](u32 unit) {
        attend(step, layer, number, unit % layer.num_kv_heads, splits.first + unit / layer.num_kv_heads, is_one(splits), shared[group]);
    };
    u32 apart = grid_x() * ATTENDING_GROUPS;
    if constexpr (FOR_RACECHECK) {
        // A group without a unit does the last one once more.
        for (u32 first = block_x(); first < units; first += apart) attend_unit(smaller(first + grid_x() * group, units - 1));
        return;
    }
#pragma unroll 1
    for (u32 unit = block_x() + grid_x() * group; unit < units; unit += apart) attend_unit(unit);
}

// As combine.cu does it: a warp is a member, a lane has four dims.
constexpr u32 RUNS = (QUADS + LANES - 1) / LANES;
struct CombineShared {
    attention::Mixed parts[attention::MEMBERS][LANES];
};
DEVICE void combine(const Context& step, const Combine& layer, u32 number, u32 unit, CombineShared& shared) {
    u32 head = unit / RUNS, quad = unit % RUNS * LANES + lane_index(), kv_head = head / layer.heads_of_key;
    attention::Places splits = attention::splits_of(attention::seen_by(step.row, 0, 1));
    if (is_one(splits)) return;
    const u32* done = layer.done + kv_head * layer.num_splits;
    for (u32 s = splits.first + thread_index(); s < splits.end; s += BLOCK_THREADS) {
        u32 looks = 0;
        while (load_acquire(done + s) != step.waiting.epoch + layer.number && keeps_waiting(step.waiting, looks)) {}
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
        shared.parts[member][lane_index()] = mixed;
    }
    sync_threads();
    if (warp_index() == 0 && is_used) {
        attention::Mixed mixed = shared.parts[0][lane_index()];
        for (u32 m = 1; m < attention::MEMBERS; m++) {
            const attention::Mixed& part = shared.parts[m][lane_index()];
            attention::add_split(mixed, 1.0f, part.total, part.sum);
        }
        put_quad(step, layer.gates, layer.q_stride, head, quad, mixed, layer.out, number);
    }
    sync_threads();
}
