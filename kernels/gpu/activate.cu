// Rows for products: an optional RMS norm, then the forms of activations.h.
//
// x: [N, K]; int8 = round(x 127 / amax) for each 256 or 32 inputs, ties to even. Grid: N by stretches of 2048 inputs; every
// thread block of a row adds the row's squares up again, in the same order, which spares a launch.
#include "activations.h"

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / LANES;
// Inputs of a lane.
constexpr u32 OWN = 8;

struct ActivateArgs {
    const float* x;
    // Null: no norm.
    const float* gamma;
    Activations to;
    u32 cols;
    float eps;
};

// Inputs `at..at + 8` of a row, zeros behind its end.
DEVICE void load_own(const float* x, u32 at, u32 cols, float (&v)[OWN]) {
    if (cols % 4 == 0) {
        for (u32 i = 0; i < OWN; i += 4) {
            Vec4f four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (at + i < cols) four = *reinterpret_cast<const Vec4f*>(x + at + i);
            v[i] = four.x;
            v[i + 1] = four.y;
            v[i + 2] = four.z;
            v[i + 3] = four.w;
        }
    } else {
        for (u32 i = 0; i < OWN; i++) v[i] = at + i < cols ? x[at + i] : 0.0f;
    }
}

DEVICE float inverse_norm(const float* x, u32 cols, float eps) {
    SHARED float parts[WARPS];
    float sum = 0.0f;
    for (u32 at = OWN * thread_index(); at < cols; at += OWN * THREADS) {
        float v[OWN];
        load_own(x, at, cols, v);
        for (u32 i = 0; i < OWN; i++) sum = fused_multiply_add(v[i], v[i], sum);
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) parts[warp_index()] = sum;
    sync_threads();
    sum = 0.0f;
    for (u32 i = 0; i < WARPS; i++) sum += parts[i];
    return divide(1.0f, square_root(divide(sum, (float)cols) + eps));
}

// The largest of the lanes whose index agrees but for the bits below `width`.
DEVICE float largest(float x, u32 width) {
    for (u32 mask = width / 2; mask > 0; mask /= 2) x = larger(x, shuffle_xor(x, mask));
    return x;
}

// Eight int8 in two words, and their sum.
DEVICE i32 quantise(const float (&v)[OWN], float amax, u32 (&words)[2]) {
    float inverse = amax > 0.0f ? divide(127.0f, amax) : 0.0f;
    i32 sum = 0;
    words[0] = words[1] = 0;
    for (u32 i = 0; i < OWN; i++) {
        i32 q = round_to_int(v[i] * inverse);
        sum += q;
        words[i / 4] |= (u32)(q & 0xff) << (8 * (i % 4));
    }
    return sum;
}

// Quants of inputs 8 lane.. of a warp's 256, as two words of unit `lane / 8`.
DEVICE void put_quants(u8* unit, u32 column, const u32 (&words)[2]) {
    u32 place = lane_index() % 8, t = place % 2 * 2;
    u8* to = unit + 16 * (4 * column + t) + 8 * (place / 4) + 4 * (place % 4 / 2);
    *reinterpret_cast<u32*>(to) = words[0];
    *reinterpret_cast<u32*>(to + 16) = words[1];
}

KERNEL(activate, ActivateArgs, 256) {
    u32 row = block_x(), cols = args.cols, column = row % COLUMNS, lane = lane_index();
    const float* x = args.x + (u64)row * cols;
    float inverse = args.gamma ? inverse_norm(x, cols, args.eps) : 1.0f;
    u32 block = WARPS * block_y() + warp_index(), at = 256 * block + OWN * lane;
    if (256 * block >= cols) return;
    float v[OWN];
    load_own(x, at, cols, v);
    if (args.gamma) {
        float gamma[OWN];
        load_own(args.gamma, at, cols, gamma);
        for (u32 i = 0; i < OWN; i++) v[i] = v[i] * inverse * gamma[i];
    }
    float magnitude = 0.0f;
    for (u32 i = 0; i < OWN; i++) magnitude = larger(magnitude, v[i] < 0.0f ? -v[i] : v[i]);
    u32 words[2];
    // Only rows of whole quant blocks have a form in int8, so warps are whole in the one, and groups of four lanes in the other.
    if (args.to.by256) {
        u8* to = args.to.by256 + ((u64)(row / COLUMNS) * (cols / 256) + block) * BYTES_256;
        float amax = largest(magnitude, 32);
        i32 sum = quantise(v, amax, words);
        put_quants(to + UNIT_BYTES * (lane / 8), column, words);
        sum += shuffle_xor(sum, 1);
        if (lane % 2 == 0) {
            u8* sums = to + SUMS_256 + 8 * (4 * column + lane / 8) + lane % 8 / 2;
            sums[0] = (u8)(sum & 127);
            sums[4] = (u8)(sum >> 7);
        }
        if (lane == 0) reinterpret_cast<float*>(to + SCALES_256)[column] = divide(amax, 127.0f);
    }
    u32 units = (cols + 63) / 64, unit = 4 * block + lane / 8;
    if (args.to.by32) {
        u8* to = args.to.by32 + ((u64)(row / COLUMNS) * units + unit) * BYTES_32;
        float amax = largest(magnitude, 4);
        i32 sum = quantise(v, amax, words);
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (unit < units) {
            put_quants(to, column, words);
            if (lane % 4 == 0) {
                u32 group = lane % 8 / 4 * COLUMNS + column;
                float scale = divide(amax, 127.0f);
                reinterpret_cast<float*>(to + SCALES_32)[group] = scale;
                reinterpret_cast<float*>(to + TOTALS_32)[group] = scale * (float)sum;
            }
        }
    }
    if (args.to.floats && unit < units) {
        u8* to = args.to.floats + ((u64)(row / COLUMNS) * units + unit) * BYTES_FLOAT;
        u32 place = lane % 8, step = place / 2, half = place % 2;
        to += 512 * (step / 2) + 64 * column + 8 * (step % 2) + 4 * half;
        for (u32 term = 0; term < FLOAT_TERMS; term++)
            for (u32 t = 0; t < 4; t++) {
                u32 word = 0;
                for (u32 i = 0; i < 2; i++) {
                    u32 bits = f32_to_bits(v[2 * t + i]) & 0xffff0000u;
                    v[2 * t + i] -= bits_to_f32(bits);
                    word |= bits >> (16 * (1 - i));
                }
                *reinterpret_cast<u32*>(to + TERM_BYTES * term + 16 * t) = word;
            }
    }
}
