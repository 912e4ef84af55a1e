// Gated DeltaNet for long walks and trees, from the projections to answers, which activate.cu norms.
#include "delta_state.h"

// A thread block has a strip of columns of a head. Each of its walkers, which are warps, has a part of them, a lane four columns: what lanes
// read of a row by turns, q and k, is read for four. As many carriers make rows ready for them (convolution, norm of q and k, decay and write strength)
// and sum their answers up: a row is a chain of sums and shuffles that each walker has a scheduler for, and nothing else is to be on its way.
constexpr u32 WALKERS = 4, WALKER_COLUMNS = 16, STRIP = WALKERS * WALKER_COLUMNS;
constexpr u32 CARRIERS = STEPS;
constexpr u32 STRIPS = (DV + STRIP - 1) / STRIP;
constexpr u32 STRIP_THREADS = (WALKERS + CARRIERS) * LANES;
// A level of a block: 16-byte pieces of its lanes' states.
constexpr u32 LEVEL_PIECES = QUADS * 4 * WALKERS * LANES;
constexpr u32 MAX_LEVELS = 8;

// To and from a level, where each thread has a column of pieces of its own.
DEVICE void put_state(const State<4>& state, Vec4f* at) {
#pragma unroll
    for (u32 i = 0; i < 4 * QUADS; i++) at[i * WALKERS * LANES] = together(state.at[i / 4][i % 4]);
}
DEVICE void get_state(State<4>& state, const Vec4f* at) {
#pragma unroll
    for (u32 i = 0; i < 4 * QUADS; i++) spread(at[i * WALKERS * LANES], state.at[i / 4][i % 4]);
}

struct WalkArgs {
    Tables tables;
    Layer layer;
    // [N, HV, DV], before the norm.
    float* out;
    // Levels that shared memory has no room for.
    Vec4f* spill;
    u32 shared_levels;
    float q_scale;
};

// Levels of a walk that shared memory has no room for. The first level takes a node above two others that are no
// leaves, one more takes a node above two walks that need one less.
DEVICE u32 spilled_levels(const Segment& segment, u32 shared_levels) {
    u32 levels = 0;
    while (!segment.advance && levels < MAX_LEVELS && (6u << levels) - 1 <= segment.num_rows) levels++;
    return levels > shared_levels ? levels - shared_levels : 0;
}

// A step in shared memory.
struct Arrived {
    Staged<STRIP> staged;
    // Row, load and save of Step.
    Vec4u words;
};
// Steps come in by batches of STEPS, each by a carrier of its own, while the batch before is walked. A lane's part of a column's answers lies in a row of its own,
// by the lane's number of eight, so far from the next that eight lanes write at once.
constexpr u32 RING = 2 * STEPS;
struct Strip {
    Arrived ring[RING];
    float parts[RING][8][STRIP + 4];

    DEVICE_MEMBER Arrived& step(u32 at) { return ring[at % RING]; }
    DEVICE_MEMBER Vec4f* parts_of_lane(u32 at) {
        return reinterpret_cast<Vec4f*>(&parts[at % RING][lane_index() % 8][warp_index() * WALKER_COLUMNS + lane_index() / 8 * 4]);
    }
};

struct Carrier {
    const WalkArgs& args;
    Strip& strip;
    const Segment& segment;
    u32 head, number;
    // What its next step is made from.
    HeadTaps<DK> q_weights, k_weights, q, k;
    HeadTaps<STRIP> v_weights, v;
    float alpha, beta;

    DEVICE_MEMBER u32 q_channel() const { return head % HK * DK; }
    DEVICE_MEMBER u32 k_channel() const { return (HK + head % HK) * DK; }
    DEVICE_MEMBER u32 v_channel() const { return 2 * HK * DK + head * DV + number * STRIP; }
    DEVICE_MEMBER u32 v_dim() const { return DV % STRIP == 0 ? STRIP : smaller(STRIP, DV - number * STRIP); }

