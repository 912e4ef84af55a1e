// Gated DeltaNet: causal convolution, delta rule, gated norm.
//
// Compiled for one shape: HK and HV key and value heads with dims DK and DV, and TAPS of the convolution. Value head p
// reads key head p mod HK. Channels of a row: q of all key heads, k of all key heads, v of all value heads.
//
// Every sum has one order, whether a row is decoded alone, lies in a tree or is replayed: the same functions compute it.
#include "tables.h"

constexpr u32 HEADS = 2 * HK + HV;
constexpr u32 CHANNELS = 2 * HK * DK + HV * DV;
constexpr u32 KEPT_ROWS = TAPS - 1;

// What a row's convolution reads, oldest tap first: the row itself, its ancestors, then the history's newest rows.
struct Window {
    const float* rows[TAPS];
};
DEVICE Window window_of(const Tables& tables, const float* qkv, const float* history, u32 state, u32 row) {
    Window window;
    const float* newest = history + ((u64)state * KEPT_ROWS + KEPT_ROWS) * CHANNELS;
#pragma unroll
    for (u32 tap = TAPS; tap-- > 0;) {
        if (row != NONE) {
            window.rows[tap] = qkv + (u64)row * CHANNELS;
            row = tables.rows[row].parent_row;
        } else {
            newest -= CHANNELS;
            window.rows[tap] = newest;
        }
    }
    return window;
}

// ln(1 + e^x). A decay is applied thousands of times over, so it and this are computed to the last place or so.
DEVICE float softplus(float x) {
    if (x > 20.0f) return x;
    // ln(1 + y) = 2 artanh(y / (2 + y)), with y at most 1.
    float y = exponential(x > 0.0f ? -x : x);
    float s = divide(y, 2.0f + y), square = s * s;
    float sum = 1.0f / 17.0f;
#pragma unroll
    for (u32 i = 8; i-- > 0;) sum = fused_multiply_add(sum, square, 1.0f / (float)(2 * i + 1));
    return fused_multiply_add(2.0f * s, sum, x > 0.0f ? x : 0.0f);
}
DEVICE float exact_exponential(float x) {
    if (!(x > -80.0f && x < 80.0f)) return exponential(x);
    i32 power = round_to_int(x * 1.44269504088896340736f);
    float rest = fused_multiply_add((float)power, -0.693359375f, x);
    rest = fused_multiply_add((float)power, 2.12194440e-4f, rest);
    float sum = 1.0f / 5040.0f;
    sum = fused_multiply_add(sum, rest, 1.0f / 720.0f);
    sum = fused_multiply_add(sum, rest, 1.0f / 120.0f);
    sum = fused_multiply_add(sum, rest, 1.0f / 24.0f);
    sum = fused_multiply_add(sum, rest, 1.0f / 6.0f);
    sum = fused_multiply_add(sum, rest, 0.5f);
    sum = fused_multiply_add(sum, rest, 1.0f);
    sum = fused_multiply_add(sum, rest, 1.0f);
    return sum * bits_to_f32((u32)(power + 127) << 23);
}

// Convolution, norm of q and k, decay and write strength; a warp takes a head of a few rows.
struct PrepareArgs {
    Tables tables;
    // [N, CHANNELS], [N, HV], [N, HV].
    const float* qkv;
    const float* alpha;
    const float* beta;
    // [CHANNELS, TAPS], [HV], [HV].
    const float* conv_weight;
    const float* a;
    const float* dt_bias;
    // [sequences, KEPT_ROWS, CHANNELS], oldest first.
    const float* history;
    // [N, CHANNELS]: q of length q_scale, k of length 1, v. [N, HV]: decay and strength.
    float* prepared;
    Vec2f* gates;
    u32 num_rows;
    u32 rows_per_warp;
    float q_scale;
};
constexpr u32 PREPARE_WARPS = 4;

