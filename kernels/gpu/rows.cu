// What is done to whole rows.
#include "arch.h"

// out[i] = x[rows[i]]; a block a row.
struct GatherArgs {
    const float* x;
    const u32* rows;
    float* out;
    u32 row_len;
};
KERNEL(gather_rows, GatherArgs, 256) {
    const float* from = args.x + (u64)args.rows[block_x()] * args.row_len;
    float* to = args.out + (u64)block_x() * args.row_len;
    for (u32 i = thread_index(); i < args.row_len; i += block_threads()) to[i] = from[i];
}
