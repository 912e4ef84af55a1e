// Gated DeltaNet for short chains, from their rows to what is normed, in one kernel. A block has a head of a chain, a lane four columns.
#include "delta_state.h"

constexpr u32 WARP_COLUMNS = 16;
// Four at least: of every four, the first prepares q, the next k, v and the gates.
constexpr u32 HEAD_WARPS = (DV / WARP_COLUMNS + 3) / 4 * 4, GROUPS = HEAD_WARPS / 4;
constexpr u32 THREADS = HEAD_WARPS * LANES;
// The warp that moves the history of a key head.
constexpr u32 MOVER = 3;

// Of a row of a state, and of the rows of it that go to memory together. There is room for as many more where that is not too much.
constexpr u32 PIECES = (DV + 31) / 32 * 8, LINES = 32, SIDES = DV <= 128 ? 2 : 1;

struct Shared {
    Staged<HEAD_WARPS * WARP_COLUMNS> staged[STEPS];
    Vec4f lines[SIDES][LINES][PIECES];
    float answers[STEPS][DV];
    // Of blocks that read the same history.
    u32 came_before;
};

// What a warp prepares of the rows of a chain: q, k, v or gates of every GROUPS'th.
struct Part {
    u32 number, channel, dim;
    float length;
};
constexpr u32 MOST_DIM = DK > DV ? DK : DV;
// Where a warp's share of a batch of steps lies: what its first row's convolution reads; the gates of step `lane`; what the
// answers of the step that the warp norms become.
struct Sources {
    Window window;
    u64 gates, item;
};
// By the last warps: the first ones have a history to move.
DEVICE u32 normed_step() { return HEAD_WARPS - 1 - warp_index(); }
DEVICE Sources find_sources(const Layer& layer, const Step* steps, u32 state, u32 first, u32 count) {
    auto row = [&](u32 at) { return (u64)steps[first + smaller(at, count - 1)].row; };
    u32 own = smaller(warp_index() / 4, count - 1);
    return {window_of_chain(steps, layer, state, first + own), row(lane_index()) * HV + block_x(), row(normed_step()) * HV + block_x()};
}
// What is there of it, but for rows after the first.
struct Raw {
    HeadTaps<MOST_DIM> weights, values;
    float alpha, beta, a, dt_bias;
    Factors z;
};
// What nobody writes.
DEVICE void load_fixed(Raw& to, const Part& part, const Layer& layer) {
    if (part.number < 3) load_weights(to.weights, layer.conv_weight, part.channel, part.dim);
    else to.a = layer.a[block_x()], to.dt_bias = layer.dt_bias[block_x()];
}
DEVICE void load_raw(Raw& to, const Sources& from, const Part& part, const Layer& layer, const Norm& norm, u32 count) {
    if (part.number < 3) load_values(to.values, from.window, part.channel, part.dim);
    else to.alpha = layer.alpha[from.gates], to.beta = layer.beta[from.gates];
    if (normed_step() < count) to.z = load_factors(norm.z + from.item * DV);
}
// The history after a single row, by the warp that has read what is left of it.
DEVICE void keep_history(const Layer& layer, const Raw& raw, const Part& part, u32 state) {
    float* to = layer.history + (u64)state * KEPT_ROWS * CHANNELS + part.channel;
#pragma unroll
    for (u32 j = 0; j < (MOST_DIM + LANES - 1) / LANES; j++) {
        u32 at = lane_index() + j * LANES;
        if (at >= part.dim) continue;
#pragma unroll
        for (u32 i = 0; i < KEPT_ROWS; i++) to[(u64)i * CHANNELS + at] = raw.values.of[j][i + 1];
    }
}

// Stores a head's state by whole lines. What a lane has are 16 bytes of each of its rows: stored as they are, each instruction of a warp would be 64 bytes
// of eight rows, and take the unit that stores some thirty clocks.
DEVICE void store_by_lines(const State<4>& state, bool active, u32 column, float* to, Shared& shared) {
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        // Eight lanes that write pieces of one column find them in different banks.
        auto place = [&](u32 row, u32 piece) -> Vec4f& { return shared.lines[i % SIDES][row][piece ^ row / 4 % 8]; };
        if (SIDES == 1 && i > 0) sync_threads();
        if (active)
            for (u32 j = 0; j < 4; j++) place(lane_index() % 8 * 4 + j, column / 4) = together(state.at[i][j]);
        sync_threads();
        for (u32 at = thread_index(); at < LINES * (DV / 4); at += THREADS) {
            u32 row = at / (DV / 4), piece = at % (DV / 4);
            if (DK % 32 == 0 || i * LINES + row < DK) *reinterpret_cast<Vec4f*>(to + (i * LINES + row) * DV + 4 * piece) = place(row, piece);
        }
    }
}

