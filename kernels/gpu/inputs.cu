// What a recorded step reads, from memory of the host: its tables, its ids and the number of its results, before all its other launches.
#include "far.h"

// Mirrors src/gpu/inbox.rs: words before the parts, and parts.
constexpr u32 HEAD_WORDS = 16, PARTS = 7;
constexpr u32 THREADS = 512;

struct InputsArgs {
    // Memory of the host, THREADS words or more: the step's number, for each part where in it its words go and how many there are, and
    // from HEAD_WORDS on the parts, one after another.
    const u32* inbox;
    u32* parts[PARTS];
    // Memory of the host: the number of the step whose inputs have been read.
    u32* taken;
};

// One block: a step has few inputs, and they are mostly on the way.
KERNEL(take_inputs, InputsArgs, 512) {
    SHARED u32 first[THREADS];
    // All at once, whatever they are: the way is long.
    first[thread_index()] = load_far(args.inbox + thread_index());
    sync_threads();
    u32 at = HEAD_WORDS;
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
        u32 to = first[1 + 2 * part], count = first[2 + 2 * part];
#pragma unroll 1
        for (u32 i = thread_index(); i < count; i += THREADS) args.parts[part][to + i] = at + i < THREADS ? first[at + i] : load_far(args.inbox + at + i);
        at += count;
    }
    sync_threads();
    if (thread_index() == 0) store_release_far(args.taken, first[0]);
}
