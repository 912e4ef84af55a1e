// Products of 64 rows by 8 TILES columns, by four warps together: each has 16 of the rows, as in mma.h, and the columns lie in
// shared memory for all of them. sm_90a computes them beside the warps' other work; elsewhere every warp does for itself.
//
// Inputs stand in core matrices of 8 columns, 16 bytes each, one column after the other; inputs go on 128 bytes further and
// columns `stride` bytes further. All four warps call with the same `b`, and their number in a thread block is
// a multiple of four. Between `begin_group` and `end_group` sums and rows are not touched, and until `wait_groups` says so.
//
// Columns of f16 may lie the other way round, as lines of one input of 64 columns each: line after line, and of line r the 16 bytes
// of columns 8 c.. at place c ^ r % 8. They begin at what `align_lines` gives.
#pragma once
#include "mma.h"

constexpr u32 CORE_BYTES = 128;
constexpr u32 LINE_BYTES = 128, LINE_COLUMNS = 64;
// Where the columns 8 `chunk`.. of a line are.
DEVICE u32 place_in_lines(u32 line, u32 chunk) { return line * LINE_BYTES + (chunk ^ line % 8) * 16; }

#if ON_CUDA && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_GROUPS 1

DEVICE void begin_group() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void end_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for the warps' groups but the last NEWER.
template <u32 NEWER> DEVICE void wait_groups() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(NEWER) : "memory"); }
// Values that were computed before, or are used after, what comes next.
DEVICE void settle(u32& x) { asm volatile("" : "+r"(x) :: "memory"); }
DEVICE void settle(i32& x) { asm volatile("" : "+r"(x) :: "memory"); }
DEVICE void settle(float& x) { asm volatile("" : "+f"(x) :: "memory"); }

// A place in a descriptor: within the block's own memory, whatever its number in a cluster.
DEVICE u64 place_in_descriptor(const u8* at) { return (shared_place(const_cast<u8*>(at)) & 0x3ffff) >> 4; }
// Columns from `b` on, and what to add for `bytes` further.
typedef u64 GroupColumns;
DEVICE GroupColumns columns_of_group(const u8* b, u32 stride) {
    return place_in_descriptor(b) | (u64)(CORE_BYTES >> 4) << 16 | (u64)(stride >> 4) << 32;
}
DEVICE GroupColumns further(GroupColumns b, u32 bytes) { return b + (bytes >> 4); }
// Lines from `b` on, those of the next 64 columns `stride` bytes further.
typedef u64 GroupLines;
DEVICE GroupLines lines_of_group(const u8* b, u32 stride) {
    u64 eight_lines = 8 * LINE_BYTES >> 4, swizzled = 1;
    return place_in_descriptor(b) | (u64)(stride >> 4) << 16 | eight_lines << 32 | swizzled << 62;
}
DEVICE u8* align_lines(u8* at) { return at + (0u - shared_place(at)) % (8 * LINE_BYTES); }
// Shows what this thread has put into shared memory to groups that begin after the next barrier.
DEVICE void show_to_groups() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Two groups of four warps take turns: each waits for its own, and passes it on. What was shown by who passes it on is seen.
constexpr u32 FIRST_TURN = 1, OF_BOTH = 8 * LANES;
DEVICE void wait_for_turn() { asm volatile("bar.sync %0, %1;" ::"r"(FIRST_TURN + warp_index() / 4), "n"(OF_BOTH) : "memory"); }
DEVICE void pass_turn() { asm volatile("bar.arrive %0, %1;" ::"r"(FIRST_TURN + 1 - warp_index() / 4), "n"(OF_BOTH) : "memory"); }

