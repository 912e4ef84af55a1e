// The recurrence of a DeltaNet layer for a step's row. Needs what delta_rows.h and phases.h need.
#pragma once
#include "phases.h"
namespace delta {
#include "delta_state.h"
}

// Columns of a head that a block walks with. Four of them are a warp's, one of these a lane's: that is the shortest walk, and of the
// registers that a lane needs for more of them all phases would have fewer.
constexpr u32 STRIP = 16, STRIPS = DV / STRIP;
constexpr u32 FIRST_WALKER = 4, WALKERS = STRIP / 4;
static_assert(BLOCK_WARPS >= FIRST_WALKER + WALKERS, "warps that prepare and those that walk");
// All heads' channels begin at multiples of this.
constexpr u32 HEADS_BEGIN = (DK | DV) & -(DK | DV);
struct DeltaShared {
    delta::Staged<DV> staged;
};

// A part of a row, convolved: what is before it is plain, it comes itself as values of a row. Those of `from..end` of its channels.
template <u32 DIM> DEVICE void prepare(const Context& step, const Delta& layer, u32 channel, u32 from, u32 end, float length, float* to) {
    constexpr u32 VALUES = (DIM + LANES - 1) / LANES;
    delta::HeadTaps<DIM> weights, values;
    delta::load_weights(weights, layer.conv_weight, channel, DIM);
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        u32 at = lane_index() + j * LANES;
        const float* before = layer.history + (u64)step.segment.state_index * delta::KEPT_ROWS * delta::CHANNELS + channel + at;
#pragma unroll
        for (u32 tap = 0; tap < delta::KEPT_ROWS; tap++) values.of[j][tap] = at >= from && at < end ? before[tap * delta::CHANNELS] : 0.0f;
    }
    float now[VALUES];
    take_some<HEADS_BEGIN>(step.waiting, layer.qkv, channel, channel + from, channel + end, now);
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) values.of[j][delta::KEPT_ROWS] = now[j];
    delta::prepare_head(weights, values, DIM, length, to);
}

DEVICE void walk(const Context& step, const Delta& layer, u32 unit, DeltaShared& shared) {
    u32 head = unit / STRIPS, strip = unit % STRIPS, key_head = head % HK, warp = warp_index(), lane = lane_index();
    u32 run = strip * WALKERS + (warp - FIRST_WALKER) % WALKERS, column = run * 4 + lane / 8;
    float* committed = layer.states + ((u64)step.segment.state_index * HV + head) * DK * DV + column;
    auto& staged = shared.staged;
    // Of v, the strip's own alone.
    u32 of_v = 2 * HK * DK + head * DV, own = strip * STRIP;
    // Each with its own way through the barrier: registers are for what a warp has to do.
    if (warp >= FIRST_WALKER && warp < FIRST_WALKER + WALKERS) {
        delta::State<1> state;
        delta::load_state(state, committed);
        sync_threads();
        float answer = delta::whole(delta::advance_and_answer(state, staged, run));
        if (lane % 8 == 0) put(step.waiting, layer.out, head * DV + column, answer);
        delta::store_state(state, committed);
    } else {
        // One piece of code for q, k and v: a multiprocessor passes through it once.
        if (warp < 3 && (DK == DV || warp < 2)) {
            Vec4f* to = warp == 0 ? staged.q : warp == 1 ? staged.k : staged.v;
            if (warp < 2 && DK / 4 + lane < delta::KEYS / 4) to[DK / 4 + lane] = {};
            u32 channel = warp < 2 ? (warp * HK + key_head) * DK : of_v, from = warp < 2 ? 0 : own, end = warp < 2 ? DK : own + STRIP;
            float length = warp == 0 ? layer.q_scale : warp == 1 ? 1.0f : 0.0f;
            prepare<DK>(step, layer, channel, from, end, length, reinterpret_cast<float*>(to));
        } else if (DK != DV && warp == 2) {
            prepare<DV>(step, layer, of_v, own, own + STRIP, 0.0f, reinterpret_cast<float*>(staged.v));
        } else if (warp == 3) {
            float a = layer.a[head], dt_bias = layer.dt_bias[head];
            float one = take_one(step.waiting, lane % 2 == 0 ? layer.alpha : layer.beta, head);
            Vec2f gates = delta::prepare_gates(shuffle(one, 0), shuffle(one, 1), a, dt_bias);
            if (lane == 0) staged.gates.x = gates.x, staged.gates.y = gates.y;
        }
        sync_threads();
    }
    // The next phase, or unit, takes the place of what is staged.
    sync_threads();
}

DEVICE void move_history(const Context& step, const Move& move, Share share) {
    // By the last warps, for the first ones have rows to wait for.
    for (u32 i = BLOCK_THREADS - 1 - thread_index(); i < share.count; i += BLOCK_THREADS) {
        u32 channel = share.first + i;
        float* history = move.history + (u64)step.segment.state_index * delta::KEPT_ROWS * delta::CHANNELS + channel;
        float values[delta::KEPT_ROWS + 1];
#pragma unroll
        for (u32 tap = 1; tap < delta::KEPT_ROWS; tap++) values[tap] = history[tap * delta::CHANNELS];
        values[delta::KEPT_ROWS] = take_one(step.waiting, move.qkv, channel);
        take_one(step.waiting, move.after, 0);
#pragma unroll
        for (u32 tap = 0; tap < delta::KEPT_ROWS; tap++) history[tap * delta::CHANNELS] = values[tap + 1];
    }
}
