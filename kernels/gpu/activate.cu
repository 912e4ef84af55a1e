// Rows for products in the forms of activations.h, where rows are more than products make for themselves.
//
// x: [N, K]. Grid: N by stretches of 2048 inputs; every thread block of a row adds the row's squares up again, in the same
// order, which spares a launch.
#include "activate.h"

constexpr u32 THREADS = NORM_THREADS;
constexpr u32 WARPS = THREADS / LANES;

struct ActivateArgs {
    const float* x;
    // Null: no norm.
    const float* gamma;
    Activations to;
    u32 cols;
    float eps;
};

KERNEL(activate, ActivateArgs, 256) {
    u32 row = block_x(), cols = args.cols, block = WARPS * block_y() + warp_index();
    RowOf x = {args.x + (u64)row * cols, cols, cols % 4 == 0};
    float inverse = args.gamma ? inverse_norm(x, args.eps) : 1.0f;
    if (256 * block >= cols) return;
    float v[OWN];
    load_normed(x, args.gamma, inverse, block, v);
    u64 tile = row / COLUMNS, units = (cols + 63) / 64;
    Activations to = args.to;
    if (to.by256) to.by256 += tile * (cols / 256) * BYTES_256;
    if (to.by32) to.by32 += tile * units * BYTES_32;
    if (to.floats) to.floats += tile * units * BYTES_FLOAT;
    put_forms(to, row % COLUMNS, cols, block, v);
}
