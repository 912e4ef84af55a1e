// What follows the recurrence of a gated DeltaNet layer: norm(answers) silu(z) of each value head.
//
// Compiled for heads of DV values. The sum of a head's squares has one order, whoever adds it up.
#pragma once
#include "arch.h"

// out = norm(answers) silu(z), for a head of a row; by a warp.
struct Norm {
    // [N, HV, DV].
    const float* z;
    // [DV].
    const float* gamma;
    // [N, HV, DV].
    float* out;
    float eps;
};
// A lane's factors of a head: columns `lane`, `lane + 32` and so on.
struct Factors {
    float of[(DV + LANES - 1) / LANES];
};
DEVICE Factors load_factors(const float* from) {
    Factors factors;
#pragma unroll
    for (u32 j = 0; j < (DV + LANES - 1) / LANES; j++) {
        u32 column = lane_index() + j * LANES;
        factors.of[j] = DV % LANES == 0 || column < DV ? from[column] : 0.0f;
    }
    return factors;
}
// Of z; whoever waits for answers has them before.
DEVICE Factors gates_of(const Factors& z) {
    Factors gates;
#pragma unroll
    for (u32 j = 0; j < (DV + LANES - 1) / LANES; j++) gates.of[j] = silu(z.of[j]);
    return gates;
}
// What a head's answers are multiplied with.
DEVICE float inverse_norm_of_head(const Factors& answers, float eps) {
    float squares = 0.0f;
#pragma unroll
    for (u32 j = 0; j < (DV + LANES - 1) / LANES; j++) squares = fused_multiply_add(answers.of[j], answers.of[j], squares);
    return inverse_root(warp_sum(squares) * (1.0f / DV) + eps);
}
DEVICE float gated(float answer, float inverse, float gamma, float gate) { return answer * inverse * gamma * gate; }
DEVICE void norm_head(const Norm& norm, u64 item, const Factors& answers, const Factors& gamma, const Factors& gates) {
    float inverse = inverse_norm_of_head(answers, norm.eps);
#pragma unroll
    for (u32 j = 0; j < (DV + LANES - 1) / LANES; j++) {
        u32 column = lane_index() + j * LANES;
        if (DV % LANES == 0 || column < DV) norm.out[item * DV + column] = gated(answers.of[j], inverse, gamma.of[j], gates.of[j]);
    }
}
