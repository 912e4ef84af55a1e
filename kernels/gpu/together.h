// What the thread blocks of one launch say to each other, where all of them run at a time.
//
// A value goes with the number of its writing in one word, which is written and read whole: whoever finds the number has the
// value, and no barrier nor fence is between them. Numbers ascend, so that what an earlier launch left is not taken for new.
#pragma once
#include "far.h"

#if ON_CUDA
DEVICE void store_word(u64* at, u64 word) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory"); }
DEVICE u64 load_word(const u64* at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
DEVICE void load_words(const u64* at, u64& a, u64& b) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
}
// After what the thread did and has seen; before what it does.
DEVICE void store_release(u32* at, u32 value) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
DEVICE u32 load_acquire(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
DEVICE u32 load_relaxed(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
DEVICE u64 nanoseconds() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
DEVICE void let_others_run() {}
// Looks for a value, which take about a second.
constexpr u32 PATIENCE = FOR_RACECHECK ? 1 << 26 : 1 << 20;
#elif ON_HOST
DEVICE void store_word(u64* at, u64 word) {
    *at = word;
    emulation::may_be_overtaken();
}
DEVICE u64 load_word(const u64* at) { return *at; }
DEVICE void load_words(const u64* at, u64& a, u64& b) { a = at[0], b = at[1]; }
DEVICE void store_release(u32* at, u32 value) { *at = value; }
DEVICE u32 load_acquire(const u32* at) { return *at; }
DEVICE u32 load_relaxed(const u32* at) { return *at; }
DEVICE u64 nanoseconds() { return emulation::nanoseconds(); }
DEVICE void let_others_run() { emulation::let_others_run(); }
// What threads do not bring within so many turns does not come.
constexpr u32 PATIENCE = 1 << 15;
#endif

#if !ON_HIP
// Where what is waited for comes from.
struct Waiting {
    // What numbers of this launch are counted from.
    u32 epoch;
    // Set by whoever lost patience. Then nobody waits any more, and what the launch computes is worth nothing.
    u32* is_stuck;
};

// Whether to look once more for what has not come.
DEVICE bool keeps_waiting(const Waiting& waiting, u32& looks) {
    looks++;
    let_others_run();
    if (looks < PATIENCE && (looks % 256 != 0 || load_relaxed(waiting.is_stuck) == 0)) return true;
    store_release(waiting.is_stuck, 1);
    return false;
}

// Where a row's word lies: four of them together, the next four in the next line. All blocks look at a row at once, L2 deals lines out
// over its parts, and so each part has fewer to hand out.
constexpr u32 RUN_WORDS = 4, LINE_WORDS = 16;
DEVICE u64 word_place(u32 i) { return (u64)(i / RUN_WORDS) * LINE_WORDS + i % RUN_WORDS; }

// Values of a row: plain ones that were there before the launch where `number` is 0, else words.
struct Source {
    const void* at;
    u64 number;
};

// Values `first..first + COUNT`, from a run of words on. IS_DEALT: runs lie as `word_place` has it, or else side by side.
template <bool IS_DEALT = true, u32 COUNT> DEVICE void take_run(const Waiting& waiting, const Source& from, u32 first, float (&v)[COUNT]) {
    if (from.number == 0) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) v[i] = static_cast<const float*>(from.at)[first + i];
        return;
    }
    static_assert(COUNT % RUN_WORDS == 0, "whole runs");
    auto place = [](u32 i) { return IS_DEALT ? word_place(i) : (u64)i; };
    const u64* at = static_cast<const u64*>(from.at) + place(first);
    u32 number = waiting.epoch + (u32)from.number, looks = 0;
    u64 words[COUNT];
    bool is_there;
    do {
        is_there = true;
#pragma unroll
        for (u32 i = 0; i < COUNT; i += 2) load_words(at + place(i), words[i], words[i + 1]);
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) is_there &= (u32)(words[i] >> 32) == number;
        if (is_there) break;
        // Who waits looks at one word: looks at all of them take longer, and get into the way of each other.
        const u64* missing = at;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++)
            if ((u32)(words[i] >> 32) != number) missing = at + place(i);
        while ((u32)(load_word(missing) >> 32) != number && keeps_waiting(waiting, looks)) {}
    } while (keeps_waiting(waiting, looks));
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) v[i] = bits_to_f32((u32)words[i]);
}
// Values `first + lane`, 32 further and so on, as far as `end`; from a run of words on.
template <u32 COUNT> DEVICE void take_strided(const Waiting& waiting, const Source& from, u32 first, u32 end, float (&v)[COUNT]) {
    u32 number = waiting.epoch + (u32)from.number, looks = 0;
    const u64* own = static_cast<const u64*>(from.at) + word_place(first + lane_index());
    u64 words[COUNT];
    bool is_there;
    do {
        is_there = true;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 at = first + lane_index() + i * LANES;
            words[i] = (u64)number << 32;
            if (at >= end) continue;
            if (from.number == 0) words[i] |= f32_to_bits(static_cast<const float*>(from.at)[at]);
            else words[i] = load_word(own + i * word_place(LANES));
        }
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) is_there &= (u32)(words[i] >> 32) == number;
    } while (!is_there && keeps_waiting(waiting, looks));
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) v[i] = bits_to_f32((u32)words[i]);
}
DEVICE float take_one(const Waiting& waiting, const Source& from, u32 at) {
    if (from.number == 0) return static_cast<const float*>(from.at)[at];
    u32 number = waiting.epoch + (u32)from.number, looks = 0;
    u64 word;
    do word = load_word(static_cast<const u64*>(from.at) + word_place(at));
    while ((u32)(word >> 32) != number && keeps_waiting(waiting, looks));
    return bits_to_f32((u32)word);
}

// Where a row goes: as words, and as plain values for whoever comes after the launch; null: nobody.
struct Target {
    u64* words;
    float* plain;
};
DEVICE void put(const Target& to, u32 at, float value, u32 number) {
    if (to.words) store_word(to.words + word_place(at), (u64)number << 32 | f32_to_bits(value));
    if (to.plain) to.plain[at] = value;
}
#endif
