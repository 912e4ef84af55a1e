// An accepted path in all gated DeltaNet layers: its rows are made ready for the recurrence, and then states and histories move along.
// The functions of a forward pass compute it, in the same order.
#include "delta_state.h"

// Of a launch: as many layers as a kernel's struct has room for.
constexpr u32 MOST_LAYERS = 48, MOST_ROWS = 12;
constexpr u32 WARPS = 4, THREADS = WARPS * LANES;
// Columns of a head that a block moves, and blocks of a head.
constexpr u32 WIDTH = 16 * WARPS, PARTS = (DV + WIDTH - 1) / WIDTH;
// Of a row that is ready: k of all key heads, and v of all value heads.
constexpr u32 READY = HK * DK + HV * DV;

struct CommitArgs {
    // [layers, num_rows, READY]. [layers, num_rows, HV]: decay and strength.
    float* ready;
    Vec2f* gates;
    u32 state;
    u32 num_rows;
    // Of the forward pass, oldest first.
    u32 rows[MOST_ROWS];
    Layer layers[MOST_LAYERS];
};

// What the convolution of the path's row `at` reads.
DEVICE Window window_of_path(const CommitArgs& args, u32 at) {
    return window_of_chain([&](u32 i) { return args.rows[i]; }, args.layers[block_y()], args.state, at);
}
template <u32 DIM> DEVICE void make_ready(const CommitArgs& args, u32 at, u32 channel, float length, float* to) {
    HeadTaps<DIM> weights, values;
    load_weights(weights, args.layers[block_y()].conv_weight, channel, DIM);
    Window window = window_of_path(args, at);
    wait_for_inputs();
    let_next_start();
    load_values(values, window, channel, DIM);
    prepare_head(weights, values, DIM, length, to);
}

// Grid: heads, layers, rows. A warp has a head of a row. States do not move before all that this kernel waits for has ended: see `delta_commit`.
KERNEL_AHEAD(delta_commit_rows, CommitArgs, THREADS, 1) {
    u32 head = block_x() * WARPS + warp_index(), at = block_z();
    u64 number = (u64)block_y() * args.num_rows + at;
    float* ready = args.ready + number * READY;
    if (head < HK) {
        make_ready<DK>(args, at, (HK + head) * DK, 1.0f, ready + head * DK);
    } else if (head < HK + HV) {
        u32 value_head = head - HK;
        make_ready<DV>(args, at, 2 * HK * DK + value_head * DV, 0.0f, ready + HK * DK + value_head * DV);
        if (lane_index() > 0) return;
        const Layer& layer = args.layers[block_y()];
        u64 gate = (u64)args.rows[at] * HV + value_head;
        args.gates[number * HV + value_head] = prepare_gates(layer.alpha[gate], layer.beta[gate], layer.a[value_head], layer.dt_bias[value_head]);
    }
    wait_for_inputs();
    let_next_start();
}

// A block's columns of a row.
DEVICE void stage(Staged<WIDTH>& to, const CommitArgs& args, u32 at, u32 head, u32 first_column) {
    u32 lane = lane_index();
    u64 number = (u64)block_y() * args.num_rows + at;
    const Vec4f* k = reinterpret_cast<const Vec4f*>(args.ready + number * READY + head % HK * DK);
    const Vec4f* v = reinterpret_cast<const Vec4f*>(args.ready + number * READY + HK * DK + head * DV + first_column);
#pragma unroll
    for (u32 i = lane; i < KEYS / 4; i += LANES) to.k[i] = i < DK / 4 ? k[i] : Vec4f{};
    if (lane < WIDTH / 4 && (DV % WIDTH == 0 || first_column + 4 * lane < DV)) to.v[lane] = v[lane];
    if (lane == WIDTH / 4) {
        Vec2f pair = args.gates[number * HV + head];
        to.gates = {pair.x, pair.y, 0.0f, 0.0f};
    }
}

// Moves the histories of a block's share of `dim` channels.
DEVICE void move_histories(const CommitArgs& args, const Window& last, u32 first_channel, u32 dim) {
    for (u32 i = block_x() % PARTS * THREADS + thread_index(); i < dim; i += PARTS * THREADS)
        move_history(args.layers[block_y()], last, args.state, first_channel + i);
}

// Grid: heads by their parts, layers. A lane has four columns. Blocks of half a head, four on a multiprocessor, since some of them load and store their states
// while others move them.
KERNEL_AHEAD(delta_commit, CommitArgs, THREADS, 4) {
    let_next_start();
    SHARED Staged<WIDTH> staged[MOST_ROWS];
    u32 head = block_x() / PARTS, warp = warp_index(), lane = lane_index();
    u32 first_column = block_x() % PARTS * WIDTH, column = first_column + warp * 16 + lane / 8 * 4;
    bool active = DV % WIDTH == 0 || column < DV;
    float* committed = args.layers[block_y()].states + ((u64)args.state * HV + head) * DK * DV + column;
    // The kernel before this one writes no state, and began after those that do had ended.
    State<4> state = {};
    if (active) load_state(state, committed);
    wait_for_inputs();
    for (u32 at = warp; at < args.num_rows; at += WARPS) stage(staged[at], args, at, head, first_column);
    // Nobody reads histories any more. Value heads that read the same key head read the same one of it, which the first of them moves.
    Window last = window_of_path(args, args.num_rows - 1);
    move_histories(args, last, 2 * HK * DK + head * DV, DV);
    if (head < HK) {
        move_histories(args, last, head * DK, DK);
        move_histories(args, last, (HK + head) * DK, DK);
    }
    sync_threads();
#pragma unroll 1
    for (u32 at = 0; at < args.num_rows; at++) advance<true, false>(state, staged[at], warp);
    if (active) store_state(state, committed);
}
