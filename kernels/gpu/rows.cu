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

// out[i, first_column + j] = x[i, j]; a block a row.
struct ColumnsArgs {
    const float* x;
    float* out;
    u32 row_len, out_len, first_column;
};
KERNEL(store_columns, ColumnsArgs, 256) {
    const float* from = args.x + (u64)block_x() * args.row_len;
    float* to = args.out + (u64)block_x() * args.out_len + args.first_column;
    for (u32 i = thread_index(); i < args.row_len; i += block_threads()) to[i] = from[i];
}
