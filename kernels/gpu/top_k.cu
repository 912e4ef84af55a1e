// The likeliest ids of rows of logits.
//
// Two passes: every slice of a row gives its own best, in order, and its share of the sum of exponentials; then the
// slices' lists are merged. Where the best one alone is asked for, whoever does a row's last slice merges them.
#include "far.h"
#include "keys.h"

constexpr u32 THREADS = 256, WARPS = THREADS / LANES, EACH = 8, SLICE = THREADS * EACH;

struct TopKArgs {
    // [N, V]
    const float* logits;
    // [N, slices, per_slice], best first.
    u64* best;
    // [N, slices]: maximum, and sum of exponentials of what is less than it.
    Vec2f* sums;
    // Memory of the host, which finds `number` in `told` when results are there. [N, K]:
    u32* ids;
    float* log_probs;
    float* values;
    u32* told;
    // Zero before and after: slices of each row that are done, and rows. [N + 1]
    u32* tickets;
    // Where `number` is, if that is not known yet.
    const u32* number_at;
    u32 number, num_rows, vocab_size, k, num_slices, per_slice;
};

// By the thread that has written a row's results.
DEVICE void tell(const TopKArgs& args) {
    fence_far();
    if (take_ticket(args.tickets + args.num_rows, args.num_rows) + 1 < args.num_rows) return;
    fence_far();
    store_release_far(args.told, args.number_at ? *args.number_at : args.number);
}

// Of all threads. `side`: another in each of two calls that follow one another.
DEVICE u64 block_best(u64 key, u32 side) {
    SHARED u64 best[2][WARPS];
    key = warp_best(key);
    if (lane_index() == 0) best[side][warp_index()] = key;
    sync_threads();
    key = best[side][0];
    for (u32 w = 1; w < WARPS; w++) key = larger(key, best[side][w]);
    return key;
}
DEVICE float block_max(float x) {
    SHARED float tops[WARPS];
    x = warp_max(x);
    if (lane_index() == 0) tops[warp_index()] = x;
    sync_threads();
    for (u32 w = 0; w < WARPS; w++) x = larger(x, tops[w]);
    return x;
}
DEVICE float block_sum(float x) {
    SHARED float sums[WARPS];
    x = warp_sum(x);
    if (lane_index() == 0) sums[warp_index()] = x;
    sync_threads();
    x = sums[0];
    for (u32 w = 1; w < WARPS; w++) x += sums[w];
    return x;
}

// Grid: slices, rows.
KERNEL(top_k_slices, TopKArgs, 256) {
    u32 slice = block_x(), first = slice * SLICE;
    const float* logits = args.logits + (u64)block_y() * args.vocab_size;
    u64 at = (u64)block_y() * args.num_slices + slice;
    u64 keys[EACH], best = NO_KEY;
    float values[EACH], top = bits_to_f32(0xff800000u), sum = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 id = first + i * THREADS + thread_index();
        bool is_there = id < args.vocab_size;
        values[i] = is_there ? logits[id] : bits_to_f32(0xff800000u);
        keys[i] = is_there ? key_of(values[i], id) : NO_KEY;
        top = larger(top, values[i]);
        best = larger(best, keys[i]);
    }
    top = block_max(top);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) sum += exponential(values[i] - top);
    sum = block_sum(sum);
    if (thread_index() == 0) args.sums[at] = {top, sum};
    for (u32 n = 0; n < args.per_slice; n++) {
        u64 winner = block_best(best, n % 2);
        if (thread_index() == 0) args.best[at * args.per_slice + n] = winner;
        if (best != winner || winner == NO_KEY) continue;
        best = NO_KEY;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (keys[i] == winner) keys[i] = NO_KEY;
            best = larger(best, keys[i]);
        }
    }
}

// Best of the slices that a thread looks after, given how many each has handed out.
DEVICE u64 next_of(const u64* best, const u32* taken, u32 num_slices, u32 per_slice) {
    u64 key = NO_KEY;
    for (u32 slice = thread_index(); slice < num_slices; slice += THREADS)
        if (taken[slice] < per_slice) key = larger(key, best[(u64)slice * per_slice + taken[slice]]);
    return key;
}

// Grid: rows.
KERNEL(top_k_merge, TopKArgs, 256) {
    DYNAMIC_SHARED(memory);
    u32* taken = reinterpret_cast<u32*>(memory);
    const u64* best = args.best + (u64)block_x() * args.num_slices * args.per_slice;
    const Vec2f* sums = args.sums + (u64)block_x() * args.num_slices;
    float top = bits_to_f32(0xff800000u), sum = 0;
    for (u32 slice = thread_index(); slice < args.num_slices; slice += THREADS) {
        taken[slice] = 0;
        top = larger(top, sums[slice].x);
    }
    top = block_max(top);
    for (u32 slice = thread_index(); slice < args.num_slices; slice += THREADS)
        sum = fused_multiply_add(sums[slice].y, exponential(sums[slice].x - top), sum);
    sum = block_sum(sum);
    float log_sum = log2_fast(sum) * 0.69314718055994530942f;
    u64 mine = next_of(best, taken, args.num_slices, args.per_slice);
    for (u32 n = 0; n < args.k; n++) {
        u64 winner = block_best(mine, n % 2);
        if (thread_index() == 0) {
            args.ids[block_x() * args.k + n] = id_of(winner);
            args.log_probs[block_x() * args.k + n] = logit_of(winner) - top - log_sum;
            args.values[block_x() * args.k + n] = logit_of(winner);
        }
        if (mine != winner) continue;
        taken[id_of(winner) / SLICE]++;
        mine = next_of(best, taken, args.num_slices, args.per_slice);
    }
    if (thread_index() == 0) tell(args);
}

// By a block with a slice of OWN ids a thread.
template <u32 OWN> DEVICE void find_best(const TopKArgs& args) {
    SHARED u32 is_last;
    u32 slice = block_x(), row = block_y();
    const float* logits = args.logits + (u64)row * args.vocab_size;
    u64* of_slices = args.best + (u64)row * args.num_slices;
    u64 best = NO_KEY;
#pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        u32 id = (slice * OWN + i) * THREADS + thread_index();
        if (id < args.vocab_size) best = larger(best, key_of(logits[id], id));
    }
    best = block_best(best, 0);
    if (thread_index() == 0) {
        of_slices[slice] = best;
        fence_device();
        is_last = take_ticket(args.tickets + row, args.num_slices) + 1 == args.num_slices;
        fence_device();
    }
    sync_threads();
    if (!is_last) return;
    best = NO_KEY;
    for (u32 s = thread_index(); s < args.num_slices; s += THREADS) best = larger(best, of_slices[s]);
    best = block_best(best, 1);
    if (thread_index() != 0) return;
    args.ids[row] = id_of(best);
    tell(args);
}
// Grid: slices, rows.
KERNEL(best_ids, TopKArgs, 256) { find_best<EACH>(args); }
// Of rows of which each has work enough with fewer blocks: so many that all run at once.
KERNEL(best_ids_of_rows, TopKArgs, 256) { find_best<4 * EACH>(args); }
