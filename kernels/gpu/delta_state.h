// The recurrence of gated DeltaNet: a warp has 4 COLUMNS columns (value dims) of a head; a lane has COLUMNS of them in an
// eighth of the rows (key dims): rows 4r .. 4r + 3 of every 32, with r = lane % 8. A sum over rows has the same order
// whatever COLUMNS is.
#pragma once
#include "delta_rows.h"

constexpr u32 QUADS = (DK + 31) / 32;
constexpr u32 KEYS = QUADS * 32;
static_assert(DK % 4 == 0 && DV % 16 == 0, "head dims");

template <u32 COLUMNS> struct Run;
template <> struct Run<1> {
    typedef float Type;
};
template <> struct Run<2> {
    typedef Vec2f Type;
};
template <> struct Run<4> {
    typedef Vec4f Type;
};
// Values that lie side by side.
DEVICE void spread(float from, float (&to)[1]) { to[0] = from; }
DEVICE void spread(const Vec2f& from, float (&to)[2]) { to[0] = from.x, to[1] = from.y; }
DEVICE void spread(const Vec4f& from, float (&to)[4]) { to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w; }
DEVICE float together(const float (&from)[1]) { return from[0]; }
DEVICE Vec2f together(const float (&from)[2]) { return {from[0], from[1]}; }
DEVICE Vec4f together(const float (&from)[4]) { return {from[0], from[1], from[2], from[3]}; }

template <u32 COLUMNS> struct State {
    // Rows 4r + j of 32 i.
    float at[QUADS][4][COLUMNS];
};
template <u32 COLUMNS> DEVICE void load_state(State<COLUMNS>& state, const float* at) {
    u32 first = lane_index() % 8 * 4;
#pragma unroll
    for (u32 i = 0; i < QUADS; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 row = i * 32 + first + j;
            typename Run<COLUMNS>::Type run = {};
            if (DK % 32 == 0 || row < DK) run = *reinterpret_cast<const typename Run<COLUMNS>::Type*>(at + row * DV);
            spread(run, state.at[i][j]);
        }
}
template <u32 COLUMNS> DEVICE void store_state(const State<COLUMNS>& state, float* at) {
    u32 first = lane_index() % 8 * 4;
#pragma unroll
    for (u32 i = 0; i < QUADS; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 row = i * 32 + first + j;
            if (DK % 32 == 0 || row < DK) *reinterpret_cast<typename Run<COLUMNS>::Type*>(at + row * DV) = together(state.at[i][j]);
        }
}

// What a step needs of a block's columns, in shared memory, where it gives no answers.
template <u32 WIDTH> struct StagedWrite {
    Vec4f k[KEYS / 4], v[WIDTH / 4];
    // Decay and strength.
    Vec4f gates;
};
template <u32 WIDTH> struct Staged : StagedWrite<WIDTH> {
    Vec4f q[KEYS / 4];
};
// As many steps are brought in at a time.
constexpr u32 STEPS = 4;