    // Where what a step is made from lies.
    struct Source {
        Step step;
        Window window;
    };
    DEVICE_MEMBER Source find(u32 at) const {
        Source source = {};
        if (at >= segment.num_rows) return source;
        source.step = args.tables.steps[segment.first_step + at];
        source.window = window_of(args.tables, args.layer, segment.state_index, source.step.row);
        return source;
    }
    // Asks for that.
    DEVICE_MEMBER void load(u32 at, const Source& from) {
        if (at >= segment.num_rows) return;
        load_values(q, from.window, q_channel(), DK);
        load_values(k, from.window, k_channel(), DK);
        load_values(v, from.window, v_channel(), v_dim());
        u64 gate = (u64)from.step.row * HV + head;
        alpha = args.layer.alpha[gate], beta = args.layer.beta[gate];
    }
    DEVICE_MEMBER void put(u32 at, const Step& step) {
        if (at >= segment.num_rows) return;
        Arrived& to = strip.step(at);
        // All lanes know whose answers they have summed up.
        sync_warp();
        prepare_head(q_weights, q, DK, args.q_scale, reinterpret_cast<float*>(to.staged.q));
        prepare_head(k_weights, k, DK, 1.0f, reinterpret_cast<float*>(to.staged.k));
        prepare_head(v_weights, v, v_dim(), 0.0f, reinterpret_cast<float*>(to.staged.v));
        if (lane_index() > 0) return;
        Vec2f pair = prepare_gates(alpha, beta, args.layer.a[head], args.layer.dt_bias[head]);
        to.staged.gates = {pair.x, pair.y, 0.0f, 0.0f};
        to.words = {step.row, step.load, step.save, 0};
    }
    // Answers of step `at`, two columns a lane: of the eight lanes' parts, in the order in which shuffles would add them.
    DEVICE_MEMBER void sum_up(u32 at) {
        static_assert(STRIP == 2 * LANES, "two columns a lane");
        u32 column = number * STRIP + 2 * lane_index();
        if (at >= segment.num_rows || (DV % STRIP != 0 && column >= DV)) return;
        Vec2f sums[8];
#pragma unroll
        for (u32 r = 0; r < 8; r++) sums[r] = *reinterpret_cast<const Vec2f*>(&strip.parts[at % RING][r][2 * lane_index()]);
#pragma unroll
        for (u32 width = 1; width < 8; width *= 2)
#pragma unroll
            for (u32 r = 0; r < 8; r += 2 * width) sums[r] = {sums[r].x + sums[r + width].x, sums[r].y + sums[r + width].y};
        *reinterpret_cast<Vec2f*>(args.out + ((u64)strip.step(at).words.x * HV + head) * DV + column) = sums[0];
    }
    DEVICE_MEMBER void carry() {
        load_weights(q_weights, args.layer.conv_weight, q_channel(), DK);
        load_weights(k_weights, args.layer.conv_weight, k_channel(), DK);
        load_weights(v_weights, args.layer.conv_weight, v_channel(), v_dim());
        u32 at = warp_index() - WALKERS;
        Source first_source = find(at), source = find(at + STEPS);
        wait_for_inputs();
        load(at, first_source);
        put(at, first_source.step);
        load(at + STEPS, source);
#pragma unroll 1
        for (u32 first = 0; first < segment.num_rows; first += STEPS, at += STEPS) {
            sync_threads();
            if (first > 0) sum_up(at - STEPS);
            put(at + STEPS, source.step);
            source = find(at + 2 * STEPS);
            load(at + 2 * STEPS, source);
        }
        sync_threads();
        sum_up(at - STEPS);
    }
};

