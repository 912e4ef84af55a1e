// Gated DeltaNet for long walks and trees: rows are prepared, the recurrence is walked. Answers are normed by activate.cu.
#include "delta_state.h"

// Convolution, norm of q and k, decay and write strength; a warp takes a head of a few rows.
struct PrepareArgs {
    Tables tables;
    Layer layer;
    // [N, CHANNELS]: q of length q_scale, k of length 1, v. [N, HV]: decay and strength.
    float* prepared;
    Vec2f* gates;
    u32 num_rows;
    u32 rows_per_warp;
    float q_scale;
};
constexpr u32 PREPARE_WARPS = 4;

template <u32 DIM> DEVICE void prepare_rows(const PrepareArgs& args, u32 head, u32 first_channel, float length) {
    const Layer& layer = args.layer;
    HeadTaps<DIM> weights, values;
    load_weights(weights, layer.conv_weight, first_channel, DIM);
    u32 first_row = block_x() * args.rows_per_warp, end = smaller(first_row + args.rows_per_warp, args.num_rows);
    for (u32 row = first_row; row < end; row++) {
        u32 segment = args.tables.rows[row].segment;
        if (segment == NONE) continue;
        Window window = window_of(args.tables, layer, args.tables.segments[segment].state_index, row);
        wait_for_inputs();
        let_next_start();
        load_values(values, window, first_channel, DIM);
        prepare_head(weights, values, DIM, length, args.prepared + (u64)row * CHANNELS + first_channel);
        if (head < 2 * HK || lane_index() > 0) continue;
        u32 value_head = head - 2 * HK;
        u64 gate = (u64)row * HV + value_head;
        args.gates[gate] = prepare_gates(layer.alpha[gate], layer.beta[gate], layer.a[value_head], layer.dt_bias[value_head]);
    }
}

// A walk does not start before the product in front of this kernel has ended, or its blocks go where that leaves room first.
KERNEL_AHEAD(delta_prepare, PrepareArgs, PREPARE_WARPS * LANES, 1) {
    u32 head = block_y() * PREPARE_WARPS + warp_index();
    if (head < 2 * HK) prepare_rows<DK>(args, head, head * DK, head < HK ? args.q_scale : 1.0f);
    else if (head < HEADS) prepare_rows<DV>(args, head, 2 * HK * DK + (head - 2 * HK) * DV, 0.0f);
    // Who has no row.
    wait_for_inputs();
    let_next_start();
}
// A thread block has a strip of columns of a head, a lane four of them: what the lanes of a column read of a row by turns, q and k, is then read
// for four, and shared memory would be what warps wait for.
constexpr u32 WARP_COLUMNS = 16;
constexpr u32 STRIP_WARPS = 4;
constexpr u32 STRIP = STRIP_WARPS * WARP_COLUMNS;
constexpr u32 STRIPS = (DV + STRIP - 1) / STRIP;
constexpr u32 STRIP_THREADS = STRIP_WARPS * LANES;
// A level of a block: 16-byte pieces of its lanes' states.
constexpr u32 LEVEL_PIECES = QUADS * 4 * STRIP_THREADS;
constexpr u32 MAX_LEVELS = 8;
static_assert(STRIP_WARPS == STEPS, "a warp brings a step in");

// To and from a level, where each thread has a column of pieces of its own.
DEVICE void put_state(const State<4>& state, Vec4f* at) {
#pragma unroll
    for (u32 i = 0; i < 4 * QUADS; i++) at[i * STRIP_THREADS] = together(state.at[i / 4][i % 4]);
}
DEVICE void get_state(State<4>& state, const Vec4f* at) {
#pragma unroll
    for (u32 i = 0; i < 4 * QUADS; i++) spread(at[i * STRIP_THREADS], state.at[i / 4][i % 4]);
}

