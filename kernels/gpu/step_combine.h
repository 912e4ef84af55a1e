// Splits of a step's row put together.
#pragma once
#include "step_attention.h"

// As combine.cu does it: a warp is a member, a lane has two dims.
constexpr u32 PAIRS = HEAD_DIM / 2, RUNS = (PAIRS + LANES - 1) / LANES;
struct CombineShared {
    Vec2f sums[attention::MEMBERS][LANES];
    float totals[attention::MEMBERS][LANES];
};
static_assert(sizeof(CombineShared) == 16 * 32 * 12, "as src/gpu/megakernel.rs has it");
// Splits of a member that a lane looks at at once: maximum and sum of weights, and two dims.
constexpr u32 FLIGHT = 4;
struct Parts {
    Words<4 * FLIGHT> words;
    const u64 *sums, *partials;
    u32 first, num_splits, looks;

    // Of splits from `first` on, as far apart as there are members; those from `end` on are not there. They are on their way then.
    DEVICE_MEMBER Parts(const Context& step, const Combine& layer, u32 head, u32 pair, u32 first, u32 end)
        : words(step.waiting, {nullptr, layer.number}), sums(layer.sums + 2 * (u64)head * layer.num_splits),
          partials(layer.partials + (u64)head * layer.num_splits * HEAD_DIM + 2 * pair), first(first), num_splits(layer.num_splits), looks(0) {
#pragma unroll
        for (u32 i = 0; i < 4 * FLIGHT; i++) {
            if (split_of(i / 4) < end) words.expect(i);
            else words.put(i, 0.0f);
        }
        look();
    }
    DEVICE_MEMBER bool lacks(u32 i) const { return words.is_other(words.of[i]); }
    DEVICE_MEMBER u32 split_of(u32 j) const { return first + j * attention::MEMBERS; }
    DEVICE_MEMBER void look() {
#pragma unroll
        for (u32 j = 0; j < FLIGHT; j++) {
            u32 at = 4 * j, split = split_of(j);
            if (lacks(at)) words.of[at] = load_word(sums + split);
            if (lacks(at + 1)) words.of[at + 1] = load_word(sums + num_splits + split);
            if (lacks(at + 2) || lacks(at + 3)) load_words(partials + (u64)split * HEAD_DIM, words.of[at + 2], words.of[at + 3]);
        }
    }
    DEVICE_MEMBER void wait(const Waiting& waiting) {
        while (!are_there(words) && keeps_waiting(waiting, looks)) look();
    }
    DEVICE_MEMBER float top(u32 j) const { return words.value(4 * j); }
    DEVICE_MEMBER float total(u32 j) const { return words.value(4 * j + 1); }
    DEVICE_MEMBER Vec2f values(u32 j) const { return {words.value(4 * j + 2), words.value(4 * j + 3)}; }
};
// The largest of all splits' maxima, by a warp.
DEVICE float top_of(const Context& step, const Combine& layer, u32 head, const attention::Places& splits) {
    constexpr u32 TOGETHER = 4;
    Source tops = {layer.sums + 2 * (u64)head * layer.num_splits, layer.number};
    float top = -1e30f;
#pragma unroll 1
    for (u32 first = splits.first; first < splits.end; first += TOGETHER * LANES) {
        float some[TOGETHER];
        take_some<1, Of::WORDS>(step.waiting, tops, first, first, splits.end, some);
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++)
            if (first + lane_index() + i * LANES < splits.end) top = larger(top, some[i]);
    }
    return warp_max(top);
}
struct MixedPair {
    Vec2f sum;
    float total;

    // As `add_split`.
    DEVICE_MEMBER void add(float weight, float of_total, Vec2f part) {
        total = fused_multiply_add(weight, of_total, total);
        sum.x = fused_multiply_add(weight, part.x, sum.x);
        sum.y = fused_multiply_add(weight, part.y, sum.y);
    }
};
DEVICE void combine(const Context& step, const Combine& layer, u32 unit, CombineShared& shared) {
    attention::Places splits = attention::splits_of(attention::seen_by(step.row, 0, 1));
    if (is_one(splits)) return;
    u32 head = unit / RUNS, pair = unit % RUNS * LANES + lane_index(), warp = warp_index();
    bool is_used = pair < PAIRS;
    float gates[2] = {};
    if (warp == 0 && is_used && layer.gates.at) take_pair(step.waiting, layer.gates, head * layer.q_stride + HEAD_DIM + pair * 2, gates);
    constexpr u32 MEMBERS = attention::MEMBERS;
#pragma unroll 1
    for (u32 member = warp; member < MEMBERS; member += BLOCK_WARPS) {
        MixedPair mixed = {};
        u32 first = splits.first / MEMBERS * MEMBERS + member;
        if (first < splits.first) first += MEMBERS;
        float top = 0.0f;
#pragma unroll 1
        for (u32 s = first; s < splits.end; s += FLIGHT * MEMBERS) {
            Parts parts(step, layer, head, is_used ? pair : 0, s, splits.end);
            if (s == first) top = top_of(step, layer, head, splits);
            parts.wait(step.waiting);
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++)
                if (s + j * MEMBERS < splits.end) mixed.add(exp2_fast(parts.top(j) - top), parts.total(j), parts.values(j));
        }
        shared.sums[member][lane_index()] = mixed.sum;
        shared.totals[member][lane_index()] = mixed.total;
    }
    sync_threads();
    if (warp == 0 && is_used) {
        MixedPair mixed = {shared.sums[0][lane_index()], shared.totals[0][lane_index()]};
#pragma unroll
        for (u32 m = 1; m < MEMBERS; m++) mixed.add(1.0f, shared.totals[m][lane_index()], shared.sums[m][lane_index()]);
        float values[2] = {mixed.sum.x, mixed.sum.y}, share = reciprocal(mixed.total);
        for (u32 i = 0; i < 2; i++) {
            float value = values[i] * share;
            if (layer.gates.at) value *= sigmoid(gates[i]);
            put(step.waiting, layer.out, head * HEAD_DIM + pair * 2 + i, value);
        }
    }
    sync_threads();
}
