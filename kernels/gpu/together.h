// What the thread blocks of one launch say to each other, where all of them run at a time.
//
// A value goes with the number of its writing in one word, which is written and read whole: whoever finds the number has the
// value, and no barrier nor fence is between them. Numbers ascend, so that what an earlier launch left is not taken for new.
#pragma once
#include "far.h"

#if ON_CUDA
DEVICE void store_word(u64* at, u64 word) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory"); }
// Two of them side by side.
DEVICE void store_words(u64* at, u64 a, u64 b) { asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(a), "l"(b) : "memory"); }
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
DEVICE void store_words(u64* at, u64 a, u64 b) {
    store_word(at, a);
    store_word(at + 1, b);
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

// Where a row's word lies. A warp looks at 256 words by four loads, each of the next two of eight values a lane: words lie so that those of a load fill
// four lines of 128 bytes, and not a quarter of sixteen (docs/megakernel.md, "What was tried").
// A permutation of an index's bits: places add up where indices do without carrying.
constexpr u32 BLOCK_WORDS = 256;
DEVICE u32 word_place(u32 i) { return i / BLOCK_WORDS * BLOCK_WORDS + i / 2 % 4 * 64 + i % BLOCK_WORDS / 8 * 2 + i % 2; }

// Values of a row: plain ones that were there before the launch where `number` is 0, else words.
struct Source {
    const void* at;
    u64 number;
};

// A lane's words of a row on their way: each is looked at until it has come, and no longer, for all blocks look at a row at the same time, and L2
// hands out its sectors one after another (docs/megakernel.md, "Where the time goes").
template <u32 COUNT> struct Words {
    u64 of[COUNT];
    u32 number;

    DEVICE_MEMBER Words(const Waiting& waiting, const Source& from) : number(waiting.epoch + (u32)from.number) {}
    DEVICE_MEMBER bool lacks(u32 i) const { return (u32)(of[i] >> 32) != number; }
    DEVICE_MEMBER void expect(u32 i) { of[i] = (u64)~number << 32; }
    DEVICE_MEMBER void put(u32 i, float value) { of[i] = (u64)number << 32 | f32_to_bits(value); }
    DEVICE_MEMBER float value(u32 i) const { return bits_to_f32((u32)of[i]); }
    DEVICE_MEMBER bool are_there() const {
        bool all = true;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) all &= !lacks(i);
        return all;
    }
};
// A warp none of whose words are there looks at the first of them alone until that has come: looks at all, again and again, would keep L2 from
// handing out what others need.
template <u32 COUNT> DEVICE void wait_for_some(const Waiting& waiting, const Words<COUNT>& words, const u64* first, u32& looks) {
    bool has_some = false;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) has_some |= !words.lacks(i);
    if (ballot(has_some) != 0) return;
    while ((u32)(load_word(first) >> 32) != words.number && keeps_waiting(waiting, looks)) {}
}
// Two values, from an even one on.
DEVICE void take_pair(const Waiting& waiting, const Source& from, u32 first, float (&v)[2]) {
    const u64* at = static_cast<const u64*>(from.at) + word_place(first);
    Words<2> words(waiting, from);
    u32 looks = 0;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (from.number == 0) words.put(i, static_cast<const float*>(from.at)[first + i]);
        else words.expect(i);
    }
    do {
        if (!words.are_there()) load_words(at, words.of[0], words.of[1]);
    } while (!words.are_there() && keeps_waiting(waiting, looks));
#pragma unroll
    for (u32 i = 0; i < 2; i++) v[i] = words.value(i);
}
// Values of a row's 256 from `256 block` on by a warp, eight a lane; zeros before `begin` and from `cols` on, which are even.
constexpr u32 BLOCK_LANE_WORDS = 8;
DEVICE void take_block(const Waiting& waiting, const Source& from, u32 block, u32 cols, float (&v)[BLOCK_LANE_WORDS], u32 begin = 0) {
    u32 own = block * BLOCK_WORDS + BLOCK_LANE_WORDS * lane_index(), looks = 0;
    if (from.number == 0) {
#pragma unroll
        for (u32 i = 0; i < BLOCK_LANE_WORDS; i++) v[i] = own < cols ? static_cast<const float*>(from.at)[own + i] : 0.0f;
        return;
    }
    const u64* at = static_cast<const u64*>(from.at) + word_place(own);
    Words<BLOCK_LANE_WORDS> words(waiting, from);
#pragma unroll
    for (u32 i = 0; i < BLOCK_LANE_WORDS; i++) {
        if (own + i >= begin && own + i < cols) words.expect(i);
        else words.put(i, 0.0f);
    }
    do {
#pragma unroll
        for (u32 i = 0; i < BLOCK_LANE_WORDS; i += 2)
            if (words.lacks(i) || words.lacks(i + 1)) load_words(at + word_place(i), words.of[i], words.of[i + 1]);
        wait_for_some(waiting, words, static_cast<const u64*>(from.at) + word_place(larger(block * BLOCK_WORDS, begin)), looks);
    } while (ballot(!words.are_there()) != 0 && ballot(!keeps_waiting(waiting, looks)) == 0);
#pragma unroll
    for (u32 i = 0; i < BLOCK_LANE_WORDS; i++) v[i] = words.value(i);
}
// How words lie: those of rows as `word_place` has it, or side by side.
enum class Lie { ROW, SIDE_BY_SIDE };
// Values `first + lane`, 32 further and so on, those of `from..to`, zeros in place of others. ALIGN: `first` is a multiple of this.
// They are on their way, and what else there is to do may be done before they are waited for.
template <u32 COUNT, u32 ALIGN, Lie LIE = Lie::ROW> struct Some {
    // Then no bit is carried from one lane's value to its next ones.
    static constexpr bool IS_REGULAR = LIE == Lie::SIDE_BY_SIDE || (ALIGN & -ALIGN) >= LANES * COUNT;
    Words<COUNT> words;
    const u64* row;
    u32 own;

    static DEVICE_MEMBER u32 place(u32 i) { return LIE == Lie::ROW ? word_place(i) : i; }
    DEVICE_MEMBER Some(const Waiting& waiting, const Source& source, u32 first, u32 from, u32 to)
        : words(waiting, source), row(static_cast<const u64*>(source.at)), own(first + lane_index()) {
        if (IS_REGULAR) row += place(own);
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 at = own + i * LANES;
            if (at < from || at >= to) words.put(i, 0.0f);
            else if (source.number == 0) words.put(i, static_cast<const float*>(source.at)[at]);
            else words.expect(i);
        }
        look();
    }
    DEVICE_MEMBER void look() {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++)
            if (words.lacks(i)) words.of[i] = load_word(row + place((IS_REGULAR ? 0 : own) + i * LANES));
    }
    DEVICE_MEMBER void wait(const Waiting& waiting, float (&v)[COUNT]) {
        u32 looks = 0;
        while (!words.are_there() && keeps_waiting(waiting, looks)) look();
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) v[i] = words.value(i);
    }
};
template <u32 ALIGN, Lie LIE = Lie::ROW, u32 COUNT>
DEVICE void take_some(const Waiting& waiting, const Source& source, u32 first, u32 from, u32 to, float (&v)[COUNT]) {
    Some<COUNT, ALIGN, LIE>(waiting, source, first, from, to).wait(waiting, v);
}
// Values `first + lane`, 32 further and so on, as far as `end`.
template <u32 ALIGN, u32 COUNT> DEVICE void take_strided(const Waiting& waiting, const Source& from, u32 first, u32 end, float (&v)[COUNT]) {
    take_some<ALIGN>(waiting, from, first, first, end, v);
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
