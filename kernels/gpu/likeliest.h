// The likeliest ids of a row of logits whose parts have lists of their own likeliest.
//
// A list is short: few parts have more of a row's likeliest than some. Who has taken all of one looks for the next in the part itself.
#pragma once
#include "keys.h"

// The largest key less than `below` of the logits of ids `first`, `first + STRIDE` and so on, as far as `end`.
template <u32 STRIDE> DEVICE u64 next_key(const float* logits, u32 first, u32 end, u64 below) {
    u64 best = NO_KEY;
#pragma unroll 4
    for (u32 id = first; id < end; id += STRIDE) {
        u64 key = key_of(logits[id], id);
        if (key < below) best = larger(best, key);
    }
    return best;
}

// The largest of the keys that a block's threads look after, one after another. WARPS: of the block.
template <u32 WARPS> struct Likeliest {
    // Of shared memory: what warps find, in two places by turns.
    static constexpr u32 KEYS = 2 * WARPS;
    u64* of_warps;

    DEVICE_MEMBER explicit Likeliest(void* memory) : of_warps(static_cast<u64*>(memory)) {}

    template <u32 COUNT> static DEVICE_MEMBER u64 largest(const u64* keys) {
        if constexpr (COUNT == 1) return keys[0];
        else return larger(largest<COUNT / 2>(keys), largest<COUNT - COUNT / 2>(keys + COUNT / 2));
    }

    // `next` gives the largest of a thread's keys that is less than another; `put` has the `n`th of all, by the first thread. All threads;
    // a second time behind a barrier.
    template <class Next, class Put> DEVICE_MEMBER void take(u32 count, Next next, Put put) const {
        // More than any key.
        u64 mine = next(~(u64)0);
        for (u32 n = 0; n < count; n++) {
            u64* found = of_warps + n % 2 * WARPS;
            u64 best = warp_best(mine);
            if (lane_index() == 0) found[warp_index()] = best;
            sync_threads();
            best = largest<WARPS>(found);
            if (thread_index() == 0) put(n, best);
            if (n + 1 < count && mine == best) mine = next(best);
        }
    }
};

// Puts the `k` largest keys of all lists, [count, length], the largest first and NO_KEY behind the last one, in order, by the first lane of a
// warp, in shared memory of so many bytes as src/gpu/top_k.rs has it. `next` gives the largest of the keys that a lane finds in a part that is
// less than another: length < k needs it.
template <class Next, class Put> DEVICE void merge_lists(const u64* lists, u32 count, u32 length, u32 k, u8* memory, Next next, Put put) {
    // A lane's own ones alone: what its lists have next, and how many they have handed out.
    u64* heads = reinterpret_cast<u64*>(memory);
    u32* taken = reinterpret_cast<u32*>(heads + count);
    u32 lane = lane_index(), which = 0;
    u64 mine;
    auto look = [&] {
        mine = NO_KEY;
#pragma unroll 4
        for (u32 list = lane; list < count; list += LANES)
            if (heads[list] > mine) mine = heads[list], which = list;
    };
#pragma unroll 4
    for (u32 list = lane; list < count; list += LANES) {
        heads[list] = lists[list * length];
        taken[list] = 0;
    }
    look();
    for (u32 n = 0;;) {
        u64 best = warp_best(mine), following = NO_KEY;
        if (lane == 0) put(n, best);
        if (++n == k) break;
        bool is_own = mine == best && best != NO_KEY, is_short = false;
        if (is_own) {
            is_short = ++taken[which] >= length;
            if (!is_short) following = lists[which * length + taken[which]];
        }
        u32 part = warp_most(is_short ? which + 1 : 0);
        if (part > 0) {
            u64 found = warp_best(next(part - 1, best));
            if (is_short) following = found;
        }
        if (is_own) {
            heads[which] = following;
            look();
        }
    }
}
