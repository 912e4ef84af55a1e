// The likeliest ids of rows of logits.
//
// Every slice of a row gives its own best, in order, and its share of the sum of exponentials; whoever does a row's last slice merges
// the slices' lists.
#include "far.h"
#include "likeliest.h"

constexpr u32 THREADS = 256, WARPS = THREADS / LANES, EACH = 8, SLICE = THREADS * EACH;

using Best = Likeliest<WARPS>;

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

// Whether all other slices of the row are done. By all threads, of which the first one has written what comes of this slice.
DEVICE bool is_last_slice(const TopKArgs& args) {
    SHARED u32 is_last;
    if (thread_index() == 0) {
        fence_device();
        is_last = take_ticket(args.tickets + block_y(), args.num_slices) + 1 == args.num_slices;
        fence_device();
    }
    sync_threads();
    return is_last;
}

// Grid: slices, rows.
KERNEL(top_k, TopKArgs, 256) {
    SHARED u64 found[Best::KEYS];
    u32 slice = block_x(), row = block_y(), first = slice * SLICE;
    const float* logits = args.logits + (u64)row * args.vocab_size;
    Vec2f* sums = args.sums + (u64)row * args.num_slices;
    u64 keys[EACH];
    float values[EACH], top = bits_to_f32(0xff800000u), sum = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 id = first + i * THREADS + thread_index();
        bool is_there = id < args.vocab_size;
        values[i] = is_there ? logits[id] : bits_to_f32(0xff800000u);
        keys[i] = is_there ? key_of(values[i], id) : NO_KEY;
        top = larger(top, values[i]);
    }
    top = block_max(top);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) sum += exponential(values[i] - top);
    sum = block_sum(sum);
    if (thread_index() == 0) sums[slice] = {top, sum};
    auto next = [&](u64 below) {
        u64 best = NO_KEY;
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (keys[i] < below) best = larger(best, keys[i]);
        return best;
    };
    u64* best = args.best + ((u64)row * args.num_slices + slice) * args.per_slice;
    Best(found).take(args.per_slice, next, [&](u32 n, u64 key) { best[n] = key; });
    if (!is_last_slice(args)) return;
    top = bits_to_f32(0xff800000u), sum = 0;
    for (u32 s = thread_index(); s < args.num_slices; s += THREADS) top = larger(top, sums[s].x);
    top = block_max(top);
    for (u32 s = thread_index(); s < args.num_slices; s += THREADS) sum = fused_multiply_add(sums[s].y, exponential(sums[s].x - top), sum);
    sum = block_sum(sum);
    float log_sum = log2_fast(sum) * 0.69314718055994530942f;
    auto put = [&](u32 n, u64 key) {
        u32 at = row * args.k + n;
        args.ids[at] = id_of(key);
        args.log_probs[at] = logit_of(key) - top - log_sum;
        args.values[at] = logit_of(key);
    };
    if (warp_index() != 0) return;
    DYNAMIC_SHARED(merging);
    auto next_of = [&](u32 part, u64 below) {
        return next_key<LANES>(logits, part * SLICE + lane_index(), smaller((part + 1) * SLICE, args.vocab_size), below);
    };
    merge_lists(args.best + (u64)row * args.num_slices * args.per_slice, args.num_slices, args.per_slice, args.k, merging, next_of, put);
    if (thread_index() == 0) tell(args);
}

// By a block with a slice of OWN ids a thread.
template <u32 OWN> DEVICE void find_best(const TopKArgs& args) {
    SHARED u64 found[2][Best::KEYS];
    u32 slice = block_x(), row = block_y();
    const float* logits = args.logits + (u64)row * args.vocab_size;
    u64* of_slices = args.best + (u64)row * args.num_slices;
    u64 best = NO_KEY;
#pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        u32 id = (slice * OWN + i) * THREADS + thread_index();
        if (id < args.vocab_size) best = larger(best, key_of(logits[id], id));
    }
    Best(found[0]).take(1, [&](u64) { return best; }, [&](u32, u64 key) { of_slices[slice] = key; });
    if (!is_last_slice(args)) return;
    best = NO_KEY;
    for (u32 s = thread_index(); s < args.num_slices; s += THREADS) best = larger(best, of_slices[s]);
    Best(found[1]).take(1, [&](u64) { return best; }, [&](u32, u64 key) {
        args.ids[row] = id_of(key);
        tell(args);
    });
}
// Grid: slices, rows.
KERNEL(best_ids, TopKArgs, 256) { find_best<EACH>(args); }
// Of rows of which each has work enough with fewer blocks: so many that all run at once.
KERNEL(best_ids_of_rows, TopKArgs, 256) { find_best<4 * EACH>(args); }
