// What the kernels of attention share. Mirrors src/gpu/attention.rs.
#pragma once
#include "tables.h"

// Places that one block attends to. Splits begin at place 0, whatever else a launch holds: a row's sums over keys are cut
// at the same places in any company.
constexpr u32 SPLIT = 256;

// Places `first..end`.
struct Places {
    u32 first, end;
};

struct AttendArgs {
    // [N, H, q_stride], normed and rotated.
    const float* q;
    // Pages of heads: see kept.h.
    const void* k;
    const void* v;
    Tables tables;
    // Of rows `first_row..`: [rows, H, num_splits, D], and maximum and sum of each.
    float* partials;
    Vec2f* sums;
    // [N, H, D]
    float* out;
    // [rows, Hkv], zero before and after: splits of a row's heads that are done; whoever does the last one puts them
    // together. Null: a kernel of its own does.
    u32* tickets;
    // Rows of this launch.
    u32 first_row, end_row;
    u32 num_heads, num_kv_heads;
    // D, or 2D where a gate follows each head's query.
    u32 q_stride;
    // 1: answers are multiplied by their gates here.
    u32 gated;
    u32 num_splits;
    // Sliding window in tokens; 0: none. `causal`: it ends at the row itself.
    u32 window, causal;
    // For matrix units: rows of a tile, and splits in which a row may find slots by its path.
    u32 tile_rows, path_splits;
};

// What a row sees of its sequence.
DEVICE Places seen_by(const Row& row, u32 window, u32 causal) {
    if (window == 0) return {row.seen_first, row.seen_end};
    u32 first = row.place + 1 > window ? row.place + 1 - window : 0;
    u32 after = causal ? 0 : window - 1;
    u32 end = after < 0xffffffffu - 1 - row.place ? row.place + after + 1 : 0xffffffffu;
    return {larger(first, row.seen_first), smaller(end, row.seen_end)};
}
// What it sees of a split; empty where `first >= end`.
DEVICE Places seen_of_split(const Row& row, u32 window, u32 causal, u32 split) {
    Places seen = seen_by(row, window, causal);
    return {larger(seen.first, split * SPLIT), smaller(seen.end, (split + 1) * SPLIT)};
}

// The splits that a row sees.
DEVICE Places splits_of(Places seen) { return {seen.first / SPLIT, (seen.end + SPLIT - 1) / SPLIT}; }

// Splits of a row's head are taken by MEMBERS in turn: a split's member is that of its number, windows or not. Then the members'
// sums are added in order.
constexpr u32 MEMBERS = 16;
// Four dims, and the sum of the weights.
struct Mixed {
    Vec4f sum;
    float total;
};
DEVICE void add_split(Mixed& mixed, float weight, float total, Vec4f part) {
    mixed.total = fused_multiply_add(weight, total, mixed.total);
    mixed.sum.x = fused_multiply_add(weight, part.x, mixed.sum.x);
    mixed.sum.y = fused_multiply_add(weight, part.y, mixed.sum.y);
    mixed.sum.z = fused_multiply_add(weight, part.z, mixed.sum.z);
    mixed.sum.w = fused_multiply_add(weight, part.w, mixed.sum.w);
}
// A dim of an answer: `share` of the weighted sum, and its gate where there is one. A sum of -0 counts as 0, as if it had been added to nothing.
DEVICE float answer(float sum, float share, u32 gated, float gate) {
    float value = (sum + 0.0f) * share;
    return gated ? value * sigmoid(gate) : value;
}
// The gates of head `head` of all rows in four dims, if there are any.
DEVICE Vec4f gates_of(const AttendArgs& args, u64 head, u32 quad) {
    Vec4f gates = {0, 0, 0, 0};
    if (args.gated) gates = *reinterpret_cast<const Vec4f*>(args.q + head * args.q_stride + HEAD_DIM + quad * 4);
    return gates;
}
// The answer there.
DEVICE void put_answer(const AttendArgs& args, u64 head, u32 quad, const Mixed& mixed, const Vec4f& gates) {
    float share = reciprocal(mixed.total);
    Vec4f values = {answer(mixed.sum.x, share, args.gated, gates.x), answer(mixed.sum.y, share, args.gated, gates.y),
                    answer(mixed.sum.z, share, args.gated, gates.z), answer(mixed.sum.w, share, args.gated, gates.w)};
    *reinterpret_cast<Vec4f*>(args.out + head * HEAD_DIM + quad * 4) = values;
}

// Scores are products scaled so that their exponentials are powers of two. The root is rounded once: a double's has twice the bits and more.
DEVICE constexpr float score_scale(u32 head_dim) {
    double root = head_dim;
    for (u32 i = 0; i < 32; i++) root = 0.5 * (root + head_dim / root);
    return 1.44269504088896340736f / (float)root;
}