// A lane's channels of a head are `lane`, `lane + 32` and so on.
template <u32 DIM> struct HeadTaps {
    float weights[(DIM + LANES - 1) / LANES][TAPS];
};
template <u32 DIM> DEVICE void load_taps(HeadTaps<DIM>& to, const float* conv_weight, u32 first_channel) {
#pragma unroll
    for (u32 j = 0; j < (DIM + LANES - 1) / LANES; j++) {
        u32 at = lane_index() + j * LANES;
        const float* from = conv_weight + (u64)(first_channel + at) * TAPS;
        bool inside = DIM % LANES == 0 || at < DIM;
        if constexpr (TAPS == 4) {
            Vec4f all = inside ? *reinterpret_cast<const Vec4f*>(from) : Vec4f{};
            to.weights[j][0] = all.x, to.weights[j][1] = all.y, to.weights[j][2] = all.z, to.weights[j][3] = all.w;
        } else {
#pragma unroll
            for (u32 tap = 0; tap < TAPS; tap++) to.weights[j][tap] = inside ? from[tap] : 0.0f;
        }
    }
}
// A head of a row, of length `length` where that is not 0; by a warp.
template <u32 DIM>
DEVICE void prepare_head(const HeadTaps<DIM>& taps, const Window& window, u32 first_channel, float length, float* to) {
    constexpr u32 VALUES = (DIM + LANES - 1) / LANES;
    float values[VALUES];
    float squares = 0.0f;
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        u32 at = lane_index() + j * LANES;
        bool inside = DIM % LANES == 0 || at < DIM;
        float sum = 0.0f;
#pragma unroll
        for (u32 tap = 0; tap < TAPS; tap++)
            sum = fused_multiply_add(taps.weights[j][tap], inside ? window.rows[tap][first_channel + at] : 0.0f, sum);
        values[j] = silu(sum);
        squares = fused_multiply_add(values[j], values[j], squares);
    }
    float factor = 1.0f;
    if (length != 0.0f) factor = divide(length, square_root(warp_sum(squares) + 1e-6f));
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        u32 at = lane_index() + j * LANES;
        if (DIM % LANES == 0 || at < DIM) to[at] = values[j] * factor;
    }
}
// Decay and strength of a value head of a row.
DEVICE Vec2f prepare_gates(const PrepareArgs& args, u32 row, u32 value_head) {
    u64 gate = (u64)row * HV + value_head;
    float step = softplus(args.alpha[gate] + args.dt_bias[value_head]);
    return {exact_exponential(args.a[value_head] * step), sigmoid(args.beta[gate])};
}

template <u32 DIM> DEVICE void prepare_rows(const PrepareArgs& args, u32 head, u32 first_channel, float length) {
    HeadTaps<DIM> taps;
    load_taps(taps, args.conv_weight, first_channel);
    u32 first_row = block_x() * args.rows_per_warp, end = smaller(first_row + args.rows_per_warp, args.num_rows);
    for (u32 row = first_row; row < end; row++) {
        u32 segment = args.tables.rows[row].segment;
        if (segment == NONE) continue;
        u32 state = args.tables.segments[segment].state_index;
        Window window = window_of(args.tables, args.qkv, args.history, state, row);
        prepare_head(taps, window, first_channel, length, args.prepared + (u64)row * CHANNELS + first_channel);
        if (head >= 2 * HK && lane_index() == 0)
            args.gates[(u64)row * HV + head - 2 * HK] = prepare_gates(args, row, head - 2 * HK);
    }
}

KERNEL(delta_prepare, PrepareArgs, PREPARE_WARPS * LANES) {
    u32 head = block_y() * PREPARE_WARPS + warp_index();
    if (head < 2 * HK) prepare_rows<DK>(args, head, head * DK, head < HK ? args.q_scale : 1.0f);
    else if (head < HEADS) prepare_rows<DV>(args, head, 2 * HK * DK + (head - 2 * HK) * DV, 0.0f);
}

