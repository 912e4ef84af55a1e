// Small matrix products by a warp: D = A B + D, A 16 x k by rows, B k x 8 by columns.
//
// One contract everywhere, CUDA's fragments. Lane 4 g + t holds, with 4 values of 8 bits (2 of 16 bits) in a word and
// h = 4 t (2 t):
//   a[0]: row g, inputs h..    a[1]: row g + 8, the same    a[2], a[3]: as a[0], a[1], 16 (8) inputs further
//   b[0]: column g, inputs h.. b[1]: 16 (8) inputs further
//   c[0], c[1]: row g, columns 2 t and 2 t + 1              c[2], c[3]: row g + 8
#pragma once
#include "arch.h"

#if ON_CUDA && __CUDA_ARCH__ >= 800

// k = 32, signed bytes.
DEVICE void mma_s8(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// k = 16, signed bytes: the first words alone.
DEVICE void mma_s8_k16(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
// k = 16, bf16.
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// k = 16, f16.
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#elif ON_HOST

DEVICE void mma_s8(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    u32 g = lane_index() / 4, t = lane_index() % 4;
    auto all = emulation::exchange(words, 6);
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            const u32* from = all[4 * g + j];
            const u32* with = all[4 * (2 * t + i % 2) + j];
            c[i] = dot4(from[2 + i / 2], with[5], dot4(from[i / 2], with[4], c[i]));
        }
}
DEVICE void mma_s8_k16(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    u32 words[3] = {a0, a1, b};
    u32 g = lane_index() / 4, t = lane_index() % 4;
    auto all = emulation::exchange(words, 3);
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) c[i] = dot4(all[4 * g + j][i / 2], all[4 * (2 * t + i % 2) + j][2], c[i]);
}
DEVICE float dot_bf16(u32 a, u32 b, float c) {
    c = fused_multiply_add(bits_to_f32(a << 16), bits_to_f32(b << 16), c);
    return fused_multiply_add(bits_to_f32(a & 0xffff0000u), bits_to_f32(b & 0xffff0000u), c);
}
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    u32 g = lane_index() / 4, t = lane_index() % 4;
    auto all = emulation::exchange(words, 6);
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            const u32* from = all[4 * g + j];
            const u32* with = all[4 * (2 * t + i % 2) + j];
            c[i] = dot_bf16(from[2 + i / 2], with[5], dot_bf16(from[i / 2], with[4], c[i]));
        }
}
DEVICE float dot_f16(u32 a, u32 b, float c) {
    c = fused_multiply_add(f16_to_f32((u16)a), f16_to_f32((u16)b), c);
    return fused_multiply_add(f16_to_f32((u16)(a >> 16)), f16_to_f32((u16)(b >> 16)), c);
}
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    u32 g = lane_index() / 4, t = lane_index() % 4;
    auto all = emulation::exchange(words, 6);
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            const u32* from = all[4 * g + j];
            const u32* with = all[4 * (2 * t + i % 2) + j];
            c[i] = dot_f16(from[2 + i / 2], with[5], dot_f16(from[i / 2], with[4], c[i]));
        }
}

#else