// Saved states of a walker's lane, by level.
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
// BRANCHES: segments may be trees. `active`: the warp has columns.
template <bool BRANCHES> DEVICE void walk_steps(Strip& strip, State<4>& state, const float* committed, const Levels& levels, u32 num_rows, bool active) {
    Key key = {};
    Vec4u words = {};
    // One piece of code for all steps: longer code comes slower than it is done.
#pragma unroll 1
    for (u32 at = 0; at < num_rows; at++) {
        const Arrived &now = strip.step(at), &next = strip.step(at + 1);
        if (at % STEPS == 0) {
            sync_threads();
            key = key_of(now.staged);
            words = now.words;
        }
        if (!active) continue;
        if (BRANCHES && words.y != NONE && at > 0) {
            if (words.y == BASE) load_state(state, committed);
            else get_state(state, levels.at(words.y));
        }
        Reading<4> reading = read_by_key(state, key, now.staged, warp_index());
        State<4> less = decayed(state, reading.decay);
        add_across(reading.read);
        u32 save = words.z;
        if ((at + 1) % STEPS != 0) {
            key = key_of(next.staged);
            words = next.words;
        }
        Parts<4> parts;
        if (BRANCHES && save == LEAF) {
            // Or the compiler makes one piece of code of both ways, which moves all of a state that is kept.
#pragma unroll
            for (u32 c = 0; c < 4; c++) hide(reading.read.of[c]);
            parts = write_and_answer<false, true>(state, less, now.staged, reading);
        } else {
            parts = write_and_answer<true, true>(state, less, now.staged, reading);
            if (BRANCHES && save != NONE) put_state(state, levels.at(save));
        }
        *strip.parts_of_lane(at) = together(parts.of);
    }
    sync_threads();
}

// `saved`: a block's levels.
template <bool BRANCHES> DEVICE void walk(const WalkArgs& args, Vec4f* saved) {
    constexpr u32 BLOCKS = HV * STRIPS;
    SHARED Strip strip;
    Segment segment = args.tables.segments[block_y()];
    u32 num_rows = segment.num_rows, head = block_x() / STRIPS, number = block_x() % STRIPS, lane = lane_index();
    if (num_rows == 0) return wait_for_inputs();
    for (u32 at = warp_index(); at < RING; at += WALKERS + CARRIERS)
        if (DK / 4 + lane < KEYS / 4) strip.ring[at].staged.q[DK / 4 + lane] = {}, strip.ring[at].staged.k[DK / 4 + lane] = {};
    if (warp_index() >= WALKERS) {
        Carrier carrier = {args, strip, segment, head, number};
        return carrier.carry();
    }
    u32 column = number * STRIP + warp_index() * WALKER_COLUMNS + lane / 8 * 4;
    bool active = DV % STRIP == 0 || column < DV;
    float* committed = args.layer.states + ((u64)segment.state_index * HV + head) * DK * DV + column;
    // The step before has left it, and a copy of this one's tables lies between: no kernel that still runs writes it.
    State<4> state = {};
    if (active) load_state(state, committed);
    Levels levels = {saved + thread_index(), args.shared_levels, nullptr, (u64)BLOCKS * LEVEL_PIECES};
    if (BRANCHES && spilled_levels(segment, args.shared_levels)) {
        // A level after another, those of the segments before first.
        u32 before = 0;
        for (u32 i = 0; i < block_y(); i++) before += spilled_levels(args.tables.segments[i], args.shared_levels);
        levels.spill = args.spill + ((u64)before * BLOCKS + block_x()) * LEVEL_PIECES + thread_index();
    }
    wait_for_inputs();
    walk_steps<BRANCHES>(strip, state, committed, levels, num_rows, active);
    if (active && segment.advance) store_state(state, committed);
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

// Histories move when all have read them. Grid: channels, segments.
KERNEL_AHEAD(delta_move_histories, WalkArgs, 128, 1) {
    let_next_start();
    Segment segment = args.tables.segments[block_y()];
    u32 channel = block_x() * block_threads() + thread_index();
    wait_for_inputs();
    if (!segment.advance || segment.num_rows == 0 || channel >= CHANNELS) return;
    Window last = window_of_chain(args.tables.steps + segment.first_step, args.layer, segment.state_index, segment.num_rows - 1);
    move_history(args.layer, last, segment.state_index, channel);
}
