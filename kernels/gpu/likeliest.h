// The largest of the keys that a block's threads, or those of its first warp, look after, one after another.
#pragma once
#include "keys.h"

template <u32 WARPS> struct Likeliest {
    // Of shared memory: what warps find, in two places by turns.
    static constexpr u32 KEYS = 2 * WARPS;
    u64* of_warps;

    DEVICE_MEMBER explicit Likeliest(void* memory) : of_warps(static_cast<u64*>(memory)) {}

    // `next` gives the largest of a thread's keys that is less than another; `put` has the `n`th of all, by the first thread. All threads;
    // a second time behind a barrier.
    template <class Next, class Put> DEVICE_MEMBER void take(u32 k, Next next, Put put) const {
        // More than any key.
        u64 mine = next(~(u64)0);
        for (u32 n = 0; n < k; n++) {
            u64* found = of_warps + n % 2 * WARPS;
            u64 best = warp_best(mine);
            if constexpr (WARPS > 1) {
                if (lane_index() == 0) found[warp_index()] = best;
                sync_threads();
                best = found[0];
                for (u32 w = 1; w < WARPS; w++) best = larger(best, found[w]);
            }
            if (thread_index() == 0) put(n, best);
            if (n + 1 < k && mine == best) mine = next(best);
        }
    }
};

// Lists of keys, each with the largest first and NO_KEY behind its last one.
struct Lists {
    // [count, length]
    const u64* keys;
    u32 count, length;
};
// That a thread looks after.
constexpr u32 MOST_LISTS = 8;
// `put` has the `k` largest keys of all lists; threads of WARPS warps, of MOST_LISTS lists each at most.
template <u32 WARPS, class Put> DEVICE void merge_by(const Lists& lists, u32 k, void* memory, Put put) {
    u64 keys[MOST_LISTS];
    u32 taken[MOST_LISTS];
    auto key = [&](u32 i, u32 n) {
        u32 list = i * WARPS * LANES + thread_index();
        return list < lists.count && n < lists.length ? lists.keys[list * lists.length + n] : NO_KEY;
    };
#pragma unroll
    for (u32 i = 0; i < MOST_LISTS; i++) {
        keys[i] = key(i, 0);
        taken[i] = 1;
    }
    auto next = [&](u64 below) {
        u64 best = NO_KEY;
#pragma unroll
        for (u32 i = 0; i < MOST_LISTS; i++) {
            if (keys[i] == below) keys[i] = key(i, taken[i]++);
            best = larger(best, keys[i]);
        }
        return best;
    };
    Likeliest<WARPS>(memory).take(k, next, put);
}
// The same, by all threads of a block of WARPS warps; one of them, where it can look after all lists, needs no barriers.
template <u32 WARPS, class Put> DEVICE void merge_lists(const Lists& lists, u32 k, void* memory, Put put) {
    if (lists.count > MOST_LISTS * LANES) merge_by<WARPS>(lists, k, memory, put);
    else if (warp_index() == 0) merge_by<1>(lists, k, memory, put);
}