// The recurrence. A thread block has a strip of columns (value dims) of a head; a warp has 8 of them, a lane a pair of
// them in an eighth of the rows (key dims): rows 4r .. 4r + 3 of every 32, with r = lane % 8.
constexpr u32 WARP_COLUMNS = 8;
// Warps of a block where walks are long; one that has a whole head can norm its answers too.
constexpr u32 STRIP_WARPS = 4;
constexpr u32 HEAD_WARPS = DV / WARP_COLUMNS > STRIP_WARPS ? DV / WARP_COLUMNS : STRIP_WARPS;
constexpr u32 STRIPS = (DV + STRIP_WARPS * WARP_COLUMNS - 1) / (STRIP_WARPS * WARP_COLUMNS);
constexpr u32 STRIP_THREADS = STRIP_WARPS * LANES;
constexpr u32 QUADS = (DK + 31) / 32;
constexpr u32 KEYS = QUADS * 32;
// A level of a block: 16-byte pieces of its lanes' states.
constexpr u32 LEVEL_PIECES = QUADS * 2 * STRIP_THREADS;
constexpr u32 MAX_LEVELS = 8;
static_assert(DK % 4 == 0 && DV % WARP_COLUMNS == 0, "head dims");

struct State {
    // Rows 4r + j of 32 i, left and right column.
    float left[QUADS][4], right[QUADS][4];
};

DEVICE void load_state(State& state, const float* at) {
    u32 first = lane_index() % 8 * 4;
#pragma unroll
    for (u32 i = 0; i < QUADS; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 row = i * 32 + first + j;
            Vec2f pair = DK % 32 == 0 || row < DK ? *reinterpret_cast<const Vec2f*>(at + row * DV) : Vec2f{};
            state.left[i][j] = pair.x, state.right[i][j] = pair.y;
        }
}
DEVICE void store_state(const State& state, float* at) {
    u32 first = lane_index() % 8 * 4;
#pragma unroll
    for (u32 i = 0; i < QUADS; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 row = i * 32 + first + j;
            if (DK % 32 == 0 || row < DK) *reinterpret_cast<Vec2f*>(at + row * DV) = {state.left[i][j], state.right[i][j]};
        }
}
// To and from a level, where each thread has a column of pieces of its own.
DEVICE void put_state(const State& state, Vec4f* at) {
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        at[(2 * i) * STRIP_THREADS] = {state.left[i][0], state.left[i][1], state.left[i][2], state.left[i][3]};
        at[(2 * i + 1) * STRIP_THREADS] = {state.right[i][0], state.right[i][1], state.right[i][2], state.right[i][3]};
    }
}
DEVICE void get_state(State& state, const Vec4f* at) {
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        Vec4f l = at[(2 * i) * STRIP_THREADS], r = at[(2 * i + 1) * STRIP_THREADS];
        state.left[i][0] = l.x, state.left[i][1] = l.y, state.left[i][2] = l.z, state.left[i][3] = l.w;
        state.right[i][0] = r.x, state.right[i][1] = r.y, state.right[i][2] = r.z, state.right[i][3] = r.w;
    }
}

// What a step needs, in shared memory.
template <u32 WARPS> struct Staged {
    Vec4f q[KEYS / 4], k[KEYS / 4], v[WARPS * WARP_COLUMNS / 4];
    // Right after v: the step's words; decay and strength.
    Vec4f step, gates;
};
// As many steps are brought in at a time, each by a warp.
constexpr u32 STEPS = 4;

// By its values: clang keeps what is copied whole under a condition in memory.
DEVICE void set(Vec4f& to, Vec4f from) { to.x = from.x, to.y = from.y, to.z = from.z, to.w = from.w; }
constexpr u32 FETCHES = (DK / 4 + LANES - 1) / LANES;
constexpr u32 STRIP_LANES = STRIP_WARPS * WARP_COLUMNS / 4;
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
DEVICE void put(const Fetched& from, Staged<STRIP_WARPS>& to) {
    u32 lane = lane_index();
#pragma unroll
    for (u32 at = 0; at < FETCHES; at++)
        if (DK / 4 % LANES == 0 || at * LANES + lane < DK / 4) {
            set(to.q[at * LANES + lane], from.q[at]);
            set(to.k[at * LANES + lane], from.k[at]);
        }
    if (lane < STRIP_LANES + 2) set(to.v[lane], from.rest);
}