// By its values: clang keeps what is copied whole under a condition in memory.
DEVICE void set(Vec4f& to, Vec4f from) { to.x = from.x, to.y = from.y, to.z = from.z, to.w = from.w; }
constexpr u32 FETCHES = (DK / 4 + LANES - 1) / LANES;
constexpr u32 STRIP_LANES = STRIP / 4;
// A step on its way to a strip: a lane's share of it. `rest`: v, then the step's words, then decay and strength.
struct Fetched {
    Vec4f q[FETCHES], k[FETCHES], rest;
};
DEVICE void fetch(Fetched& to, const float* prepared, const Vec2f* gates, const Step& step, u32 head, u32 strip) {
    u32 lane = lane_index();
    const float* row = prepared + (u64)step.row * CHANNELS;
    const Vec4f* q = reinterpret_cast<const Vec4f*>(row + head % HK * DK);
    const Vec4f* k = reinterpret_cast<const Vec4f*>(row + (HK + head % HK) * DK);
#pragma unroll
    for (u32 at = 0; at < FETCHES; at++)
        if (DK / 4 % LANES == 0 || at * LANES + lane < DK / 4) {
            set(to.q[at], q[at * LANES + lane]);
            set(to.k[at], k[at * LANES + lane]);
        }
    u32 column = (strip * STRIP_LANES + lane) * 4;
    set(to.rest, {bits_to_f32(step.row), bits_to_f32(step.load), bits_to_f32(step.save), 0.0f});
    if (lane < STRIP_LANES && (DV / 4 % STRIP_LANES == 0 || column < DV)) {
        set(to.rest, *reinterpret_cast<const Vec4f*>(row + 2 * HK * DK + head * DV + column));
    } else if (lane == STRIP_LANES + 1) {
        Vec2f pair = gates[(u64)step.row * HV + head];
        set(to.rest, {pair.x, pair.y, 0.0f, 0.0f});
    }
}
DEVICE void put(const Fetched& from, Staged<STRIP>& to) {
    u32 lane = lane_index();
#pragma unroll
    for (u32 at = 0; at < FETCHES; at++)
        if (DK / 4 % LANES == 0 || at * LANES + lane < DK / 4) {
            set(to.q[at * LANES + lane], from.q[at]);
            set(to.k[at * LANES + lane], from.k[at]);
        }
    if (lane < STRIP_LANES + 2) set(to.v[lane], from.rest);
}

struct WalkArgs {
    Tables tables;
    Layer layer;
    // See PrepareArgs.
    const float* prepared;
    const Vec2f* gates;
    // [N, HV, DV], before the norm.
    float* out;
    // Levels that shared memory has no room for.
    Vec4f* spill;
    u32 shared_levels;
};

// Levels of a walk that shared memory has no room for. The first level takes a node above two others that are no
// leaves, one more takes a node above two walks that need one less.
DEVICE u32 spilled_levels(const Segment& segment, u32 shared_levels) {
    u32 levels = 0;
    while (!segment.advance && levels < MAX_LEVELS && (6u << levels) - 1 <= segment.num_rows) levels++;
    return levels > shared_levels ? levels - shared_levels : 0;
}

// Saved states of a block's lanes, by level.
struct Levels {
    Vec4f* shared;
    u32 shared_levels;
    // Those that shared memory has no room for, so many pieces apart.
    Vec4f* spill;
    u64 spill_stride;

    DEVICE_MEMBER Vec4f* at(u32 level) const {
        return level < shared_levels ? shared + level * LEVEL_PIECES : spill + (level - shared_levels) * spill_stride;
    }
};

