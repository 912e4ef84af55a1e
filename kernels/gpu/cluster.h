// Thread blocks of a cluster, which run at the same time and write into each other's shared memory (sm_90 on).
//
// All threads of all blocks pass `arrive_at_cluster` before any passes `wait_for_cluster`, once: after that what each block had made ready may be
// written to.
//
// An inbox has words that come from blocks of the cluster, counted by a barrier, once: one thread begins it before all that have to do with it
// meet, and one says how many bytes come; `of_block` is another block's, and `send` puts a value into word `at`, or two or four into it and the next.
#pragma once
#include "arch.h"

#if ON_HOST
DEVICE void arrive_at_cluster() {
    emulation::in_cluster_arrived++;
    emulation::progress = true;
}
DEVICE void wait_for_cluster() {
    while (emulation::in_cluster_arrived < CLUSTER * emulation::num_threads) emulation::yield();
}

struct Inbox {
    static constexpr i64 NOT_EXPECTED = 1ll << 40;
    u8* words;
    // Bytes that have come, less those that are expected.
    i64* balance;

    static DEVICE_MEMBER Inbox at(u8* words, u64& counter) { return {words, reinterpret_cast<i64*>(&counter)}; }
    DEVICE_MEMBER void begin() { *balance = NOT_EXPECTED; }
    DEVICE_MEMBER void expect(u32 bytes) { *balance -= NOT_EXPECTED + bytes; }
    DEVICE_MEMBER Inbox of_block(u32 block) const {
        emulation::Block& other = emulation::blocks[block];
        if (&other == emulation::own) return *this;
        u8* counter = reinterpret_cast<u8*>(balance);
        return {other.shared + (words - emulation::own->shared), reinterpret_cast<i64*>(other.kept + (counter - emulation::__start_block_memory))};
    }
    DEVICE_MEMBER void send(u32 at, float value) const {
        memcpy(words + 4 * at, &value, 4);
        *balance += 4;
        emulation::progress = true;
    }
    // Into words `at` and `at + 1`; `at` is even.
    DEVICE_MEMBER void send(u32 at, float value, float next) const {
        send(at, value);
        send(at + 1, next);
    }
    // Into words `at` to `at + 3`; `at` is a multiple of four.
    DEVICE_MEMBER void send(u32 at, const Vec4f& values) const {
        send(at, values.x, values.y);
        send(at + 2, values.z, values.w);
    }
    DEVICE_MEMBER void wait_until_full() {
        while (*balance != 0) emulation::yield();
    }
    DEVICE_MEMBER float word(u32 at) const {
        float value;
        memcpy(&value, words + 4 * at, 4);
        return value;
    }
    DEVICE_MEMBER Vec4f four(u32 at) const { return {word(at), word(at + 1), word(at + 2), word(at + 3)}; }
};
#else
DEVICE void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

struct Inbox {
    // In shared memory.
    u32 words, barrier;

    static DEVICE_MEMBER Inbox at(u8* words, u64& counter) { return {shared_place(words), shared_place(reinterpret_cast<u8*>(&counter))}; }
    DEVICE_MEMBER void begin() {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    DEVICE_MEMBER void expect(u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    }
    DEVICE_MEMBER Inbox of_block(u32 block) const { return {there(words, block), there(barrier, block)}; }
    static DEVICE_MEMBER u32 there(u32 place, u32 block) {
        u32 place_there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place_there) : "r"(place), "r"(block));
        return place_there;
    }
    DEVICE_MEMBER void send(u32 at, float value) const {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
            ::"r"(words + 4 * at), "r"(f32_to_bits(value)), "r"(barrier) : "memory");
    }
    DEVICE_MEMBER void send(u32 at, float value, float next) const {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
            ::"r"(words + 4 * at), "r"(f32_to_bits(value)), "r"(f32_to_bits(next)), "r"(barrier) : "memory");
    }
    DEVICE_MEMBER void send(u32 at, const Vec4f& values) const {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
            ::"r"(words + 4 * at), "r"(f32_to_bits(values.x)), "r"(f32_to_bits(values.y)), "r"(f32_to_bits(values.z)), "r"(f32_to_bits(values.w)),
            "r"(barrier) : "memory");
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
    DEVICE_MEMBER Vec4f four(u32 at) const {
        Vec4f v;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(words + 4 * at) : "memory");
        return v;
    }
};
#endif
