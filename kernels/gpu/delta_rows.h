// Rows of a gated DeltaNet layer, from the projections to what goes into the recurrence: causal convolution, norm of q and
// k, decay and write strength.
//
// Compiled for one shape: HK and HV key and value heads with dims DK and DV, and TAPS of the convolution. Value head p
// reads key head p mod HK. Channels of a row: q of all key heads, k of all key heads, v of all value heads.
//
// Every sum has one order, whether a row is decoded alone, lies in a tree or is replayed: the same functions compute it.
#pragma once
#include "gated_norm.h"
#include "tables.h"

constexpr u32 HEADS = 2 * HK + HV;
constexpr u32 CHANNELS = 2 * HK * DK + HV * DV;
constexpr u32 KEPT_ROWS = TAPS - 1;

// What a layer's recurrence is made from, and the states that it moves.
struct Layer {
    // [N, CHANNELS], [N, HV], [N, HV].
    const float* qkv;
    const float* alpha;
    const float* beta;
    // [CHANNELS, TAPS], [HV], [HV].
    const float* conv_weight;
    const float* a;
    const float* dt_bias;
    // [sequences, KEPT_ROWS, CHANNELS], oldest first.
    float* history;
    // [sequences, HV, DK, DV].
    float* states;
};

// What a row's convolution reads, oldest tap first: the row itself, its ancestors, then the history's newest rows.
struct Window {
    const float* rows[TAPS];
};
DEVICE Window window_of(const Tables& tables, const Layer& layer, u32 state, u32 row) {
    Window window;
    const float* newest = layer.history + ((u64)state * KEPT_ROWS + KEPT_ROWS) * CHANNELS;
#pragma unroll
    for (u32 tap = TAPS; tap-- > 0;) {
        if (row != NONE) {
            window.rows[tap] = layer.qkv + (u64)row * CHANNELS;
            row = tables.rows[row].parent_row;
        } else {
            newest -= CHANNELS;
            window.rows[tap] = newest;
        }
    }
    return window;
}
// What the convolution of step `at` of a chain reads `back` steps before it. Rows, `row_of(step)`, need not be looked for one after another.
template <typename RowOf> DEVICE const float* read_of_chain(const RowOf& row_of, const Layer& layer, u32 state, u32 at, u32 back) {
    return back <= at ? layer.qkv + (u64)row_of(at - back) * CHANNELS : layer.history + ((u64)state * KEPT_ROWS + KEPT_ROWS - (back - at)) * CHANNELS;
}
template <typename RowOf> DEVICE Window window_of_chain(const RowOf& row_of, const Layer& layer, u32 state, u32 at) {
    Window window;
#pragma unroll
    for (u32 back = 0; back < TAPS; back++) window.rows[KEPT_ROWS - back] = read_of_chain(row_of, layer, state, at, back);
    return window;
}
DEVICE Window window_of_chain(const Step* steps, const Layer& layer, u32 state, u32 at) {
    return window_of_chain([&](u32 i) { return steps[i].row; }, layer, state, at);
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

// A lane's channels of a head are `lane`, `lane + 32` and so on; a head has `dim` of them, MOST at most.
template <u32 MOST> struct HeadTaps {
    float of[(MOST + LANES - 1) / LANES][TAPS];
};
template <u32 MOST> DEVICE void load_weights(HeadTaps<MOST>& to, const float* conv_weight, u32 first_channel, u32 dim) {
#pragma unroll
    for (u32 j = 0; j < (MOST + LANES - 1) / LANES; j++) {
        u32 at = lane_index() + j * LANES;
        const float* from = conv_weight + (u64)(first_channel + at) * TAPS;
        if constexpr (TAPS == 4) {
            Vec4f all = at < dim ? *reinterpret_cast<const Vec4f*>(from) : Vec4f{};
            to.of[j][0] = all.x, to.of[j][1] = all.y, to.of[j][2] = all.z, to.of[j][3] = all.w;
        } else {
#pragma unroll
            for (u32 tap = 0; tap < TAPS; tap++) to.of[j][tap] = at < dim ? from[tap] : 0.0f;
        }
    }
}
template <u32 MOST> DEVICE void load_values(HeadTaps<MOST>& to, const Window& window, u32 first_channel, u32 dim) {
#pragma unroll
    for (u32 j = 0; j < (MOST + LANES - 1) / LANES; j++) {
        u32 at = lane_index() + j * LANES;
#pragma unroll
        for (u32 tap = 0; tap < TAPS; tap++) to.of[j][tap] = at < dim ? window.rows[tap][first_channel + at] : 0.0f;
    }
}
// A head of a row, of length `length` where that is not 0; by a warp.
template <u32 MOST> DEVICE void prepare_head(const HeadTaps<MOST>& weights, const HeadTaps<MOST>& values, u32 dim, float length, float* to) {
    constexpr u32 VALUES = (MOST + LANES - 1) / LANES;
    float mixed[VALUES];
    float squares = 0.0f;
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        float sum = 0.0f;
#pragma unroll
        for (u32 tap = 0; tap < TAPS; tap++) sum = fused_multiply_add(weights.of[j][tap], values.of[j][tap], sum);
        mixed[j] = silu(sum);
        squares = fused_multiply_add(mixed[j], mixed[j], squares);
    }
    float factor = 1.0f;
    if (length != 0.0f) factor = length * inverse_root(warp_sum(squares) + 1e-6f);
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        u32 at = lane_index() + j * LANES;
        if (at < dim) to[at] = mixed[j] * factor;
    }
}

// Decay and strength of a value head of a row.
DEVICE Vec2f prepare_gates(float alpha, float beta, float a, float dt_bias) {
    return {exact_exponential(a * softplus(alpha + dt_bias)), sigmoid(beta)};
}

// The history after a chain: its last rows, after older ones where it is short. `last`: what the last one's convolution reads.
DEVICE void move_history(const Layer& layer, const Window& last, u32 state, u32 channel) {
    float values[KEPT_ROWS + 1];
    // All of them before the first is overwritten.
#pragma unroll
    for (u32 i = 0; i < KEPT_ROWS; i++) values[i] = last.rows[i + 1][channel];
    float* to = layer.history + (u64)state * KEPT_ROWS * CHANNELS + channel;
#pragma unroll
    for (u32 i = 0; i < KEPT_ROWS; i++) to[(u64)i * CHANNELS] = values[i];
}