template <u32 COLUMNS> struct Parts {
    float of[COLUMNS];
};
// A lane's share of k.
struct Key {
    Vec4f of[QUADS];
};
template <u32 WIDTH> DEVICE Key key_of(const StagedWrite<WIDTH>& staged) {
    Key key;
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) key.of[i] = staged.k[i * 8 + lane_index() % 8];
    return key;
}
// A row that has read the state by k.
template <u32 COLUMNS> struct Reading {
    Key key;
    float decay, strength, v[COLUMNS];
    // What the lane's columns read as: its part of it, until that is added across.
    Parts<COLUMNS> read;
};
// `strip`: which of the runs of 4 COLUMNS columns that are staged is the warp's.
template <u32 COLUMNS, u32 WIDTH>
DEVICE Reading<COLUMNS> read_by_key(const State<COLUMNS>& state, const Key& key, const StagedWrite<WIDTH>& staged, u32 strip) {
    Reading<COLUMNS> reading;
    reading.key = key;
    float sums[2][COLUMNS] = {};
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        float ks[4];
        spread(key.of[i], ks);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) sums[j % 2][c] = fused_multiply_add(state.at[i][j][c], ks[j], sums[j % 2][c]);
    }
    reading.decay = staged.gates.x, reading.strength = staged.gates.y;
    spread(reinterpret_cast<const typename Run<COLUMNS>::Type*>(staged.v)[strip * 4 + lane_index() / 8], reading.v);
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) reading.read.of[c] = sums[0][c] + sums[1][c];
    return reading;
}
// Of the eight lanes that have a column.
template <u32 COLUMNS> DEVICE void add_across(Parts<COLUMNS>& parts) {
#pragma unroll
    for (u32 mask = 1; mask < 8; mask *= 2)
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) parts.of[c] += shuffle_xor(parts.of[c], mask);
}
template <u32 COLUMNS> DEVICE State<COLUMNS> decayed(const State<COLUMNS>& state, float decay) {
    State<COLUMNS> less;
#pragma unroll
    for (u32 i = 0; i < QUADS; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) less.at[i][j][c] = state.at[i][j][c] * decay;
    return less;
}
// Writes to what is left of the state, and reads by q. Returns the lane's parts of the answers of its columns, where there are to be
// ANSWERS. The state stays as it was before the row, unless it KEEPS it.
template <bool KEEPS, bool ANSWERS, u32 COLUMNS, typename Row>
DEVICE Parts<COLUMNS> write_and_answer(State<COLUMNS>& state, const State<COLUMNS>& less, const Row& staged, const Reading<COLUMNS>& reading) {
    float written[COLUMNS];
    // The state decays before it is read: the sum of the decayed is the decayed sum.
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) written[c] = reading.strength * fused_multiply_add(-reading.decay, reading.read.of[c], reading.v[c]);
    float answers[2][COLUMNS] = {};
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        float ks[4], qs[4];
        spread(reading.key.of[i], ks);
        if constexpr (ANSWERS) spread(staged.q[i * 8 + lane_index() % 8], qs);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) {
                float now = fused_multiply_add(ks[j], written[c], less.at[i][j][c]);
                if (ANSWERS) answers[j % 2][c] = fused_multiply_add(now, qs[j], answers[j % 2][c]);
                if (KEEPS) state.at[i][j][c] = now;
            }
    }
    Parts<COLUMNS> parts;
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) parts.of[c] = answers[0][c] + answers[1][c];
    return parts;
}
// One row: decay, read by k, write, read by q.
template <bool KEEPS, bool ANSWERS, u32 COLUMNS, typename Row>
DEVICE Parts<COLUMNS> advance(State<COLUMNS>& state, const Row& staged, u32 strip) {
    Reading<COLUMNS> reading = read_by_key(state, key_of(staged), staged, strip);
    add_across(reading.read);
    return write_and_answer<KEEPS, ANSWERS>(state, decayed(state, reading.decay), staged, reading);
}
// The whole answer of column `lane % COLUMNS` of the lane's.
template <u32 COLUMNS> DEVICE float whole(const Parts<COLUMNS>& parts) {
    float mine;
    if constexpr (COLUMNS == 4) {
        bool is_odd = lane_index() % 2, is_later = lane_index() / 2 % 2;
        // Of columns `first` and `first + 1`, one in even lanes and one in odd ones.
        auto pair = [&](u32 first) { return (is_odd ? parts.of[first + 1] : parts.of[first]) + shuffle_xor(is_odd ? parts.of[first] : parts.of[first + 1], 1); };
        float left = pair(0), right = pair(2), kept = is_later ? right : left;
        mine = kept + shuffle_xor(is_later ? left : right, 2);
    } else {
        static_assert(COLUMNS == 1, "one column or four");
        mine = parts.of[0] + shuffle_xor(parts.of[0], 1);
        mine += shuffle_xor(mine, 2);
    }
    mine += shuffle_xor(mine, 4);
    return mine;
}