// Value heads that read the same key head read the same history: the last of them to come moves it. `tickets`: of the chain's
// key heads, zero before and after. ONE: of a chain of one row.
template <bool ONE>
DEVICE void walk_head(const Layer& layer, const Norm& norm, const Segment& segment, const Step* steps, float q_scale, u32* tickets, Shared& shared) {
    u32 head = block_x(), key_head = head % HK, warp = warp_index(), lane = lane_index();
    u32 num_rows = ONE ? 1 : segment.num_rows, index = segment.state_index;
    u32 q_channel = key_head * DK, k_channel = (HK + key_head) * DK, v_channel = 2 * HK * DK + head * DV;
    u32 column = warp * WARP_COLUMNS + lane / 8 * 4;
    bool active = DV % (HEAD_WARPS * WARP_COLUMNS) == 0 || column < DV;
    float* committed = layer.states + ((u64)index * HV + head) * DK * DV;
    Part part = {warp % 4, k_channel, DK, 1.0f};
    if (part.number == 0) part.channel = q_channel, part.length = q_scale;
    if (part.number == 2) part.channel = v_channel, part.dim = DV, part.length = 0.0f;

    // The step before has left the state, and a copy of this one's tables lies between: no kernel that still runs writes it.
    State<4> state = {};
    if (active) load_state(state, committed + column);
    if (warp < 3 && lane < KEPT_ROWS)
        prefetch(layer.history + ((u64)index * KEPT_ROWS + lane) * CHANNELS + part.channel, part.dim * sizeof(float));
    Raw raw;
    load_fixed(raw, part, layer);
    Factors gamma = {};
    if (normed_step() < STEPS) gamma = load_factors(norm.gamma);
    Sources sources = find_sources(layer, steps, index, 0, smaller(num_rows, STEPS));
    wait_for_inputs();

    load_raw(raw, sources, part, layer, norm, num_rows);
    if (DK / 4 + lane < KEYS / 4 && warp < STEPS) {
        shared.staged[warp].q[DK / 4 + lane] = {};
        shared.staged[warp].k[DK / 4 + lane] = {};
    }
    // What this block needs of the history has been read when a batch of steps is staged: the last of those that share it may move it.
    u32 came_before = 0, shares = (HV + HK - 1 - key_head) / HK;
#pragma unroll 1
    for (u32 first = 0; first < num_rows; first += STEPS) {
        u32 count = smaller(num_rows - first, STEPS);
        if (first > 0) {
            // Not kept meanwhile: registers are for states.
            load_fixed(raw, part, layer);
            sources = find_sources(layer, steps, index, first, count);
            load_raw(raw, sources, part, layer, norm, count);
        }
        if (part.number == 3) {
            Vec2f gates = prepare_gates(raw.alpha, raw.beta, raw.a, raw.dt_bias);
            if (warp < 4 && lane < count) shared.staged[lane].gates.x = gates.x, shared.staged[lane].gates.y = gates.y;
        } else {
#pragma unroll 1
            for (u32 i = warp / 4; i < count; i += GROUPS) {
                if (i > warp / 4) load_values(raw.values, window_of_chain(steps, layer, index, first + i), part.channel, part.dim);
                auto& staged = shared.staged[i];
                Vec4f* to = part.number == 0 ? staged.q : part.number == 1 ? staged.k : staged.v;
                prepare_head(raw.weights, raw.values, part.dim, part.length, reinterpret_cast<float*>(to));
            }
        }
        sync_threads();
        if (segment.advance && first + STEPS >= num_rows && warp == MOVER && lane == 0) came_before = take_ticket(tickets + key_head, shares);
        Factors gates = {};
        if (normed_step() < count) gates = gates_of(raw.z);
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            Parts<4> parts = advance_and_answer(state, shared.staged[i], warp_index());
            float answer = whole(parts);
            if (active && lane % 8 < 4) shared.answers[i][column + lane % 4] = answer;
        }
        if (ONE && warp == MOVER && lane == 0) shared.came_before = came_before;
        // Also: the next rows overwrite what these ones needed.
        sync_threads();
        if (normed_step() < count) norm_head(norm, sources.item, load_factors(shared.answers[normed_step()]), gamma, gates);
    }
    if (!segment.advance) return;
    store_by_lines(state, active, column, committed, shared);
    if constexpr (ONE) {
        // Of the history of value heads each is one block's.
        if (warp == 2 || (warp < 2 && shared.came_before + 1 == shares)) keep_history(layer, raw, part, index);
        return;
    }
    Window last = window_of_chain(steps, layer, index, num_rows - 1);
    // By other warps than those that norm.
    for (u32 i = THREADS - 1 - thread_index(); i < DV; i += THREADS) move_history(layer, last, index, v_channel + i);
    if (warp != MOVER || shuffle(came_before, 0) + 1 < shares) return;
    for (u32 i = lane; i < DK; i += LANES) {
        move_history(layer, last, index, q_channel + i);
        move_history(layer, last, index, k_channel + i);
    }
}

struct HeadsArgs {
    Tables tables;
    Layer layer;
    Norm norm;
    // [segments, HK].
    u32* tickets;
    float q_scale;
};
// Grid: heads, segments.
template <bool ONE> DEVICE void walk_heads(const HeadsArgs& args) {
    let_next_start();
    SHARED Shared shared;
    Segment segment = args.tables.segments[block_y()];
    const Step* steps = args.tables.steps + segment.first_step;
    if (segment.num_rows > 0) walk_head<ONE>(args.layer, args.norm, segment, steps, args.q_scale, args.tickets + block_y() * HK, shared);
    else wait_for_inputs();
}
KERNEL_AHEAD(delta_walk_heads, HeadsArgs, THREADS, 1) { walk_heads<false>(args); }
// Chains of one row: a launch is so short that the instructions which others need would count.
KERNEL_AHEAD(delta_decode_heads, HeadsArgs, THREADS, 1) { walk_heads<true>(args); }
