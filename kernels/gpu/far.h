// Memory of the host, which it reads and writes meanwhile.
#pragma once
#include "arch.h"

#if ON_CUDA
// After what the thread did and has seen.
DEVICE void store_release_far(u32* at, u32 value) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
DEVICE void store_far(u32* at, u32 value) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
DEVICE u32 load_acquire_far(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
DEVICE u32 load_far(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
// As `fence_device`, for the host too.
DEVICE void fence_far() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
#elif ON_HIP
DEVICE void store_release_far(u32* at, u32 value) { __hip_atomic_store(at, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM); }
DEVICE void store_far(u32* at, u32 value) { __hip_atomic_store(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
DEVICE u32 load_far(const u32* at) { return __hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
DEVICE void fence_far() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }
#else
DEVICE void store_release_far(u32* at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
DEVICE void store_far(u32* at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
DEVICE u32 load_acquire_far(const u32* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
DEVICE u32 load_far(const u32* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
DEVICE void fence_far() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
#endif
