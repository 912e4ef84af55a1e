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
    // [layers, num_rows, READY]. [layers, num_rows, HV]: decay and strength, and nothing.
    float* ready;
    Vec4f* gates;
    u32 state;
    u32 num_rows;
    // Of the forward pass, oldest first.
    u32 rows[MOST_ROWS];
    Layer layers[MOST_LAYERS];
};
struct RowOfPath {
    const CommitArgs& args;
    DEVICE_MEMBER u32 operator()(u32 at) const { return args.rows[at]; }
};

// A head of all rows, one after another: taps move along, and the next row's values are on their way. `to`: of the first row.
template <u32 DIM> DEVICE void make_ready(const CommitArgs& args, u32 channel, float length, float* to) {
    constexpr u32 VALUES = (DIM + LANES - 1) / LANES;
    HeadTaps<DIM> weights, values;
    const Layer& layer = args.layers[block_y()];
    load_weights(weights, layer.conv_weight, channel, DIM);
    Window window = window_of_chain(RowOfPath{args}, layer, args.state, 0);
    wait_for_inputs();
    let_next_start();
    load_values(values, window, channel, DIM);
#pragma unroll 1
    for (u32 at = 0; at < args.num_rows; at++, to += READY) {
        const float* next = layer.qkv + (u64)args.rows[smaller(at + 1, args.num_rows - 1)] * CHANNELS + channel;
        float newest[VALUES];
#pragma unroll
        for (u32 j = 0; j < VALUES; j++) newest[j] = lane_index() + j * LANES < DIM ? next[lane_index() + j * LANES] : 0.0f;
        prepare_head(weights, values, DIM, length, to);
#pragma unroll
        for (u32 j = 0; j < VALUES; j++) {
#pragma unroll
            for (u32 tap = 0; tap + 1 < TAPS; tap++) values.of[j][tap] = values.of[j][tap + 1];
            values.of[j][TAPS - 1] = newest[j];
        }
    }
}

// Grid: heads, layers. A warp has a head. States do not move before all that this kernel waits for has ended: see `delta_commit`.
KERNEL_AHEAD(delta_commit_rows, CommitArgs, THREADS, 1) {
    u32 head = block_x() * WARPS + warp_index();
    u64 first = (u64)block_y() * args.num_rows;
    float* ready = args.ready + first * READY;
    if (head < HK) {
        make_ready<DK>(args, (HK + head) * DK, 1.0f, ready + head * DK);
    } else if (head < HK + HV) {
        u32 value_head = head - HK, at = lane_index();
        make_ready<DV>(args, 2 * HK * DK + value_head * DV, 0.0f, ready + HK * DK + value_head * DV);
        if (at >= args.num_rows) return;
        const Layer& layer = args.layers[block_y()];
        u64 gate = (u64)args.rows[at] * HV + value_head;
        Vec2f pair = prepare_gates(layer.alpha[gate], layer.beta[gate], layer.a[value_head], layer.dt_bias[value_head]);
        args.gates[(first + at) * HV + value_head] = {pair.x, pair.y, 0.0f, 0.0f};
    }
    wait_for_inputs();
    let_next_start();
}

// What a block moves: columns of a head in a layer.
struct Item {
    u32 head, first_column;
    // Of the layer's histories, whose channels go by fours.
    u32 first_four;
};
constexpr u32 ITEMS = HV * PARTS, FOURS = (CHANNELS / 4 + ITEMS - 1) / ITEMS, PIECES = WIDTH / 4;
DEVICE Item item_of(u32 number) { return {number / PARTS, number % PARTS * WIDTH, number * FOURS}; }

// Of the histories a thread brings in what it stores. Mirrored by `arriving_bytes` in src/gpu/delta_net/commit.rs.
struct Arriving {
    Vec4f state[KEYS][PIECES];
    Vec4f histories[KEPT_ROWS + 1][FOURS];
    StagedWrite<WIDTH> rows[MOST_ROWS];
};

struct Mover {
    const CommitArgs& args;
    const Layer& layer;
    Arriving& arriving;
    Item item;

