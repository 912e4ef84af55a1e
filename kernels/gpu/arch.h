// What differs between CUDA, HIP and the emulation on the host, behind one set of names.
//
// Freestanding: no toolkit header, so that NVRTC, hiprtc, clang and a host compiler all take the same sources. Warps have
// 32 lanes everywhere (RDNA runs in its wave32 mode). Collectives (shuffles, matrix products) are for whole warps.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

struct alignas(16) Vec4u {
    u32 x, y, z, w;
};
struct alignas(16) Vec4f {
    float x, y, z, w;
};
struct alignas(8) Vec2u {
    u32 x, y;
};
struct alignas(8) Vec2f {
    float x, y;
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ON_CUDA 1
#elif defined(__HIP__) || defined(__HIPCC_RTC__)
#define ON_HIP 1
#else
#define ON_HOST 1
#endif

constexpr u32 LANES = 32;

// For compute-sanitizer's racecheck alone: what it does not follow is done so that it can, which is slower.
#ifndef FOR_RACECHECK
#define FOR_RACECHECK 0
#endif

#if ON_HOST
#include "emulation.h"
#else

#if ON_HIP && !defined(__HIPCC_RTC__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif

#if ON_HIP
#define DEVICE static __device__ __attribute__((always_inline))
#define DEVICE_MEMBER __device__ __attribute__((always_inline))
#else
#define DEVICE __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#endif
#define SHARED __shared__
// Dynamic shared memory of the launch, 16-byte aligned.
#define DYNAMIC_SHARED(name) extern __shared__ Vec4u name##_storage[]; u8* name = reinterpret_cast<u8*>(name##_storage)
#define CONSTANT_TABLE static __device__ const

#if ON_CUDA
// A kernel may start before the one before it has ended (sm_90 on), and lets the next one start likewise, when all of its
// thread blocks have called `let_next_start` or ended. Nothing that another kernel of a step writes may be read, and nothing
// written, before `wait_for_inputs`. Each kernel must call it. The first one after a copy starts when that has ended, so that all
// find the tables of their step.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEVICE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
DEVICE void wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Asks for bytes that are read soon, from one thread; 16-byte aligned.
DEVICE void prefetch(const void* at, u32 bytes) { asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes)); }
#else
DEVICE void let_next_start() {}
DEVICE void wait_for_inputs() {}
DEVICE void prefetch(const void*, u32) {}
#endif
// A kernel takes one struct by value. `threads`: the block size that it is launched with.
#define KERNEL_BOUNDED(name, Args, begin, bounds)                                          \
    DEVICE void name##_body(const Args& args);                                              \
    extern "C" __global__ void bounds name(const Args args) {                               \
        begin;                                                                              \
        name##_body(args);                                                                  \
    }                                                                                       \
    DEVICE void name##_body(const Args& args)
#define KERNEL(name, Args, threads) KERNEL_BOUNDED(name, Args, let_next_start(); wait_for_inputs(), __launch_bounds__(threads))
// One of which a multiprocessor is to hold so many blocks, with all the registers that this leaves.
#define KERNEL_RESIDENT(name, Args, threads, blocks) \
    KERNEL_BOUNDED(name, Args, let_next_start(); wait_for_inputs(), __launch_bounds__(threads, blocks))
// Such a one that calls `let_next_start` and `wait_for_inputs` itself.
#define KERNEL_AHEAD(name, Args, threads, blocks) KERNEL_BOUNDED(name, Args, , __launch_bounds__(threads, blocks))
// The same in clusters of `cluster` blocks, see cluster.h.
#define KERNEL_CLUSTERED(name, Args, threads, blocks, cluster) \
    KERNEL_BOUNDED(name, Args, , __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, blocks))
DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 block_threads() { return blockDim.x; }
DEVICE u32 block_x() { return blockIdx.x; }
DEVICE u32 block_y() { return blockIdx.y; }
DEVICE u32 block_z() { return blockIdx.z; }
DEVICE u32 grid_x() { return gridDim.x; }
DEVICE u32 grid_y() { return gridDim.y; }
DEVICE void sync_threads() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
// A value that the compiler takes for another one from here on.
DEVICE void hide(float& x) { asm volatile("" : "+f"(x)); }
template <typename T> DEVICE T shuffle_xor(T value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
template <typename T> DEVICE T shuffle(T value, u32 lane) { return __shfl_sync(0xffffffffu, value, lane); }
DEVICE u32 ballot(bool vote) { return __ballot_sync(0xffffffffu, vote); }
DEVICE float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float log2_fast(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float square_root(float x) { float y; asm("sqrt.rn.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float divide(float a, float b) { float y; asm("div.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
// Of normal numbers, good to two units in the last place.
DEVICE float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float inverse_root(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// A product that is rounded, whatever is added to it.
DEVICE float multiply(float a, float b) { float y; asm("mul.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE float fused_multiply_add(float a, float b, float c) { float y; asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c)); return y; }
DEVICE float f16_to_f32(u16 h) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(h)); return y; }
DEVICE u16 f32_to_f16(float x) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
DEVICE i32 round_to_int(float x) { i32 y; asm("cvt.rni.s32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y; }
// Sum of four products of signed bytes, plus c.
DEVICE i32 dot4(u32 a, u32 b, i32 c) { i32 y; asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c)); return y; }
// 16 bytes that are read once: past L1, first to leave L2.
DEVICE Vec4u load_stream(const void* at) {
    Vec4u v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}
DEVICE float larger_magnitude(float a, float b) { float y; asm("{.reg .f32 m; abs.f32 m, %2; max.f32 %0, %1, m;}" : "=f"(y) : "f"(a), "f"(b)); return y; }
// The lowest bytes of four words.
DEVICE u32 low_bytes(u32 a, u32 b, u32 c, u32 d) {
    u32 y;
    asm("{.reg .b32 l, h; prmt.b32 l, %1, %2, 0x0040; prmt.b32 h, %3, %4, 0x0040; prmt.b32 %0, l, h, 0x5410;}" : "=r"(y) : "r"(a), "r"(b), "r"(c), "r"(d));
    return y;
}
DEVICE u32 atomic_add(u32* at, u32 value) { return atomicAdd(at, value); }
// Takes one of `count` tickets: how many were taken before. After the last one there are none taken. Not a sum, of which the
// compiler makes one over the warp and waits for it at once.
DEVICE u32 take_ticket(u32* at, u32 count) {
    u32 before;
    asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(count - 1) : "memory");
    return before;
}
// Between what this thread did or saw, as of its warp or block, and what it does: of release and acquire, since `__threadfence`
// waits for more.
DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
#if __CUDA_ARCH__ >= 800
// A place in shared memory to copy to.
typedef u32 SharedPlace;
DEVICE SharedPlace shared_place(u8* at) {
    u64 place;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(place) : "l"(at));
    return (u32)place;
}
// 16 bytes from global memory, there when `wait_copies` says so.
DEVICE void copy_async(SharedPlace to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}
// Closes a group of copies.
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for the thread's groups but the last NEWER.
template <u32 NEWER> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(NEWER) : "memory"); }
#endif
#else
#define KERNEL(name, Args, threads) \
    extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(1, threads))) name(const Args args)
#define KERNEL_RESIDENT(name, Args, threads, blocks) KERNEL(name, Args, threads)
#define KERNEL_AHEAD(name, Args, threads, blocks) KERNEL(name, Args, threads)
DEVICE void let_next_start() {}
DEVICE void wait_for_inputs() {}
DEVICE void prefetch(const void*, u32) {}
DEVICE u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 block_threads() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEVICE u32 block_z() { return __builtin_amdgcn_workgroup_id_z(); }
DEVICE u32 grid_x() { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); }
DEVICE u32 grid_y() { return __builtin_amdgcn_grid_size_y(); }
DEVICE void sync_threads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEVICE void sync_warp() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); __builtin_amdgcn_wave_barrier(); }
DEVICE void hide(float& x) { asm volatile("" : "+v"(x)); }
DEVICE u32 hip_lane() { return __builtin_amdgcn_mbcnt_lo(~0u, 0u); }
DEVICE u32 permute_bits(u32 value, u32 lane) { return (u32)__builtin_amdgcn_ds_bpermute((int)(lane * 4), (int)value); }
template <typename T> DEVICE T shuffle(T value, u32 lane) {
    static_assert(sizeof(T) == 4, "shuffles move words");
    return __builtin_bit_cast(T, permute_bits(__builtin_bit_cast(u32, value), lane));
}
template <typename T> DEVICE T shuffle_xor(T value, u32 mask) { return shuffle(value, hip_lane() ^ mask); }
DEVICE u32 ballot(bool vote) { return __builtin_amdgcn_ballot_w32(vote); }
DEVICE float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
DEVICE float log2_fast(float x) { return __builtin_amdgcn_logf(x); }
DEVICE float square_root(float x) { return __builtin_sqrtf(x); }
DEVICE float divide(float a, float b) { return a / b; }
DEVICE float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
DEVICE float inverse_root(float x) { return __builtin_amdgcn_rsqf(x); }
DEVICE float multiply(float a, float b) {
#pragma clang fp contract(off)
    return a * b;
}
DEVICE float fused_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float f16_to_f32(u16 h) { return (float)__builtin_bit_cast(_Float16, h); }
DEVICE u16 f32_to_f16(float x) { return __builtin_bit_cast(u16, (_Float16)x); }
DEVICE i32 round_to_int(float x) { return (i32)__builtin_rintf(x); }
DEVICE i32 dot4(u32 a, u32 b, i32 c) {
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1150__) || defined(__gfx1151__) || defined(__gfx1200__) || defined(__gfx1201__)
    return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, c, false);