// One row: decay, read by k, write, read by q. Returns the lane's parts of the answers of its columns. Where nothing
// follows the row, the state stays as it was before.
template <bool KEEPS, u32 WARPS> DEVICE Vec2f advance(State& state, const Staged<WARPS>& staged) {
    u32 lane = lane_index(), eighth = lane % 8;
    float left[2] = {}, right[2] = {};
    Vec4f k[QUADS];
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        k[i] = staged.k[i * 8 + eighth];
        left[0] = fused_multiply_add(state.left[i][0], k[i].x, left[0]);
        right[0] = fused_multiply_add(state.right[i][0], k[i].x, right[0]);
        left[1] = fused_multiply_add(state.left[i][1], k[i].y, left[1]);
        right[1] = fused_multiply_add(state.right[i][1], k[i].y, right[1]);
        left[0] = fused_multiply_add(state.left[i][2], k[i].z, left[0]);
        right[0] = fused_multiply_add(state.right[i][2], k[i].z, right[0]);
        left[1] = fused_multiply_add(state.left[i][3], k[i].w, left[1]);
        right[1] = fused_multiply_add(state.right[i][3], k[i].w, right[1]);
    }
    float decay = staged.gates.x, strength = staged.gates.y;
    float l = left[0] + left[1], r = right[0] + right[1];
#pragma unroll
    for (u32 mask = 1; mask < 8; mask *= 2) {
        l += shuffle_xor(l, mask);
        r += shuffle_xor(r, mask);
    }
    Vec2f v = reinterpret_cast<const Vec2f*>(staged.v)[warp_index() * (WARP_COLUMNS / 2) + lane / 8];
    // The state decays before it is read: the sum of the decayed is the decayed sum.
    l = strength * fused_multiply_add(-decay, l, v.x);
    r = strength * fused_multiply_add(-decay, r, v.y);
    float answer_l[2] = {}, answer_r[2] = {};
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        Vec4f q = staged.q[i * 8 + eighth];
        float ks[4] = {k[i].x, k[i].y, k[i].z, k[i].w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            float new_l = fused_multiply_add(ks[j], l, state.left[i][j] * decay);
            float new_r = fused_multiply_add(ks[j], r, state.right[i][j] * decay);
            answer_l[j % 2] = fused_multiply_add(new_l, qs[j], answer_l[j % 2]);
            answer_r[j % 2] = fused_multiply_add(new_r, qs[j], answer_r[j % 2]);
            if (KEEPS) state.left[i][j] = new_l, state.right[i][j] = new_r;
        }
    }
    return {answer_l[0] + answer_l[1], answer_r[0] + answer_r[1]};
}
// The answer of the left column in even lanes, of the right one in odd lanes.
DEVICE float whole(Vec2f parts) {
    bool is_odd = lane_index() % 2;
    float mine = is_odd ? parts.y : parts.x;
    mine += shuffle_xor(is_odd ? parts.x : parts.y, 1);
    mine += shuffle_xor(mine, 2);
    mine += shuffle_xor(mine, 4);
    return mine;
}

