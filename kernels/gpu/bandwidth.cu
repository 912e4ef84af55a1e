// How fast memory is read.
#include "arch.h"

struct ReadArgs {
    const Vec4u* at;
    u32* out;
    // Of 16 bytes.
    u64 count;
};
// Reads all of it; what it writes is only there so that the reads are.
KERNEL(read_all, ReadArgs, 512) {
    u64 stride = (u64)grid_x() * block_threads();
    u64 i = (u64)block_x() * block_threads() + thread_index();
    u32 mixed = 0;
    for (; i + 3 * stride < args.count; i += 4 * stride) {
        Vec4u a = load_stream(args.at + i), b = load_stream(args.at + i + stride);
        Vec4u c = load_stream(args.at + i + 2 * stride), d = load_stream(args.at + i + 3 * stride);
        mixed ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < args.count; i += stride) {
        Vec4u a = load_stream(args.at + i);
        mixed ^= a.x ^ a.y ^ a.z ^ a.w;
    }
    if (mixed != 0) atomic_add(args.out, 1);
}