#define FOUR_OF(kind, c, i) kind(c[i][0]), kind(c[i][1]), kind(c[i][2]), kind(c[i][3])
#define SUMS_2(kind, c) FOUR_OF(kind, c, 0), FOUR_OF(kind, c, 1)
#define SUMS_3(kind, c) SUMS_2(kind, c), FOUR_OF(kind, c, 2)
#define SUMS_4(kind, c) SUMS_3(kind, c), FOUR_OF(kind, c, 3)
#define SUMS_6(kind, c) SUMS_4(kind, c), FOUR_OF(kind, c, 4), FOUR_OF(kind, c, 5)
#define SUMS_8(kind, c) SUMS_6(kind, c), FOUR_OF(kind, c, 6), FOUR_OF(kind, c, 7)
#define SUMS_10(kind, c) SUMS_8(kind, c), FOUR_OF(kind, c, 8), FOUR_OF(kind, c, 9)
#define SUMS_12(kind, c) SUMS_10(kind, c), FOUR_OF(kind, c, 10), FOUR_OF(kind, c, 11)
#define SUMS_14(kind, c) SUMS_12(kind, c), FOUR_OF(kind, c, 12), FOUR_OF(kind, c, 13)
#define SUMS_16(kind, c) SUMS_14(kind, c), FOUR_OF(kind, c, 14), FOUR_OF(kind, c, 15)
#define NAMES_2 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_3 NAMES_2 ",%8,%9,%10,%11"
#define NAMES_4 NAMES_3 ",%12,%13,%14,%15"
#define NAMES_6 NAMES_4 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NAMES_8 NAMES_6 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_10 NAMES_8 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES_12 NAMES_10 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_14 NAMES_12 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define NAMES_16 NAMES_14 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define REST_2 "{%8,%9,%10,%11}, %12, %13"
#define REST_3 "{%12,%13,%14,%15}, %16, %17"
#define REST_4 "{%16,%17,%18,%19}, %20, %21"
#define REST_6 "{%24,%25,%26,%27}, %28, %29"
#define REST_8 "{%32,%33,%34,%35}, %36, %37"
#define REST_10 "{%40,%41,%42,%43}, %44, %45"
#define REST_12 "{%48,%49,%50,%51}, %52, %53"
#define REST_14 "{%56,%57,%58,%59}, %60, %61"
#define REST_16 "{%64,%65,%66,%67}, %68, %69"
#define GROUP_PRODUCT(tiles, columns, types, kind, more) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns types " {" NAMES_##tiles "}, " REST_##tiles more ";" \
        : SUMS_##tiles(kind, c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(FIRST ? 0 : 1))
#define GROUP_PRODUCTS(types, kind, more)                                        \
    static_assert(TILES % 2 == 0 ? TILES > 0 && TILES <= 16 : TILES == 3, "a group's columns"); \
    if constexpr (TILES == 2) GROUP_PRODUCT(2, "16", types, kind, more);         \
    if constexpr (TILES == 3) GROUP_PRODUCT(3, "24", types, kind, more);         \
    if constexpr (TILES == 4) GROUP_PRODUCT(4, "32", types, kind, more);         \
    if constexpr (TILES == 6) GROUP_PRODUCT(6, "48", types, kind, more);         \
    if constexpr (TILES == 8) GROUP_PRODUCT(8, "64", types, kind, more);         \
    if constexpr (TILES == 10) GROUP_PRODUCT(10, "80", types, kind, more);       \
    if constexpr (TILES == 12) GROUP_PRODUCT(12, "96", types, kind, more);       \
    if constexpr (TILES == 14) GROUP_PRODUCT(14, "112", types, kind, more);      \
    if constexpr (TILES == 16) GROUP_PRODUCT(16, "128", types, kind, more);

// k = 32: rows of signed bytes or of unsigned ones, columns of signed bytes. FIRST: the sums begin.
template <bool FIRST, bool SIGNED, u32 TILES> DEVICE void group_mma_8(i32 (&c)[TILES][4], const u32 (&a)[4], GroupColumns b) {
    if constexpr (SIGNED) {
        GROUP_PRODUCTS("k32.s32.s8.s8", "+r", "");
    } else {
        GROUP_PRODUCTS("k32.s32.u8.s8", "+r", "");
    }
}
// k = 16, f16.
template <bool FIRST, u32 TILES> DEVICE void group_mma_f16(float (&c)[TILES][4], const u32 (&a)[4], GroupColumns b) {
    GROUP_PRODUCTS("k16.f32.f16.f16", "+f", ", 1, 1, 0");
}
// k = 16, bf16.
template <bool FIRST, u32 TILES> DEVICE void group_mma_bf16(float (&c)[TILES][4], const u32 (&a)[4], GroupColumns b) {
    GROUP_PRODUCTS("k16.f32.bf16.bf16", "+f", ", 1, 1, 0");
}
template <bool FIRST, u32 TILES> DEVICE void group_mma_lines(float (&c)[TILES][4], const u32 (&a)[4], GroupLines b) {
    GROUP_PRODUCTS("k16.f32.f16.f16", "+f", ", 1, 1, 1");
}

#else
#define HAS_GROUPS 0

DEVICE void begin_group() {}
DEVICE void end_group() {}
template <u32 NEWER> DEVICE void wait_groups() {}
template <typename V> DEVICE void settle(V&) {}