struct WalkArgs {
    Tables tables;
    // See PrepareArgs.
    const float* prepared;
    const Vec2f* gates;
    const float* qkv;
    // [sequences, HV, DK, DV], [sequences, KEPT_ROWS, CHANNELS].
    float* states;
    float* history;
    // [N, HV, DV], before the norm; null where only states are to move.
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

// The history of a segment that advances: the last rows of its chain, after older ones where it is short.
DEVICE void move_history(const WalkArgs& args, const Segment& segment, u32 channel) {
    if (channel >= CHANNELS) return;
    u32 last = args.tables.steps[segment.first_step + segment.num_rows - 1].row;
    Window window = window_of(args.tables, args.qkv, args.history, segment.state_index, last);
    float values[KEPT_ROWS + 1];
    // All of them before the first is overwritten.
#pragma unroll
    for (u32 i = 0; i < KEPT_ROWS; i++) values[i] = window.rows[i + 1][channel];
    float* to = args.history + (u64)segment.state_index * KEPT_ROWS * CHANNELS + channel;
#pragma unroll
    for (u32 i = 0; i < KEPT_ROWS; i++) to[(u64)i * CHANNELS] = values[i];
}

// out = norm(answers) silu(z), for a head of a row; by a warp.
struct NormArgs {
    Tables tables;
    // [N, HV, DV].
    const float* z;
    // [DV].
    const float* gamma;
    // [N, HV, DV].
    float* out;
    u32 num_rows;
    float eps;
};
DEVICE void norm_head(const NormArgs& args, u64 item, const float* answers) {
    constexpr u32 VALUES = (DV + LANES - 1) / LANES;
    float values[VALUES];
    float squares = 0.0f;
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        u32 column = lane_index() + j * LANES;
        values[j] = DV % LANES == 0 || column < DV ? answers[column] : 0.0f;
        squares = fused_multiply_add(values[j], values[j], squares);
    }
    float factor = divide(1.0f, square_root(divide(warp_sum(squares), (float)DV) + args.eps));
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        u32 column = lane_index() + j * LANES;
        if (DV % LANES == 0 || column < DV)
            args.out[item * DV + column] = values[j] * factor * args.gamma[column] * silu(args.z[item * DV + column]);
    }
}

