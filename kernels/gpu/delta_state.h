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
// Values of k or q in a lane's rows of the state.
struct KeyValues {
    Vec4f of[QUADS];
};
DEVICE KeyValues values_of(const Vec4f (&staged)[KEYS / 4]) {
    KeyValues values;
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) values.of[i] = staged[i * 8 + lane_index() % 8];
    return values;
}
// What the state reads as by k or q: a lane's part of each of its columns.
template <u32 COLUMNS> DEVICE Parts<COLUMNS> read_by(const State<COLUMNS>& state, const KeyValues& by) {
    float sums[2][COLUMNS] = {};
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        float values[4];
        spread(by.of[i], values);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) sums[j % 2][c] = fused_multiply_add(state.at[i][j][c], values[j], sums[j % 2][c]);
    }
    Parts<COLUMNS> parts;
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) parts.of[c] = sums[0][c] + sums[1][c];
    return parts;
}
// A lane's part of k times q.
DEVICE float part_of_product(const KeyValues& k, const KeyValues& q) {
    float sums[2] = {};
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        float ks[4], qs[4];
        spread(k.of[i], ks);
        spread(q.of[i], qs);
#pragma unroll
        for (u32 j = 0; j < 4; j++) sums[j % 2] = fused_multiply_add(ks[j], qs[j], sums[j % 2]);
    }
    return sums[0] + sums[1];
}
// Of the eight lanes that have a column.
template <u32 COLUMNS> DEVICE void add_across(Parts<COLUMNS>& parts) {
#pragma unroll
    for (u32 mask = 1; mask < 8; mask *= 2)
#pragma unroll
        for (u32 c = 0; c < COLUMNS; c++) parts.of[c] += shuffle_xor(parts.of[c], mask);
}
template <u32 COLUMNS> DEVICE void decay_state(State<COLUMNS>& state, float decay) {
#pragma unroll
    for (u32 i = 0; i < QUADS; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) state.at[i][j][c] *= decay;
}
// What a row writes by k to the columns that `read` is of. `strip`: which of the runs of 4 COLUMNS columns that are staged is the warp's.
template <u32 COLUMNS, u32 WIDTH> DEVICE Parts<COLUMNS> to_write(const Parts<COLUMNS>& read, const StagedWrite<WIDTH>& staged, u32 strip) {
    Parts<COLUMNS> write;
    float v[COLUMNS];
    spread(reinterpret_cast<const typename Run<COLUMNS>::Type*>(staged.v)[strip * 4 + lane_index() / 8], v);
    // The state decays before it is read: the sum of the decayed is the decayed sum.
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) write.of[c] = staged.gates.y * fused_multiply_add(-staged.gates.x, read.of[c], v[c]);
    return write;
}
// To a state that has decayed.
template <u32 COLUMNS> DEVICE void write_state(State<COLUMNS>& state, const KeyValues& k, const Parts<COLUMNS>& write) {
#pragma unroll
    for (u32 i = 0; i < QUADS; i++) {
        float ks[4];
        spread(k.of[i], ks);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < COLUMNS; c++) state.at[i][j][c] = fused_multiply_add(ks[j], write.of[c], state.at[i][j][c]);
    }
}
// A lane's parts of the answers, which are what the new state reads as by q: what the old one does, decayed, and k times q of what is written. So a
// row whose state nobody needs writes none, and others do not wait for it. `by_q`: of the old state. `product`: the lane's part of k times q.
template <u32 COLUMNS> DEVICE Parts<COLUMNS> answer(const Parts<COLUMNS>& by_q, const Parts<COLUMNS>& write, float decay, float product) {
    Parts<COLUMNS> parts;
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) parts.of[c] = fused_multiply_add(product, write.of[c], decay * by_q.of[c]);
    return parts;
}
// One row that gives no answers.
template <u32 COLUMNS, u32 WIDTH> DEVICE void advance(State<COLUMNS>& state, const StagedWrite<WIDTH>& staged, u32 strip) {
    KeyValues k = values_of(staged.k);
    Parts<COLUMNS> read = read_by(state, k);
    decay_state(state, staged.gates.x);
    add_across(read);
    write_state(state, k, to_write(read, staged, strip));
}
// One row, and the lane's parts of its answers.
template <u32 COLUMNS, u32 WIDTH> DEVICE Parts<COLUMNS> advance_and_answer(State<COLUMNS>& state, const Staged<WIDTH>& staged, u32 strip) {
    KeyValues k = values_of(staged.k), q = values_of(staged.q);
    Parts<COLUMNS> read = read_by(state, k), by_q = read_by(state, q);
    float product = part_of_product(k, q);
    decay_state(state, staged.gates.x);
    add_across(read);
    Parts<COLUMNS> write = to_write(read, staged, strip);
    write_state(state, k, write);
    return answer(by_q, write, staged.gates.x, product);
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
