// Thread blocks of a cluster, which run at the same time and write into each other's shared memory (sm_90 on).
#pragma once
#include "arch.h"

// Passed by all threads of all blocks before any waits; after that what each block had made ready may be written to.
DEVICE void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Words that come from blocks of the cluster, counted by a barrier: once.
struct Inbox {
    // In shared memory.
    u32 words, barrier;

    static DEVICE_MEMBER Inbox at(u8* words, u64& counter) { return {shared_place(words), shared_place(reinterpret_cast<u8*>(&counter))}; }
    // One thread, before all that have to do with it meet.
    DEVICE_MEMBER void begin() { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory"); }
    // One thread says how many bytes come.
    DEVICE_MEMBER void expect(u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    }
    // The same of another block.
    DEVICE_MEMBER Inbox of_block(u32 block) const { return {there(words, block), there(barrier, block)}; }
    static DEVICE_MEMBER u32 there(u32 place, u32 block) {
        u32 place_there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place_there) : "r"(place), "r"(block));
        return place_there;
    }
    // A value to word `at`.
    DEVICE_MEMBER void send(u32 at, float value) const {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
            ::"r"(words + 4 * at), "r"(f32_to_bits(value)), "r"(barrier) : "memory");
    }
    DEVICE_MEMBER void wait_until_full() {
        asm volatile(
            "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}"
            ::"r"(barrier) : "memory");
    }
    DEVICE_MEMBER float word(u32 at) const {
        float value;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(words + 4 * at) : "memory");
        return value;
    }
};