    static DEVICE_MEMBER SharedPlace place_of(Vec4f* at) { return shared_place(reinterpret_cast<u8*>(at)); }
    // Of a row of the state. Eight lanes that read or write pieces of one column find them in different banks.
    DEVICE_MEMBER Vec4f& place(u32 row, u32 piece) const { return arriving.state[row][piece ^ row / 4 % 8]; }
    // `of(at, from)`: by whole lines, where pieces of the state lie here and in memory.
    template <typename Of> DEVICE_MEMBER void for_lines(const Of& of) const {
        u32 piece = thread_index() % PIECES, column = item.first_column + 4 * piece;
        if (DV % WIDTH != 0 && column >= DV) return;
        float* states = layer.states + ((u64)args.state * HV + item.head) * DK * DV + column;
#pragma unroll
        for (u32 first = 0; first < KEYS; first += THREADS / PIECES) {
            u32 row = first + thread_index() / PIECES;
            if (DK % 32 == 0 || row < DK) of(place(row, piece), states + row * DV);
        }
    }
    // `of(at, values)`: pieces of a lane's state, and where they lie here.
    template <typename Of> DEVICE_MEMBER void for_own(State<4>& state, const Of& of) const {
#pragma unroll
        for (u32 i = 0; i < 4 * QUADS; i++)
            of(place(i / 4 * 32 + lane_index() % 8 * 4 + i % 4, warp_index() * 4 + lane_index() / 8), state.at[i / 4][i % 4]);
    }
    // `of(row, at, channel)`: a thread's pieces of histories, where they arrive, and their first channel.
    template <typename Of> DEVICE_MEMBER void for_histories(const Of& of) const {
        for (u32 i = thread_index(); i < KEPT_ROWS * FOURS; i += THREADS) {
            u32 row = i / FOURS, four = i % FOURS, channel = 4 * (item.first_four + four);
            if (channel < CHANNELS) of(row, arriving.histories[row][four], channel);
        }
    }
    DEVICE_MEMBER void bring_state() const {
        for_lines([&](Vec4f& at, const float* from) { copy_async(place_of(&at), from); });
    }
    // Nobody reads histories any more but what brings them here.
    DEVICE_MEMBER void bring_histories() const {
        for_histories([&](u32 row, Vec4f& at, u32 channel) {
            const float* from = read_of_chain(RowOfPath{args}, layer, args.state, args.num_rows - 1, KEPT_ROWS - 1 - row);
            copy_async(place_of(&at), from + channel);
        });
    }
    // A warp brings in every WARPS'th row.
    DEVICE_MEMBER void bring_rows() const {
        u32 lane = lane_index();
        for (u32 at = warp_index(); at < args.num_rows; at += WARPS) {
            u64 number = (u64)block_y() * args.num_rows + at;
            StagedWrite<WIDTH>& to = arriving.rows[at];
            const float* k = args.ready + number * READY + item.head % HK * DK;
            const float* v = args.ready + number * READY + HK * DK + item.head * DV + item.first_column;
            for (u32 i = lane; i < DK / 4; i += LANES) copy_async(place_of(&to.k[i]), k + 4 * i);
            if (lane < WIDTH / 4 && (DV % WIDTH == 0 || item.first_column + 4 * lane < DV)) copy_async(place_of(&to.v[lane]), v + 4 * lane);
            if (lane == WIDTH / 4) copy_async(place_of(&to.gates), args.gates + number * HV + item.head);
        }
    }
    DEVICE_MEMBER void store_histories() const {
        float* history = layer.history + (u64)args.state * KEPT_ROWS * CHANNELS;
        for_histories([&](u32 row, const Vec4f& at, u32 channel) { *reinterpret_cast<Vec4f*>(history + (u64)row * CHANNELS + channel) = at; });
    }
};

// Grid: heads by their parts, layers. Some of the blocks of a multiprocessor load and store while others move their states.
KERNEL_AHEAD(delta_commit, CommitArgs, THREADS, 4) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    Arriving& arriving = *reinterpret_cast<Arriving*>(shared);
    Mover mover = {args, args.layers[block_y()], arriving, item_of(block_x())};
    // The kernel before this one writes no state, and began after those that do had ended.
    mover.bring_state();
    // What is no row of the state or of k.
    if (DK < KEYS)
        for (u32 i = DK / 4 + thread_index(); i < KEYS / 4; i += THREADS)
            for (u32 at = 0; at < MOST_ROWS; at++) arriving.rows[at].k[i] = {};
    for (u32 i = DK * PIECES + thread_index(); i < KEYS * PIECES; i += THREADS) arriving.state[i / PIECES][i % PIECES] = {};
    wait_for_inputs();
    mover.bring_rows();
    mover.bring_histories();
    commit_copies();
    wait_copies<0>();
    sync_threads();
    State<4> state = {};
    mover.for_own(state, [](const Vec4f& at, float (&values)[4]) { spread(at, values); });
    mover.store_histories();
#pragma unroll 1
    for (u32 at = 0; at < args.num_rows; at++) advance(state, arriving.rows[at], warp_index());
    mover.for_own(state, [](Vec4f& at, const float (&values)[4]) { at = together(values); });
    sync_threads();
    mover.for_lines([](const Vec4f& at, float* to) { *reinterpret_cast<Vec4f*>(to) = at; });
}
