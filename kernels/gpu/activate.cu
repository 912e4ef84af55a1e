// Rows for products in the forms of activations.h, where rows are more than products make for themselves.
//
// x: [N, K]. Grid: N by stretches of 2048 inputs and, where there is a norm, one more block, for the row's factor.
// NORMED: there is a norm of whole rows, as row_norm.h has it. GATED: rows are answers of a gated DeltaNet's heads, of DV inputs each, before their norm. FORMS: bits
// for by256, by32 and floats. REST: splits of the sums that meet here (rest.h); 0: rows are whole. IN_CORES: see Layout. ALIGNED: K is a multiple of 4.
// A launch is so short that the instructions it passes over would count.
#ifndef FORMS
#define NORMED 1
#define GATED 0
#define REST 0
#define FORMS 1
#define IN_CORES 0
#define ALIGNED 1
#endif
#include "activate.h"
#include "rest.h"
#if GATED
#include "gated_norm.h"
#endif

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / LANES;

// Of a launch, see src/gpu/linear/ahead.rs.
constexpr u32 MOST_RUNS = 8;
// Pieces of weights that lie so far apart, of so many bytes each.
struct Run {
    const u8* at;
    u32 apart, bytes, pieces, unused;
};
// What the product's blocks read first.
struct Ahead {
    Run runs[MOST_RUNS];
    u32 count, unused;
};

struct ActivateArgs {
    const float* x;
    // Of the norm, [K] or [DV].
    const float* gamma;
    // [N, K] of heads.
    const float* z;
    // Of norms, [N].
    float* factors;
    Activations to;
    Rest rest;
    Ahead ahead;
    u32 cols;
    float eps;
    // See Layout.
    u32 apart, terms;
};

#if GATED
// Heads that 256 inputs have a part of.
constexpr u32 PARTS = 256 % DV == 0 ? 256 / DV : (256 + DV - 2) / DV + 1;

// A lane's answers of block `block`, normed and gated.
DEVICE void norm_heads(const ActivateArgs& args, const RowOf& x, const RowOf& z, u32 block, const float (&gamma)[OWN], float (&v)[OWN]) {
    float gates[OWN];
    load_block(x, block, v);
    load_block(z, block, gates);
    u32 first = 256 * block / DV, own = (256 * block + OWN * lane_index()) / DV - first;
    float inverse = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PARTS; i++) {
        // The last one again behind the end, so that none waits for another.
        u32 head = smaller(first + i, args.cols / DV - 1);
        float of_head = inverse_norm_of_head(load_factors(x.at + head * DV), args.eps);
        if (i == own) inverse = of_head;
    }
    for (u32 i = 0; i < OWN; i++) v[i] = gated(v[i], inverse, gamma[i], silu(gates[i]));
}
#endif

#if NORMED
DEVICE void put_factor_of(const ActivateArgs& args, const RowOf& x, u32 row) {
    SHARED RowNorm norm;
    // Blocks of 256 inputs of a warp that are on their way together.
    constexpr u32 TOGETHER = 3;
#pragma unroll 1
    for (u32 first = warp_index(); 256 * first < args.cols; first += WARPS * TOGETHER) {
        float some[TOGETHER][OWN];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) load_block(x, first + i * WARPS, some[i]);
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++)
            if (256 * (first + i * WARPS) < args.cols) put_squares(norm, first + i * WARPS, some[i]);
    }
    sync_threads();
    if (warp_index() != 0) return;
    put_factor(norm, args.cols, args.eps);
    if (lane_index() == 0) args.factors[row] = norm.factor;
}
#endif

// Weights are nobody's result: they come as far as L2 while rows are not there yet. By the last warp, a piece a lane.
DEVICE void prefetch_ahead(const Ahead& ahead) {
    if (warp_index() != WARPS - 1) return;
    u32 blocks = grid_x() * grid_y(), own = (lane_index() * grid_y() + block_y()) * grid_x() + block_x();
#pragma unroll 1
    for (u32 i = 0; i < ahead.count; i++) {
        const Run& run = ahead.runs[i];
        for (; own < run.pieces; own += LANES * blocks) prefetch(run.at + (u64)own * run.apart, run.bytes);
        own -= run.pieces;
    }
}

// Only the last blocks have sums that meet: with all the registers that those would take, few of the others found room.
KERNEL_AHEAD(activate, ActivateArgs, THREADS, REST ? 5 : 1) {
    let_next_start();
    prefetch_ahead(args.ahead);
    // The last stretch first: what takes longer is there.
    u32 row = block_x(), cols = args.cols, stretch = grid_y() - 1 - block_y(), block = WARPS * stretch + warp_index();
    RowOf x = {args.x + (u64)row * cols, cols, ALIGNED};
    float v[OWN] = {};
#if GATED
    float gamma[OWN];
    load_own({args.gamma, DV, true}, (256 * block + OWN * lane_index()) % DV, gamma);
    wait_for_inputs();
    if (256 * block < cols) norm_heads(args, x, {args.z + (u64)row * cols, cols, ALIGNED}, block, gamma, v);
#elif NORMED
    float gamma[OWN];
    load_block({args.gamma, cols, ALIGNED}, block, gamma);
    wait_for_inputs();
    if (256 * WARPS * stretch >= cols) return put_factor_of(args, x, row);
    load_block(x, block, v);
    scale(v, gamma);
#else
    wait_for_inputs();
#if REST
    u32 at = 256 * block + OWN * lane_index();
    if (at >= args.rest.first && at < cols) meet<REST>(args.rest, row, at, v);
    else load_block(x, block, v);
#else
    load_block(x, block, v);
#endif
#endif
    if (256 * block >= cols) return;
    bool inputs_first = args.apart > 1;
    u64 tile = row / COLUMNS, blocks = inputs_first ? 1 : cols / 256, units = inputs_first ? 1 : (cols + 63) / 64;
    Activations to = {};
    if (FORMS & 1) to.by256 = args.to.by256 + tile * blocks * BYTES_256;
    if (FORMS & 2) to.by32 = args.to.by32 + tile * units * BYTES_32;
    if (FORMS & 4) to.floats = args.to.floats + tile * units * args.terms * TERM_BYTES;
    put_forms(to, row % COLUMNS, cols, block, {args.apart, args.terms, IN_CORES}, v);
}