// Chips without these products, or whose own are not used yet: every lane fetches its rows and columns.
#if ON_CUDA
// Turing's own, for eight rows.
DEVICE void mma_s8_k16(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[0]), "+r"(c[1]) : "r"(a0), "r"(b));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[2]), "+r"(c[3]) : "r"(a1), "r"(b));
}
#else
DEVICE void mma_s8_k16(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    u32 row = lane_index() / 4 * 4, column = lane_index() % 4 * 8;
#pragma unroll 1
    for (u32 j = 0; j < 4; j++) {
        u32 top = shuffle(a0, row + j), bottom = shuffle(a1, row + j);
        u32 left = shuffle(b, column + j), right = shuffle(b, column + 4 + j);
        c[0] = dot4(top, left, c[0]);
        c[1] = dot4(top, right, c[1]);
        c[2] = dot4(bottom, left, c[2]);
        c[3] = dot4(bottom, right, c[3]);
    }
}
#endif
DEVICE void mma_s8(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_s8_k16(c, a[0], a[1], b0);
    mma_s8_k16(c, a[2], a[3], b1);
}
DEVICE float dot_bf16(u32 a, u32 b, float c) {
    c = fused_multiply_add(bits_to_f32(a << 16), bits_to_f32(b << 16), c);
    return fused_multiply_add(bits_to_f32(a & 0xffff0000u), bits_to_f32(b & 0xffff0000u), c);
}
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 row = lane_index() / 4 * 4, column = lane_index() % 4 * 8;
    for (u32 half = 0; half < 2; half++)
#pragma unroll 1
        for (u32 j = 0; j < 4; j++) {
            u32 top = shuffle(a[2 * half], row + j), bottom = shuffle(a[2 * half + 1], row + j);
            u32 b = half ? b1 : b0;
            u32 left = shuffle(b, column + j), right = shuffle(b, column + 4 + j);
            c[0] = dot_bf16(top, left, c[0]);
            c[1] = dot_bf16(top, right, c[1]);
            c[2] = dot_bf16(bottom, left, c[2]);
            c[3] = dot_bf16(bottom, right, c[3]);
        }
}
#if ON_CUDA
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
}
#else
DEVICE float dot_f16(u32 a, u32 b, float c) {
    c = fused_multiply_add(f16_to_f32((u16)a), f16_to_f32((u16)b), c);
    return fused_multiply_add(f16_to_f32((u16)(a >> 16)), f16_to_f32((u16)(b >> 16)), c);
}
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 row = lane_index() / 4 * 4, column = lane_index() % 4 * 8;
    for (u32 half = 0; half < 2; half++)
#pragma unroll 1
        for (u32 j = 0; j < 4; j++) {
            u32 top = shuffle(a[2 * half], row + j), bottom = shuffle(a[2 * half + 1], row + j);
            u32 b = half ? b1 : b0;
            u32 left = shuffle(b, column + j), right = shuffle(b, column + 4 + j);
            c[0] = dot_f16(top, left, c[0]);
            c[1] = dot_f16(top, right, c[1]);
            c[2] = dot_f16(bottom, left, c[2]);
            c[3] = dot_f16(bottom, right, c[3]);
        }
}
#endif

#endif

// The low halves of two words, a's below; and the high ones.
DEVICE u32 low_halves(u32 a, u32 b) {
#if ON_CUDA
    u32 y;
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(y) : "r"(a), "r"(b));
    return y;
#else
    return (a & 0xffffu) | b << 16;
#endif
}
DEVICE u32 high_halves(u32 a, u32 b) {
#if ON_CUDA
    u32 y;
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(y) : "r"(a), "r"(b));
    return y;
#else
    return a >> 16 | (b & 0xffff0000u);
#endif
}

// Two numbers as f16, the first below.
DEVICE u32 f32_to_halves(float low, float high) {
#if ON_CUDA && __CUDA_ARCH__ >= 800
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#else
    return low_halves(f32_to_f16(low), f32_to_f16(high));
#endif
}

// Sums and products of pairs of f16, each rounded once.
#if ON_CUDA
DEVICE u32 add_halves(u32 a, u32 b) { u32 y; asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b)); return y; }
DEVICE u32 multiply_halves(u32 a, u32 b) { u32 y; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b)); return y; }
DEVICE u32 fma_halves(u32 a, u32 b, u32 c) { u32 y; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c)); return y; }
#else
DEVICE u16 fma_half(u32 a, u32 b, u32 c) { return f32_to_f16(fused_multiply_add(f16_to_f32((u16)a), f16_to_f32((u16)b), f16_to_f32((u16)c))); }
DEVICE u32 fma_halves(u32 a, u32 b, u32 c) { return low_halves(fma_half(a, b, c), fma_half(a >> 16, b >> 16, c >> 16)); }
DEVICE u32 add_halves(u32 a, u32 b) { return fma_halves(a, 0x3c003c00u, b); }
DEVICE u32 multiply_halves(u32 a, u32 b) { return fma_halves(a, b, 0); }
#endif

