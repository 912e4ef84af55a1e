// The largest of the keys that a block's threads look after, one after another.
#pragma once
#include "keys.h"

template <u32 WARPS> struct Likeliest {
    // Of shared memory: what warps find, in two places by turns.
    static constexpr u32 KEYS = 2 * WARPS;
    u64* of_warps;

    DEVICE_MEMBER explicit Likeliest(void* memory) : of_warps(static_cast<u64*>(memory)) {}

    // `next` gives the largest of a thread's keys that is less than another; `put` has the block's `n`th, by its first thread. All threads;
    // a second time behind a barrier.
    template <class Next, class Put> DEVICE_MEMBER void take(u32 k, Next next, Put put) const {
        // More than any key.
        u64 mine = next(~(u64)0);
        for (u32 n = 0; n < k; n++) {
            u64* found = of_warps + n % 2 * WARPS;
            u64 best = warp_best(mine);
            if (lane_index() == 0) found[warp_index()] = best;
            sync_threads();
            best = found[0];
            for (u32 w = 1; w < WARPS; w++) best = larger(best, found[w]);
            if (thread_index() == 0) put(n, best);
            if (n + 1 < k && mine == best) mine = next(best);
        }
    }
};