// BRANCHES: segments may be trees; saved: a block's levels.
template <bool BRANCHES> DEVICE void walk(const WalkArgs& args, Vec4f* saved) {
    constexpr u32 BLOCKS = HV * STRIPS, WARPS = STRIP_WARPS;
    SHARED Staged<WARPS> staged[2][STEPS];
    Segment segment = args.tables.segments[block_y()];
    u32 num_rows = segment.num_rows;
    if (num_rows == 0) return;
    if (block_x() >= BLOCKS) {
        if (segment.advance) move_history(args, segment, (block_x() - BLOCKS) * WARPS * LANES + thread_index());
        return;
    }
    u32 head = block_x() / STRIPS, strip = block_x() % STRIPS;
    u32 warp = warp_index(), lane = lane_index();
    const Step* steps = args.tables.steps + segment.first_step;
    u32 column = (strip * WARPS + warp) * WARP_COLUMNS + lane / 8 * 2;
    bool active = DV % (WARPS * WARP_COLUMNS) == 0 || column < DV;
    float* committed = args.states + ((u64)segment.state_index * HV + head) * DK * DV + column;
    // Where the lane writes answers: to the left column in even lanes, to the right one in odd lanes.
    bool writes = args.out && lane % 8 < 2;
    float* out = args.out + head * DV + column + lane % 2;

    Step ahead = {};
    if (warp < num_rows) ahead = steps[warp];
    State state;
    if (active) load_state(state, committed);
    Fetched fetched = {};
    if (warp < num_rows) fetch(fetched, args.prepared, args.gates, ahead, head, strip);
    if (STEPS + warp < num_rows) ahead = steps[STEPS + warp];
    if (DK / 4 + lane < KEYS / 4)
        for (u32 side = 0; side < 2; side++) {
            staged[side][warp].q[DK / 4 + lane] = {};
            staged[side][warp].k[DK / 4 + lane] = {};
        }

    Vec4f* spill = nullptr;
    if (BRANCHES && spilled_levels(segment, args.shared_levels)) {
        // A level after another, those of the segments before first.
        u32 before = 0;
        for (u32 i = 0; i < block_y(); i++) before += spilled_levels(args.tables.segments[i], args.shared_levels);
        spill = args.spill + ((u64)before * BLOCKS + block_x()) * LEVEL_PIECES + thread_index();
    }
    if (BRANCHES) saved += thread_index();

    for (u32 first = 0, side = 0; first < num_rows; first += STEPS, side ^= 1) {
        const Staged<WARPS>* now = staged[side];
        u32 count = smaller(num_rows - first, STEPS);
        if (warp < count) put(fetched, staged[side][warp]);
        sync_threads();
        if (first + STEPS + warp < num_rows)
            fetch(fetched, args.prepared, args.gates, ahead, head, strip);
        if (first + 2 * STEPS + warp < num_rows) ahead = steps[first + 2 * STEPS + warp];
        if (active) {
            // Answers are summed up after all steps, beside each other.
            Vec2f parts[STEPS] = {};
            if (!BRANCHES && count == STEPS) {
#pragma unroll
                for (u32 i = 0; i < STEPS; i++) parts[i] = advance<true>(state, now[i]);
            } else {
#pragma unroll
                for (u32 i = 0; i < STEPS; i++)
                    if (i < count) {
                        u32 load = f32_to_bits(now[i].step.y), save = f32_to_bits(now[i].step.z);
                        if (BRANCHES && load != NONE && first + i > 0) {
                            if (load == BASE) load_state(state, committed);
                            else if (load < args.shared_levels) get_state(state, saved + load * LEVEL_PIECES);
                            else get_state(state, spill + (u64)(load - args.shared_levels) * BLOCKS * LEVEL_PIECES);
                        }
                        if (BRANCHES && save == LEAF) {
                            parts[i] = advance<false>(state, now[i]);
                            continue;
                        }
                        parts[i] = advance<true>(state, now[i]);
                        if (BRANCHES && save != NONE) {
                            if (save < args.shared_levels) put_state(state, saved + save * LEVEL_PIECES);
                            else put_state(state, spill + (u64)(save - args.shared_levels) * BLOCKS * LEVEL_PIECES);
                        }
                    }
            }
            float written[STEPS];
#pragma unroll
            for (u32 i = 0; i < STEPS; i++) written[i] = whole(parts[i]);
            if (writes)
#pragma unroll
                for (u32 i = 0; i < STEPS; i++)
                    if (i < count) out[(u64)f32_to_bits(now[i].step.x) * (HV * DV)] = written[i];
        }
    }
    if (active && segment.advance) store_state(state, committed);
}

// Segments of rows that each follow the one before.
KERNEL(delta_walk_chains, WalkArgs, STRIP_THREADS) { walk<false>(args, nullptr); }
KERNEL(delta_walk_trees, WalkArgs, STRIP_THREADS) {
    DYNAMIC_SHARED(levels);
    walk<true>(args, reinterpret_cast<Vec4f*>(levels));
}

