// A ring of stages of shared memory that one warp of a thread block fills and others read, each at its own pace.
//
// Each stage has two barriers: one counts what arrives, the other the warps that have read it. Only where HAS_RINGS.
// COPIES_BY_LANES: a stage's copies are those of a warp's lanes, 16 bytes each (sm_80 on); else one thread asks for many bytes
// (sm_90 on).
#pragma once
#include "arch.h"

#ifndef COPIES_BY_LANES
#define COPIES_BY_LANES 0
#endif
#if ON_HOST || (ON_CUDA && __CUDA_ARCH__ >= (COPIES_BY_LANES ? 800 : 900))
#define HAS_RINGS 1

// How many registers a thread has from here on: fewer for some four warps of a block, then more for others.
#if ON_HOST || !defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <u32 COUNT> DEVICE void give_registers() {}
template <u32 COUNT> DEVICE void take_registers() {}
#else
template <u32 COUNT> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <u32 COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
#endif

// A barrier for `threads` of the block, number 1 to 15.
#if ON_HOST
DEVICE void sync_some(u32 barrier, u32 threads) { emulation::sync_some(barrier, threads); }
#else
DEVICE void sync_some(u32 barrier, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
#endif

#if ON_HOST
struct RingBarrier {
    i32 bytes;
    u16 missing, turn;
};
#endif

template <u32 PLACES> struct Ring {
    static constexpr u32 BARRIER_BYTES = 16 * PLACES;
    // What a stage waits for besides bytes: who says how many they are or, by lanes, that they are asked for, and then each lane's.
    static constexpr u32 FILLERS = COPIES_BY_LANES ? 1 + LANES : 1;
    // racecheck does not see that the lane which says that its warp has read a stage has waited for the others.
    static constexpr u32 ARRIVING = FOR_RACECHECK ? LANES : 1;
    // The stage that comes next, and the parity of how often it has come.
    u32 slot, turn;
    // `full` ones, and then as many `free` ones.
#if ON_HOST
    RingBarrier* barriers;
#else
    u32 barriers;
#endif
    // Of stages.
    u32 readers;

    // All threads of the block; `readers`: warps.
    DEVICE_MEMBER Ring(u8* at, u32 readers) : slot(0), turn(0), barriers(barriers_at(at)), readers(readers) {
        if (thread_index() == 0)
            for (u32 i = 0; i < PLACES; i++) {
                begin(i, FILLERS);
                begin(PLACES + i, readers * ARRIVING);
            }
        begun();
        sync_threads();
    }
    DEVICE_MEMBER void next() { skip(1); }
    // By PLACES at most.
    DEVICE_MEMBER void skip(u32 count) {
        slot += count;
        if (slot < PLACES) return;
        slot -= PLACES;
        turn ^= 1;
    }
    // Of a warp that fills a stage: whether the thread is to call `expect`, `copy` and `ends`, in this order.
    static DEVICE_MEMBER bool fills() { return COPIES_BY_LANES || thread_index() % LANES == 0; }
    // The warp that fills it: until the stage's last bytes have been read.
    DEVICE_MEMBER void wait_until_free() { wait(PLACES + slot, turn ^ 1); }
    // Until its bytes are there.
    DEVICE_MEMBER void wait_until_full() { wait(slot, turn); }
    // All of the one warp that reads the present stage have read it, and it may be filled anew by that warp itself.
    DEVICE_MEMBER void has_been_read() {
        if constexpr (ARRIVING == 1) return has_read();
        release();
        wait(PLACES + slot, turn);
    }

#if ON_HOST || COPIES_BY_LANES
    DEVICE_MEMBER void copy_once(u32 stage, u8* to, const u8* from, u32 bytes) { copy(stage, to, from, bytes); }
#endif
#if ON_HOST
    static DEVICE_MEMBER RingBarrier* barriers_at(u8* at) { return reinterpret_cast<RingBarrier*>(at); }
    DEVICE_MEMBER void begin(u32 i, u32 count) { barriers[i] = {0, (u16)count, 0}; }
    DEVICE_MEMBER void begun() {}
    DEVICE_MEMBER void wait(u32 i, u32 parity) {
        while ((barriers[i].turn & 1) == parity) emulation::yield();
    }
    DEVICE_MEMBER void change(u32 i, i32 bytes, u32 arrived, u32 count) {
        emulation::progress = true;
        RingBarrier& barrier = barriers[i];
        barrier.bytes += bytes;
        barrier.missing -= (u16)arrived;
        if (barrier.bytes != 0 || barrier.missing != 0) return;
        barrier.turn++;
        barrier.missing = (u16)count;
    }
#if COPIES_BY_LANES
    DEVICE_MEMBER void expect(u32 stage, u32) {
        if (thread_index() % LANES == 0) change(stage, 0, 1, FILLERS);
    }
    DEVICE_MEMBER void copy(u32, u8* to, const u8* from, u32 bytes) {
        for (u32 at = thread_index() % LANES * 16; at < bytes; at += 16 * LANES) memcpy(to + at, from + at, 16);
    }
    DEVICE_MEMBER void ends(u32 stage) { change(stage, 0, 1, FILLERS); }
#else
    DEVICE_MEMBER void expect(u32 stage, u32 bytes) { change(stage, (i32)bytes, 1, FILLERS); }
    DEVICE_MEMBER void copy(u32 stage, u8* to, const u8* from, u32 bytes) {
        memcpy(to, from, bytes);
        change(stage, -(i32)bytes, 0, FILLERS);
    }
    DEVICE_MEMBER void ends(u32) {}
#endif
    DEVICE_MEMBER void has_read() { sync_warp(); }
    DEVICE_MEMBER void release() {
        has_read();
        if (thread_index() % LANES < ARRIVING) change(PLACES + slot, 0, 1, readers * ARRIVING);
    }
#else
    static DEVICE_MEMBER u32 barriers_at(u8* at) { return shared_place(at); }
    DEVICE_MEMBER u32 place(u32 i) const { return barriers + 8 * i; }
    DEVICE_MEMBER void begin(u32 i, u32 count) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place(i)), "r"(count) : "memory");
    }