struct GroupColumns {
    const u8* at;
    u32 stride;
};
DEVICE GroupColumns columns_of_group(const u8* b, u32 stride) { return {b, stride}; }
DEVICE GroupColumns further(GroupColumns b, u32 bytes) { return {b.at + bytes, b.stride}; }

struct GroupLines {
    const u8* at;
    u32 stride;
};
DEVICE GroupLines lines_of_group(const u8* b, u32 stride) { return {b, stride}; }
DEVICE GroupLines further(GroupLines b, u32 bytes) { return {b.at + bytes, b.stride}; }
DEVICE u8* align_lines(u8* at) { return at; }
DEVICE void show_to_groups() {}
DEVICE void wait_for_turn() { sync_threads(); }
DEVICE void pass_turn() {}

DEVICE u32 core_word(const u8* b, u32 core) {
    return *reinterpret_cast<const u32*>(b + CORE_BYTES * core + 16 * (lane_index() / 4) + 4 * (lane_index() % 4));
}
template <bool FIRST, bool SIGNED, u32 TILES> DEVICE void group_mma_8(i32 (&c)[TILES][4], const u32 (&a)[4], GroupColumns b) {
    // Unsigned bytes: their highest bit counts once more than with a sign.
    u32 tops[4];
    for (u32 i = 0; i < 4; i++) tops[i] = a[i] >> 7 & 0x01010101u;
    for (u32 ct = 0; ct < TILES; ct++) {
        u32 b0 = core_word(b.at + ct * b.stride, 0), b1 = core_word(b.at + ct * b.stride, 1);
        if (FIRST) c[ct][0] = c[ct][1] = c[ct][2] = c[ct][3] = 0;
        mma_s8(c[ct], a, b0, b1);
        if (SIGNED) continue;
        i32 more[4] = {};
        mma_s8(more, tops, b0, b1);
        for (u32 i = 0; i < 4; i++) c[ct][i] += 256 * more[i];
    }
}
template <bool FIRST, u32 TILES> DEVICE void group_mma_f16(float (&c)[TILES][4], const u32 (&a)[4], GroupColumns b) {
    for (u32 ct = 0; ct < TILES; ct++) {
        if (FIRST) c[ct][0] = c[ct][1] = c[ct][2] = c[ct][3] = 0.0f;
        mma_f16(c[ct], a, core_word(b.at + ct * b.stride, 0), core_word(b.at + ct * b.stride, 1));
    }
}
template <bool FIRST, u32 TILES> DEVICE void group_mma_bf16(float (&c)[TILES][4], const u32 (&a)[4], GroupColumns b) {
    for (u32 ct = 0; ct < TILES; ct++) {
        if (FIRST) c[ct][0] = c[ct][1] = c[ct][2] = c[ct][3] = 0.0f;
        mma_bf16(c[ct], a, core_word(b.at + ct * b.stride, 0), core_word(b.at + ct * b.stride, 1));
    }
}
// b of two products, for the columns of chunk `chunk` and of the next, from sixteen lines.
DEVICE void load_lines(u32 (&b)[4], const u8* lines, u32 chunk) {
    u32 lane = lane_index();
#if ON_CUDA && __CUDA_ARCH__ >= 800
    SharedPlace at = shared_place(const_cast<u8*>(lines + place_in_lines(lane % 16, chunk + lane / 16)));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at) : "memory");
#else
    u32 column = lane / 4 * 2, line = lane % 4 * 2;
    for (u32 i = 0; i < 4; i++) {
        auto value = [&](u32 at) { return *reinterpret_cast<const u16*>(lines + place_in_lines(at, chunk + i / 2) + column); };
        b[i] = value(line + i % 2 * 8) | (u32)value(line + i % 2 * 8 + 1) << 16;
    }
#endif
}
template <bool FIRST, u32 TILES> DEVICE void group_mma_lines(float (&c)[TILES][4], const u32 (&a)[4], GroupLines b) {
    static_assert(TILES % 2 == 0, "a group's columns");
#pragma unroll
    for (u32 ct = 0; ct < TILES; ct += 2) {
        u32 words[4];
        load_lines(words, b.at + ct / 8 * b.stride, ct % 8);
        if (FIRST)
            for (u32 i = 0; i < 4; i++) c[ct][i] = c[ct + 1][i] = 0.0f;
        mma_f16(c[ct], a, words[0], words[1]);
        mma_f16(c[ct + 1], a, words[2], words[3]);
    }
}

#endif
