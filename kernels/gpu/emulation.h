// Kernels on the host: every thread of a block is a fiber. Blocks run one after another or, where a launch asks for it and in a cluster,
// by turns. CLUSTER: blocks of a cluster, of all kernels of the module.
//
// It is slow, but it runs the very sources of the kernels where there is no GPU: indices, layouts, reductions and launches are
// tested with it, and what blocks say to each other. It shows no race, except that of blocks that take turns of uneven length
// one may be far ahead of another.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#define DEVICE static inline
#define DEVICE_MEMBER inline
// All of a module's lie in one place, so that blocks that take turns can have their own.
#define SHARED __attribute__((section("block_memory"))) static
#define CONSTANT_TABLE static const
#define DYNAMIC_SHARED(name) u8* name = emulation::own->shared
#define KERNEL(name, Args, threads)                                                      \
    static void name##_body(const Args& args);                                           \
    extern "C" void name(const void* args) { name##_body(*static_cast<const Args*>(args)); } \
    static void name##_body(const Args& args)
#define KERNEL_RESIDENT(name, Args, threads, blocks) KERNEL(name, Args, threads)
#define KERNEL_AHEAD(name, Args, threads, blocks) KERNEL(name, Args, threads)
#define KERNEL_CLUSTERED(name, Args, threads, blocks, cluster) KERNEL(name, Args, threads)

namespace emulation {

constexpr u32 MAX_THREADS = 1024;
// That take turns.
constexpr u32 MAX_BLOCKS = 4;
#ifndef CLUSTER
#define CLUSTER 1
#endif
static_assert(CLUSTER <= MAX_BLOCKS, "blocks of a cluster take turns");
constexpr u64 STACK_BYTES = 256 * 1024;
constexpr u64 SHARED_BYTES = 256 * 1024;
constexpr u32 EXCHANGE_WORDS = 16;

struct Fiber {
    void* stack_pointer;
    u32 index;
    bool done;
    u32 exchanges;
};

struct Warp {
    u32 live, arrived, generation;
    // Two, so that a lane may write for the next exchange while others still read this one.
    u32 words[2][LANES][EXCHANGE_WORDS];
};

struct Block {
    Fiber fibers[MAX_THREADS];
    Warp warps[MAX_THREADS / LANES];
    u32 live, arrived, generation;
    u32 some_arrived[16], some_generation[16];
    u32 at[3];
    u8* stacks;
    // Dynamic shared memory, and while it is another block's turn what it has of SHARED.
    u8* shared;
    u8* kept;
};

extern "C" u8 __start_block_memory[] __attribute__((weak, visibility("hidden")));
extern "C" u8 __stop_block_memory[] __attribute__((weak, visibility("hidden")));

static Block blocks[MAX_BLOCKS];
// Whose turn it is: block and thread.
static Block* own;
static Fiber* current;
static u32 num_threads;
static void* scheduler_pointer;
static u32 grid[3];
// Threads of the cluster that have come to its barrier.
static u32 in_cluster_arrived;
// Since the last look: whether a thread got further, or looked at memory that another may change.
static bool progress, has_looked;
// Whether the other blocks are to have their turns first, whatever this one could do.
static bool is_overtaken;
static u32 random_state = 1;
static void (*entry)(const void*);
static const void* entry_args;

#if defined(__x86_64__)
extern "C" void emulation_switch(void** save, void** load) __attribute__((visibility("hidden")));
asm(R"(
.text
.hidden emulation_switch
.globl emulation_switch
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
static const u32 SAVED_WORDS = 6;
#elif defined(__aarch64__)
extern "C" void emulation_switch(void** save, void** load) __attribute__((visibility("hidden")));
asm(R"(
.text
.hidden emulation_switch
.globl emulation_switch
emulation_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    ldr x9, [x1]
    mov sp, x9
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
#else
#error "the emulation knows x86-64 and AArch64"
#endif

static void yield() { emulation_switch(&current->stack_pointer, &scheduler_pointer); }

static void leave_barriers(Fiber* fiber) {
    Warp& warp = own->warps[fiber->index / LANES];
    warp.live--;
    if (warp.live > 0 && warp.arrived == warp.live) {
        warp.arrived = 0;
        warp.generation++;
    }
    own->live--;
    if (own->live > 0 && own->arrived == own->live) {
        own->arrived = 0;
        own->generation++;
    }
}

static void run_fiber() {
    entry(entry_args);
    current->done = true;
    leave_barriers(current);
    progress = true;
    for (;;) yield();
}

static void wait(u32& arrived, u32& generation, u32 live) {
    u32 mine = generation;
    progress = true;
    if (++arrived == live) {
        arrived = 0;
        generation++;
        return;
    }
    while (generation == mine) yield();
    progress = true;
}

static u32 draw() {
    random_state = random_state * 1664525 + 1013904223;
    return random_state >> 16;
}

// For whoever has written what other blocks wait for: now and then they go on before this one does.
static void may_be_overtaken() { is_overtaken |= draw() % 8 == 0; }

// For whoever looks at memory until another thread has changed it.
static void let_others_run() {
    has_looked = true;
    yield();
}

static u64 nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
}

static void sync_some(u32 barrier, u32 threads) { wait(own->some_arrived[barrier], own->some_generation[barrier], threads); }

// All lanes put words down and then see those of all.
static const u32 (*exchange(const u32* words, u32 count))[EXCHANGE_WORDS] {
    Warp& warp = own->warps[current->index / LANES];
    u32 side = current->exchanges++ % 2;
    memcpy(warp.words[side][current->index % LANES], words, count * 4);
    wait(warp.arrived, warp.generation, warp.live);
    return warp.words[side];
}

static void prepare(Fiber& fiber, u32 index, u8* stacks) {
    fiber.index = index;
    fiber.done = false;
    fiber.exchanges = 0;
    u8* top = stacks + (u64)(index + 1) * STACK_BYTES;
#if defined(__x86_64__)
    void** at = reinterpret_cast<void**>(top) - 2;
    *at = reinterpret_cast<void*>(&run_fiber);
    at -= SAVED_WORDS;
    memset(at, 0, SAVED_WORDS * sizeof(void*));
    fiber.stack_pointer = at;
#else
    u8* at = top - 160;
    memset(at, 0, 160);
    reinterpret_cast<void**>(at)[11] = reinterpret_cast<void*>(&run_fiber);
    fiber.stack_pointer = at;
#endif
}

static u64 kept_bytes() { return __stop_block_memory - __start_block_memory; }

static void begin(Block& block, u32 x, u32 y, u32 z, u32 bytes) {
    if (!block.stacks) {
        block.stacks = static_cast<u8*>(aligned_alloc(64, MAX_THREADS * STACK_BYTES));
        block.shared = static_cast<u8*>(aligned_alloc(64, SHARED_BYTES));
        block.kept = static_cast<u8*>(malloc(kept_bytes() + 1));
    }
    block.at[0] = x, block.at[1] = y, block.at[2] = z;
    // What a kernel reads before it has written it shows as not a number.
    memset(block.shared, 0xff, bytes);
    memset(block.kept, 0xff, kept_bytes());
    for (u32 i = 0; i < num_threads; i++) prepare(block.fibers[i], i, block.stacks);
    for (u32 w = 0; w * LANES < num_threads; w++) {
        u32 left = num_threads - w * LANES;
        block.warps[w].live = left < LANES ? left : LANES;
        block.warps[w].arrived = 0;
    }
    block.live = num_threads;
    block.arrived = 0;
}

// Each thread runs until it waits. Whether one got further.
static bool take_turn() {
    progress = false;
    for (u32 i = 0; i < num_threads; i++) {
        if (own->fibers[i].done) continue;
        current = &own->fibers[i];
        emulation_switch(&scheduler_pointer, &own->fibers[i].stack_pointer);
    }
    return progress;
}

// The first `count` blocks, until all are done.
static void run_blocks(u32 count) {
    u32 live = count;
    while (live > 0) {
        bool are_stuck = true;
        has_looked = false;
        for (own = blocks; own < blocks + count; own++) {
            if (own->live == 0) continue;
            memcpy(__start_block_memory, own->kept, kept_bytes());
            // Half of the times it gets far, but not for as long as it can: warps that look for what others bring may get further for ever.
            u32 turns = draw() % 2 ? 64 : 1 + draw() % 16;
            is_overtaken = false;
            while (turns-- > 0 && !is_overtaken && own->live > 0 && take_turn()) are_stuck = false;
            memcpy(own->kept, __start_block_memory, kept_bytes());
            live -= own->live == 0;
        }
        if (are_stuck && !has_looked) {
            fprintf(stderr, "emulation: threads wait for each other at different barriers\n");
            abort();
        }
    }
}

}  // namespace emulation

// `together`: the blocks, MAX_BLOCKS at most, take turns.
extern "C" void emulation_launch(
    void (*kernel)(const void*), const u32* grid, u32 threads, u32 shared_bytes, const void* args, u32 together) {
    using namespace emulation;
    if (threads == 0 || threads > MAX_THREADS || shared_bytes > SHARED_BYTES || (together && grid[0] > MAX_BLOCKS) || grid[0] % CLUSTER != 0) {
        fprintf(stderr, "emulation: %u threads, %u bytes of shared memory, %u blocks\n", threads, shared_bytes, grid[0]);
        abort();
    }
    entry = kernel;
    entry_args = args;
    num_threads = threads;
    for (u32 i = 0; i < 3; i++) emulation::grid[i] = grid[i];
    u32 at_once = together ? grid[0] : CLUSTER;
    for (u32 z = 0; z < grid[2]; z++)
        for (u32 y = 0; y < grid[1]; y++)
            for (u32 x = 0; x < grid[0]; x += at_once) {
                in_cluster_arrived = 0;
                for (u32 i = 0; i < at_once; i++) begin(blocks[i], x + i, y, z, shared_bytes);
                run_blocks(at_once);
            }
}

DEVICE u32 thread_index() { return emulation::current->index; }
DEVICE u32 block_threads() { return emulation::num_threads; }
DEVICE u32 block_x() { return emulation::own->at[0]; }
DEVICE u32 block_y() { return emulation::own->at[1]; }
DEVICE u32 block_z() { return emulation::own->at[2]; }
DEVICE u32 grid_x() { return emulation::grid[0]; }
DEVICE u32 grid_y() { return emulation::grid[1]; }
DEVICE void let_next_start() {}
DEVICE void wait_for_inputs() {}
DEVICE void prefetch(const void*, u32) {}
DEVICE void sync_threads() {
    emulation::wait(emulation::own->arrived, emulation::own->generation, emulation::own->live);
}
DEVICE void hide(float&) {}
DEVICE void sync_warp() {
    u32 nothing = 0;
    emulation::exchange(&nothing, 1);
}
template <typename T> DEVICE T shuffle(T value, u32 lane) {
    static_assert(sizeof(T) == 4, "shuffles move words");
    u32 word;
    memcpy(&word, &value, 4);
    u32 got = emulation::exchange(&word, 1)[lane % LANES][0];
    memcpy(&value, &got, 4);
    return value;
}
template <typename T> DEVICE T shuffle_xor(T value, u32 mask) {
    return shuffle(value, (emulation::current->index % LANES) ^ mask);
}
DEVICE u32 ballot(bool vote) {
    u32 word = vote;
    auto all = emulation::exchange(&word, 1);
    u32 votes = 0;
    for (u32 i = 0; i < LANES; i++) votes |= all[i][0] << i;
    return votes;
}
DEVICE float exp2_fast(float x) { return exp2f(x); }
DEVICE float log2_fast(float x) { return log2f(x); }
DEVICE float square_root(float x) { return sqrtf(x); }
DEVICE float larger_magnitude(float a, float b) { return fmaxf(a, fabsf(b)); }
DEVICE float divide(float a, float b) { return a / b; }
DEVICE float reciprocal(float x) { return 1.0f / x; }
DEVICE float inverse_root(float x) { return 1.0f / sqrtf(x); }
DEVICE float multiply(float a, float b) { return a * b; }
DEVICE float fused_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE float f16_to_f32(u16 h) {
    u32 sign = (u32)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff, bits;
    if (exponent == 31) bits = 0x7f800000 | mantissa << 13;
    else if (exponent) bits = (exponent + 112) << 23 | mantissa << 13;
    else {
        float tiny = (float)mantissa * 5.9604644775390625e-8f;
        memcpy(&bits, &tiny, 4);
    }
    bits |= sign;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
DEVICE u16 f32_to_f16(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    u32 sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (u16)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00);
    if (magnitude < 0x38800000) {
        float scaled;
        memcpy(&scaled, &magnitude, 4);
        return (u16)(sign | (u32)lrintf(scaled * 16777216.0f));
    }
    u32 rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (u16)(sign | ((rounded >> 13) - (112 << 10)));
}
DEVICE i32 round_to_int(float x) { return (i32)lrintf(x); }
DEVICE i32 dot4(u32 a, u32 b, i32 c) {
    for (u32 i = 0; i < 4; i++) c += (i32)(i8)(a >> (8 * i)) * (i32)(i8)(b >> (8 * i));
    return c;
}
DEVICE Vec4u load_stream(const void* at) { return *static_cast<const Vec4u*>(at); }
DEVICE u32 atomic_add(u32* at, u32 value) {
    u32 before = *at;
    *at += value;
    return before;
}
DEVICE void fence_device() {}