#if COPIES_BY_LANES
    DEVICE_MEMBER void begun() {}
    DEVICE_MEMBER void wait(u32 i, u32 parity) {
        asm volatile(
            "{\n.reg .pred done;\nagain:\nmbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
            ::"r"(place(i)), "r"(parity) : "memory");
    }
    // What lane 0 wrote is there when the stage is.
    DEVICE_MEMBER void expect(u32 stage, u32) {
        if (thread_index() % LANES == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place(stage)) : "memory");
    }
    DEVICE_MEMBER void copy(u32, u8* to, const u8* from, u32 bytes) {
#pragma unroll 1
        for (u32 at = thread_index() % LANES * 16; at < bytes; at += 16 * LANES) copy_async(shared_place(to + at), from + at);
    }
    DEVICE_MEMBER void ends(u32 stage) {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(place(stage)) : "memory");
    }
    DEVICE_MEMBER void has_read() { sync_warp(); }
#else
    DEVICE_MEMBER void begun() {
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    DEVICE_MEMBER void wait(u32 i, u32 parity) {
        asm volatile(
            "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
            ::"r"(place(i)), "r"(parity) : "memory");
    }
    // One thread says how many bytes of copies the stage gets, before they begin.
    DEVICE_MEMBER void expect(u32 stage, u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(stage)), "r"(bytes) : "memory");
    }
    // A multiple of 16 bytes, asked for by one thread.
    DEVICE_MEMBER void copy(u32 stage, u8* to, const u8* from, u32 bytes) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
            ::"r"(shared_place(to)), "l"(from), "r"(bytes), "r"(place(stage)) : "memory");
    }
    // Of bytes that nobody reads again for long: they leave L2 first, and what others will read stays there.
    DEVICE_MEMBER void copy_once(u32 stage, u8* to, const u8* from, u32 bytes) {
        asm volatile(
            "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy;\n}"
            ::"r"(shared_place(to)), "l"(from), "r"(bytes), "r"(place(stage)) : "memory");
    }
    DEVICE_MEMBER void ends(u32) {}
    // The warp has read the stage, which it may fill anew itself. Copies are of another proxy: without its fence they may overtake
    // reads that were begun before.
    DEVICE_MEMBER void has_read() {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        sync_warp();
    }
#endif
    // The same, for the warp that fills it.
    DEVICE_MEMBER void release() {
        has_read();
        if (thread_index() % LANES < ARRIVING)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place(PLACES + slot)) : "memory");
    }
#endif
};

#endif