// BRANCHES: segments may be trees; saved: a block's levels.
template <bool BRANCHES> DEVICE void walk(const WalkArgs& args, Vec4f* saved) {
    constexpr u32 BLOCKS = HV * STRIPS;
    SHARED Staged<STRIP> staged[2][STEPS];
    Segment segment = args.tables.segments[block_y()];
    u32 num_rows = segment.num_rows;
    if (num_rows == 0 || block_x() >= BLOCKS) wait_for_inputs();
    if (num_rows == 0) return;
    if (block_x() >= BLOCKS) {
        u32 channel = (block_x() - BLOCKS) * STRIP_THREADS + thread_index();
        if (!segment.advance || channel >= CHANNELS) return;
        Window last = window_of_chain(args.tables.steps + segment.first_step, args.layer, segment.state_index, num_rows - 1);
        move_history(args.layer, last, segment.state_index, channel);
        return;
    }
    u32 head = block_x() / STRIPS, strip = block_x() % STRIPS;
    u32 warp = warp_index(), lane = lane_index();
    const Step* steps = args.tables.steps + segment.first_step;
    u32 column = strip * STRIP + warp * WARP_COLUMNS + lane / 8 * 4;
    bool active = DV % STRIP == 0 || column < DV;
    float* committed = args.layer.states + ((u64)segment.state_index * HV + head) * DK * DV + column;
    // Four lanes of the eight that have parts of four columns' answers.
    bool writes = lane % 8 < 4;
    float* out = args.out + head * DV + column + lane % 4;

    Step ahead = {};
    if (warp < num_rows) ahead = steps[warp];
    // The step before has left it, and a copy of this one's tables lies between: no kernel that still runs writes it.
    State<4> state;
    if (active) load_state(state, committed);
    wait_for_inputs();
    Fetched fetched = {};
    if (warp < num_rows) fetch(fetched, args.prepared, args.gates, ahead, head, strip);
    if (STEPS + warp < num_rows) ahead = steps[STEPS + warp];
    if (DK / 4 + lane < KEYS / 4)
        for (u32 side = 0; side < 2; side++) {
            staged[side][warp].q[DK / 4 + lane] = {};
            staged[side][warp].k[DK / 4 + lane] = {};
        }

    Levels levels = {saved + thread_index(), args.shared_levels, nullptr, (u64)BLOCKS * LEVEL_PIECES};
    if (BRANCHES && spilled_levels(segment, args.shared_levels)) {
        // A level after another, those of the segments before first.
        u32 before = 0;
        for (u32 i = 0; i < block_y(); i++) before += spilled_levels(args.tables.segments[i], args.shared_levels);
        levels.spill = args.spill + ((u64)before * BLOCKS + block_x()) * LEVEL_PIECES + thread_index();
    }

    // Of the row before: its answers are summed up while the next one's sums are.
    Parts<4> parts = {};
    float* before = nullptr;
    for (u32 first = 0, side = 0; first < num_rows; first += STEPS, side ^= 1) {
        u32 count = smaller(num_rows - first, STEPS);
        if (warp < count) put(fetched, staged[side][warp]);
        sync_threads();
        if (first + STEPS + warp < num_rows) fetch(fetched, args.prepared, args.gates, ahead, head, strip);
        if (first + 2 * STEPS + warp < num_rows) ahead = steps[first + 2 * STEPS + warp];
        if (!active) continue;
        // One piece of code for all: longer code comes slower than it is done.
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            const Staged<STRIP>& now = staged[side][i];
            u32 load = f32_to_bits(now.step.y), save = f32_to_bits(now.step.z);
            if (BRANCHES && load != NONE && first + i > 0) {
                if (load == BASE) load_state(state, committed);
                else get_state(state, levels.at(load));
            }
            Reading<4> reading = read_by_key(state, now, warp);
            State<4> less = decayed(state, reading.decay);
            float answer = whole(parts);
            add_across(reading.read);
            if (BRANCHES && save == LEAF) {
                // Or the compiler makes one piece of code of both ways, which moves all of a state that is kept.
#pragma unroll
                for (u32 c = 0; c < 4; c++) hide(reading.read.of[c]);
                parts = write_and_answer<false, true>(state, less, now, reading);
            } else {
                parts = write_and_answer<true, true>(state, less, now, reading);
                if (BRANCHES && save != NONE) put_state(state, levels.at(save));
            }
            if (writes && before) *before = answer;
            before = out + (u64)f32_to_bits(now.step.x) * (HV * DV);
        }
    }
    if (!active) return;
    float answer = whole(parts);
    if (writes) *before = answer;
    if (segment.advance) store_state(state, committed);
}

// Segments of rows that each follow the one before.
KERNEL_AHEAD(delta_walk_chains, WalkArgs, STRIP_THREADS, 1) {
    let_next_start();
    walk<false>(args, nullptr);
}
KERNEL_AHEAD(delta_walk_trees, WalkArgs, STRIP_THREADS, 1) {
    let_next_start();
    DYNAMIC_SHARED(levels);
    walk<true>(args, reinterpret_cast<Vec4f*>(levels));
}