// Short chains from their rows to what is normed, in one kernel; a block has a head of a segment. Value heads that read
// the same key head read the same history: the last of them to come moves it.
struct HeadsArgs {
    PrepareArgs prepare;
    WalkArgs walk;
    NormArgs norm;
    // [segments, HK], zero before and after.
    u32* tickets;
};
KERNEL(delta_walk_heads, HeadsArgs, HEAD_WARPS * LANES) {
    SHARED Staged<HEAD_WARPS> staged[STEPS];
    SHARED float answers[STEPS][DV];
    SHARED u32 comes_last;
    const Tables& tables = args.walk.tables;
    Segment segment = tables.segments[block_y()];
    u32 num_rows = segment.num_rows;
    if (num_rows == 0) return;
    const Step* steps = tables.steps + segment.first_step;
    u32 head = block_x(), key_head = head % HK, warp = warp_index(), lane = lane_index();
    u32 column = warp * WARP_COLUMNS + lane / 8 * 2;
    bool active = DV % (HEAD_WARPS * WARP_COLUMNS) == 0 || column < DV;
    float* committed = args.walk.states + ((u64)segment.state_index * HV + head) * DK * DV + column;
    State state;
    if (active) load_state(state, committed);
    if (DK / 4 + lane < KEYS / 4 && warp < STEPS) {
        staged[warp].q[DK / 4 + lane] = {};
        staged[warp].k[DK / 4 + lane] = {};
    }
    u32 q_channel = key_head * DK, k_channel = (HK + key_head) * DK, v_channel = 2 * HK * DK + head * DV;

    for (u32 first = 0; first < num_rows; first += STEPS) {
        u32 count = smaller(num_rows - first, STEPS);
        // A warp prepares q, k or v of a row.
        for (u32 task = warp; task < 3 * STEPS; task += HEAD_WARPS) {
            u32 i = task % STEPS, part = task / STEPS;
            if (i >= count) continue;
            u32 row = steps[first + i].row;
            if (part < 2) {
                HeadTaps<DK> taps;
                u32 channel = part == 0 ? q_channel : k_channel;
                load_taps(taps, args.prepare.conv_weight, channel);
                Window window = window_of(tables, args.prepare.qkv, args.prepare.history, segment.state_index, row);
                float* to = reinterpret_cast<float*>(part == 0 ? staged[i].q : staged[i].k);
                prepare_head(taps, window, channel, part == 0 ? args.prepare.q_scale : 1.0f, to);
            } else {
                HeadTaps<DV> taps;
                load_taps(taps, args.prepare.conv_weight, v_channel);
                Window window = window_of(tables, args.prepare.qkv, args.prepare.history, segment.state_index, row);
                prepare_head(taps, window, v_channel, 0.0f, reinterpret_cast<float*>(staged[i].v));
                Vec2f gates = prepare_gates(args.prepare, row, head);
                if (lane == 0) {
                    staged[i].step.x = bits_to_f32(row);
                    staged[i].gates.x = gates.x, staged[i].gates.y = gates.y;
                }
            }
        }
        sync_threads();
        // What this block needs of the history has been read, and used too, so that nothing is left to be ordered.
        bool is_done = first + STEPS >= num_rows && segment.advance && thread_index() == 0;
        u32 came_before = 0;
        if (is_done) came_before = atomic_add(args.tickets + block_y() * HK + key_head, 1);
        if (active)
            for (u32 i = 0; i < count; i++) {
                float answer = whole(advance<true>(state, staged[i]));
                if (lane % 8 < 2) answers[i][column + lane % 2] = answer;
            }
        if (is_done) comes_last = came_before + 1 == (HV + HK - 1 - key_head) / HK;
        sync_threads();
        for (u32 i = warp; i < count; i += HEAD_WARPS)
            norm_head(args.norm, (u64)f32_to_bits(staged[i].step.x) * HV + head, answers[i]);
        // The next rows overwrite what this one's norm reads.
        if (first + STEPS < num_rows) sync_threads();
    }
    if (!segment.advance) return;
    if (active) store_state(state, committed);
    for (u32 i = thread_index(); i < DV; i += HEAD_WARPS * LANES) move_history(args.walk, segment, v_channel + i);
    if (!comes_last) return;
    for (u32 i = thread_index(); i < DK; i += HEAD_WARPS * LANES) {
        move_history(args.walk, segment, q_channel + i);
        move_history(args.walk, segment, k_channel + i);
    }
    if (thread_index() == 0) args.tickets[block_y() * HK + key_head] = 0;
}

constexpr u32 NORM_WARPS = 4;
KERNEL(delta_norm, NormArgs, NORM_WARPS * LANES) {
    u32 item = block_x() * NORM_WARPS + warp_index();
    if (item >= args.num_rows * HV || args.tables.rows[item / HV].segment == NONE) return;
    norm_head(args, item, args.out + (u64)item * DV);
}
