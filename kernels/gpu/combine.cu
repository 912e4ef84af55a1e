// Puts the splits of a row together, where they are many, and applies the gate.
//
// HEAD_DIM: D.
#include "attention.h"

// Threads take four dims each.
constexpr u32 COMBINE_THREADS = 256, RUN = COMBINE_THREADS / MEMBERS, QUADS = HEAD_DIM / 4;
// Splits of which each member has loads under way at once.
constexpr u32 FLIGHT = 8;

// Grid: rows, heads, runs of dims.
KERNEL_AHEAD(combine, AttendArgs, 256, 1) {
    let_next_start();
    SHARED float tops[COMBINE_THREADS / LANES];
    SHARED Mixed parts[COMBINE_THREADS];
    u32 row_index = args.first_row + block_x(), head = block_y(), thread = thread_index();
    Row row = args.tables.rows[row_index];
    wait_for_inputs();
    if (row.segment == NONE) return;
    Places splits = splits_of(seen_by(row, args.window, args.causal));
    u32 first = splits.first, end = splits.end;
    u64 base = ((u64)block_x() * args.num_heads + head) * args.num_splits;
    const Vec2f* sums = args.sums + base;

    float top = -1e30f;
    for (u32 s = first + thread; s < end; s += COMBINE_THREADS) top = larger(top, sums[s].x);
    top = warp_max(top);
    if (lane_index() == 0) tops[warp_index()] = top;
    sync_threads();
    for (u32 w = 0; w < COMBINE_THREADS / LANES; w++) top = larger(top, tops[w]);

    u32 quad = block_z() * RUN + thread % RUN, member = thread / RUN;
    bool is_used = quad < QUADS;
    u64 answer_at = (u64)row_index * args.num_heads + head;
    Vec4f gates = {0, 0, 0, 0};
    if (member == 0 && is_used) gates = gates_of(args, answer_at, quad);
    const Vec4f* partials = reinterpret_cast<const Vec4f*>(args.partials + base * HEAD_DIM) + (is_used ? quad : 0);
    Mixed mixed = {};
    for (u32 s = first / MEMBERS * MEMBERS + member; s < end; s += MEMBERS * FLIGHT) {
        Vec4f part[FLIGHT];
        Vec2f sum[FLIGHT];
#pragma unroll
        for (u32 i = 0; i < FLIGHT; i++) {
            u32 at = s + i * MEMBERS;
            bool is_there = at >= first && at < end;
            part[i] = is_there ? partials[(u64)at * QUADS] : Vec4f{0, 0, 0, 0};
            sum[i] = is_there ? sums[at] : Vec2f{-2e30f, 0};
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; i++) add_split(mixed, exp2_fast(sum[i].x - top), sum[i].y, part[i]);
    }
    parts[thread] = mixed;
    sync_threads();
    if (member != 0 || !is_used) return;
    for (u32 m = 1; m < MEMBERS; m++) add_split(mixed, 1.0f, parts[m * RUN + thread].total, parts[m * RUN + thread].sum);
    put_answer(args, answer_at, quad, mixed, gates);
}