#else
    for (u32 i = 0; i < 4; i++) c += (i32)(i8)(a >> (8 * i)) * (i32)(i8)(b >> (8 * i));
    return c;
#endif
}
DEVICE Vec4u load_stream(const void* at) { return *static_cast<const Vec4u*>(at); }
DEVICE float larger_magnitude(float a, float b) { return __builtin_fmaxf(a, __builtin_fabsf(b)); }
DEVICE u32 atomic_add(u32* at, u32 value) { return __hip_atomic_fetch_add(at, value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE void fence_device() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent"); }
#endif
#endif

#if !ON_CUDA
DEVICE u32 low_bytes(u32 a, u32 b, u32 c, u32 d) { return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | d << 24; }
#endif

DEVICE u32 lane_index() { return thread_index() % LANES; }
DEVICE u32 warp_index() { return thread_index() / LANES; }

template <typename T> DEVICE constexpr T smaller(T a, T b) { return a < b ? a : b; }
template <typename T> DEVICE T larger(T a, T b) { return a > b ? a : b; }

#if !ON_CUDA
DEVICE u32 take_ticket(u32* at, u32 count) {
    u32 before = atomic_add(at, 1);
    if (before + 1 == count) *at = 0;
    return before;
}
#endif
// By a warp, in order with what its lanes have written, and read after it.
DEVICE u32 take_ticket_of_warp(u32* at, u32 count) {
    u32 before = 0;
#if ON_CUDA
    sync_warp();
    if (lane_index() == 0) asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(count - 1) : "memory");
    sync_warp();
    return shuffle(before, 0);
#else
    fence_device();
    sync_warp();
    if (lane_index() == 0) before = take_ticket(at, count);
    before = shuffle(before, 0);
    fence_device();
    return before;
#endif
}

DEVICE float bits_to_f32(u32 bits) { return __builtin_bit_cast(float, bits); }
DEVICE u32 f32_to_bits(float x) { return __builtin_bit_cast(u32, x); }
DEVICE float bf16_to_f32(u16 h) { return bits_to_f32((u32)h << 16); }
// To nearest even, within the range of f16.
DEVICE u16 f32_to_bf16(float x) {
    u32 bits = f32_to_bits(larger(smaller(x, 65280.0f), -65280.0f));
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// e^x, to 2 units in the last place or so.
DEVICE float exponential(float x) { return exp2_fast(x * 1.44269504088896340736f); }
DEVICE float sigmoid(float x) { return reciprocal(1.0f + exponential(-x)); }
DEVICE float silu(float x) { return x * sigmoid(x); }

// Over the warp, in an order that depends on nothing.
DEVICE float warp_sum(float x) {
    for (u32 mask = LANES / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}
DEVICE u32 warp_least(u32 x) {
    for (u32 mask = LANES / 2; mask > 0; mask /= 2) x = smaller(x, shuffle_xor(x, mask));
    return x;
}
DEVICE u32 warp_most(u32 x) {
#if ON_CUDA && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#else
    for (u32 mask = LANES / 2; mask > 0; mask /= 2) x = larger(x, shuffle_xor(x, mask));
    return x;
#endif
}
DEVICE float warp_max(float x) {
    for (u32 mask = LANES / 2; mask > 0; mask /= 2) x = larger(x, shuffle_xor(x, mask));
    return x;
}

#if !ON_CUDA || __CUDA_ARCH__ < 800
typedef u8* SharedPlace;
DEVICE SharedPlace shared_place(u8* at) { return at; }
DEVICE void copy_async(SharedPlace to, const void* from) { *reinterpret_cast<Vec4u*>(to) = *static_cast<const Vec4u*>(from); }
DEVICE void commit_copies() {}
template <u32 NEWER> DEVICE void wait_copies() {}
#endif