// Bytes 0 and 2 of two words, a's first each time; and bytes 1 and 3.
DEVICE u32 even_bytes(u32 a, u32 b) {
#if ON_CUDA
    u32 y;
    asm("prmt.b32 %0, %1, %2, 0x6240;" : "=r"(y) : "r"(a), "r"(b));
    return y;
#else
    return (a & 0x00ff00ffu) | (b & 0x00ff00ffu) << 8;
#endif
}
DEVICE u32 odd_bytes(u32 a, u32 b) {
#if ON_CUDA
    u32 y;
    asm("prmt.b32 %0, %1, %2, 0x7351;" : "=r"(y) : "r"(a), "r"(b));
    return y;
#else
    return (a >> 8 & 0x00ff00ffu) | (b & 0xff00ff00u);
#endif
}

// Bytes LOW and HIGH of a word, as f16.
template <u32 LOW, u32 HIGH> DEVICE u32 halves_of_bytes(u32 word) {
#if ON_CUDA
    // A byte at the end of 1024's f16.
    u32 y;
    asm("prmt.b32 %0, %1, 0x64646464, %2;" : "=r"(y) : "r"(word), "n"(0x4040 | HIGH << 8 | LOW));
    asm("add.rn.f16x2 %0, %0, %1;" : "+r"(y) : "r"(0xe400e400u));
    return y;
#else
    return f32_to_f16((float)(word >> (8 * LOW) & 0xff)) | (u32)f32_to_f16((float)(word >> (8 * HIGH) & 0xff)) << 16;
#endif
}

// Byte `at` of a word, with zeros or its sign above.
DEVICE u32 byte_of(u32 word, u32 at) {
#if ON_CUDA
    u32 y;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(word), "r"(0x4440 + at));
    return y;
#else
    return word >> (8 * at) & 0xff;
#endif
}
DEVICE i32 signed_byte_of(u32 word, u32 at) {
#if ON_CUDA
    i32 y;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(word), "r"(0x8880 + 0x1111 * at));
    return y;
#else
    return (i32)(i8)(word >> (8 * at));
#endif
}

// Bytes for eight nibbles by a table of 16: `even` for bits 0..3 of each byte, `odd` for bits 4..7.
DEVICE void lookup16(u32 nibbles, const u32 (&table)[4], u32& even, u32& odd) {
#if ON_CUDA
    u32 parts[2];
    for (u32 i = 0; i < 2; i++) {
        // A selector's top bit would ask for a sign.
        u32 half = nibbles >> (16 * i), at = half & 0x7777;
        u32 low, high;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(low) : "r"(table[0]), "r"(table[1]), "r"(at));
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(table[2]), "r"(table[3]), "r"(at));
        u32 which = 0x3210 | ((half & 0x8888) >> 1);
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(parts[i]) : "r"(low), "r"(high), "r"(which));
    }
    asm("prmt.b32 %0, %1, %2, 0x6420;" : "=r"(even) : "r"(parts[0]), "r"(parts[1]));
    asm("prmt.b32 %0, %1, %2, 0x7531;" : "=r"(odd) : "r"(parts[0]), "r"(parts[1]));
#else
    even = odd = 0;
    for (u32 i = 0; i < 8; i++) {
        u32 at = nibbles >> (4 * i) & 15;
        u32 byte = table[at / 4] >> (8 * (at % 4)) & 0xff;
        if (i % 2) odd |= byte << (4 * (i - 1));
        else even |= byte << (4 * i);
    }
#endif
}
