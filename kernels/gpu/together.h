// What the thread blocks of one launch say to each other, where all of them run at a time.
//
// A value is written and read whole: whoever finds it has it, and no barrier nor fence is between them. A row's place holds ABSENT until it comes, a
// pattern of bits that no value has, and each row of a token has places of its own, which a token before has cleared. Parts of attention, of which
// there may be many, go with the number of their writing in a word of twice the size: numbers ascend, so that what an earlier launch left is not
// taken for new, and nothing is cleared.
#pragma once
#include "far.h"

// A NaN, and none that the device's operations make.
constexpr u32 ABSENT = 0xffffffffu;

#if ON_CUDA
DEVICE void store_bits(u32* at, u32 bits) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(bits) : "memory"); }
DEVICE void load_bits(const u32* at, u32& a, u32& b) {
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(at) : "memory");
}
DEVICE void load_bits(const u32* at, u32& a, u32& b, u32& c, u32& d) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(at) : "memory");
}
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
DEVICE void store_bits(u32* at, u32 bits) {
    *at = bits;
    emulation::may_be_overtaken();
}
DEVICE void load_bits(const u32* at, u32& a, u32& b) { a = at[0], b = at[1]; }
DEVICE void load_bits(const u32* at, u32& a, u32& b, u32& c, u32& d) { a = at[0], b = at[1], c = at[2], d = at[3]; }
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
    // Of the token.
    u8* rows;
};

// Whether to look once more for what has not come.
DEVICE bool keeps_waiting(const Waiting& waiting, u32& looks) {
    looks++;
    let_others_run();
    if (looks < PATIENCE && (looks % 256 != 0 || load_relaxed(waiting.is_stuck) == 0)) return true;
    store_release(waiting.is_stuck, 1);
    return false;
}

// Where words lie of which a lane loads TOGETHER with an instruction. A warp looks at 256 of them, each of a lane's loads at the next of its eight:
// they lie so that those of all lanes' loads fill lines of 128 bytes, and not a part of each (docs/megakernel.md, "What was tried").
// A permutation of an index's bits: places add up where indices do without carrying.
constexpr u32 BLOCK_WORDS = 256, BLOCK_LANE_WORDS = 8;
template <u32 TOGETHER> DEVICE u32 place_of(u32 i) {
    constexpr u32 LOADS = BLOCK_LANE_WORDS / TOGETHER;
    u32 load = i / TOGETHER % LOADS, lane = i % BLOCK_WORDS / BLOCK_LANE_WORDS;
    return i / BLOCK_WORDS * BLOCK_WORDS + load * (BLOCK_WORDS / LOADS) + lane * TOGETHER + i % TOGETHER;
}
DEVICE u32 row_place(u32 i) { return place_of<4>(i); }
DEVICE u32 word_place(u32 i) { return place_of<2>(i); }

// Where `number` is 0, plain values that were there before the launch. Else a row's, from so many bytes on among those of the token; or words of the
// number, where those are expected.
struct Source {
    const void* at;
    u64 number;
};
DEVICE const u32* row_of(const Waiting& waiting, const Source& from) {
    return reinterpret_cast<const u32*>(waiting.rows + reinterpret_cast<u64>(from.at));
}

// A lane's values on their way: each is looked at until it has come, and no longer, for all blocks look at a row at the same time, and L2
// hands out its sectors one after another (docs/megakernel.md, "Where the time goes").
// Of a row:
template <u32 COUNT> struct RowValues {
    static constexpr u32 TOGETHER = 4;
    u32 of[COUNT];

    DEVICE_MEMBER RowValues(const Waiting&, const Source&) {}
    static DEVICE_MEMBER const u32* begin(const Waiting& waiting, const Source& from) { return row_of(waiting, from); }
    static DEVICE_MEMBER u32 place(u32 i) { return row_place(i); }
    static DEVICE_MEMBER u32 load_one(const u32* at) { return load_relaxed(at); }
    DEVICE_MEMBER void load(u32 i, const u32* at) { load_bits(at, of[i], of[i + 1], of[i + 2], of[i + 3]); }
    DEVICE_MEMBER bool is_other(u32 bits) const { return bits == ABSENT; }
    DEVICE_MEMBER void expect(u32 i) { of[i] = ABSENT; }
    DEVICE_MEMBER void put(u32 i, float value) { of[i] = f32_to_bits(value); }
    DEVICE_MEMBER float value(u32 i) const { return bits_to_f32(of[i]); }
};
// With a number:
template <u32 COUNT> struct Words {
    static constexpr u32 TOGETHER = 2;
    u64 of[COUNT];
    u32 number;

    DEVICE_MEMBER Words(const Waiting& waiting, const Source& from) : number(waiting.epoch + (u32)from.number) {}
    static DEVICE_MEMBER const u64* begin(const Waiting&, const Source& from) { return static_cast<const u64*>(from.at); }
    static DEVICE_MEMBER u32 place(u32 i) { return word_place(i); }
    static DEVICE_MEMBER u64 load_one(const u64* at) { return load_word(at); }
    DEVICE_MEMBER void load(u32 i, const u64* at) { load_words(at, of[i], of[i + 1]); }
    DEVICE_MEMBER bool is_other(u64 word) const { return (u32)(word >> 32) != number; }
    DEVICE_MEMBER void expect(u32 i) { of[i] = (u64)~number << 32; }
    DEVICE_MEMBER void put(u32 i, float value) { of[i] = (u64)number << 32 | f32_to_bits(value); }
    DEVICE_MEMBER float value(u32 i) const { return bits_to_f32((u32)of[i]); }
};
template <template <u32> class Held, u32 COUNT> DEVICE bool are_there(const Held<COUNT>& held) {
    bool all = true;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) all &= !held.is_other(held.of[i]);
    return all;
}
// Two values of a row, from an even one on.
DEVICE void take_pair(const Waiting& waiting, const Source& from, u32 first, float (&v)[2]) {
    RowValues<2> values(waiting, from);
    u32 looks = 0;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (from.number == 0) values.put(i, static_cast<const float*>(from.at)[first + i]);
        else values.expect(i);
    }
    const u32* at = row_of(waiting, from) + row_place(first);
    do {
        if (!are_there(values)) load_bits(at, values.of[0], values.of[1]);
    } while (!are_there(values) && keeps_waiting(waiting, looks));
#pragma unroll
    for (u32 i = 0; i < 2; i++) v[i] = values.value(i);
}
// Values of a row's 256, or of 256 words, from `256 block` on by a warp, eight a lane; zeros before `begin` and from `cols` on, which are even.
template <template <u32> class Held>
DEVICE void take_block(const Waiting& waiting, const Source& from, u32 block, u32 cols, float (&v)[BLOCK_LANE_WORDS], u32 begin = 0) {
    using Values = Held<BLOCK_LANE_WORDS>;
    u32 own = block * BLOCK_WORDS + BLOCK_LANE_WORDS * lane_index(), looks = 0;
    if (from.number == 0) {
#pragma unroll
        for (u32 i = 0; i < BLOCK_LANE_WORDS; i++) v[i] = own < cols ? static_cast<const float*>(from.at)[own + i] : 0.0f;
        return;
    }
    auto all = Values::begin(waiting, from), at = all + Values::place(own);
    Values values(waiting, from);
#pragma unroll
    for (u32 i = 0; i < BLOCK_LANE_WORDS; i++) {
        if (own + i >= begin && own + i < cols) values.expect(i);
        else values.put(i, 0.0f);
    }
    do {
#pragma unroll
        for (u32 i = 0; i < BLOCK_LANE_WORDS; i += Values::TOGETHER) {
            bool lacks = false;
#pragma unroll
            for (u32 j = i; j < i + Values::TOGETHER; j++) lacks |= values.is_other(values.of[j]);
            if (lacks) values.load(i, at + Values::place(i));
        }
        bool has_some = false;
#pragma unroll
        for (u32 i = 0; i < BLOCK_LANE_WORDS; i++) has_some |= !values.is_other(values.of[i]);
        if (ballot(has_some) != 0) continue;
        // A warp none of whose words are there looks at the first of them alone until that has come: looks at all, again and again, would keep L2
        // from handing out what others need.
        auto first = all + Values::place(larger(block * BLOCK_WORDS, begin));
        while (values.is_other(Values::load_one(first)) && keeps_waiting(waiting, looks)) {}
    } while (ballot(!are_there(values)) != 0 && ballot(!keeps_waiting(waiting, looks)) == 0);
#pragma unroll
    for (u32 i = 0; i < BLOCK_LANE_WORDS; i++) v[i] = values.value(i);
}
// Values of a row, or words that lie side by side.
enum class Of { ROW, WORDS };
template <Of OF, u32 COUNT> struct HeldOf {
    using Type = RowValues<COUNT>;
};
template <u32 COUNT> struct HeldOf<Of::WORDS, COUNT> {
    using Type = Words<COUNT>;
};
// Values `first + lane`, 32 further and so on, those of `from..to`, zeros in place of others. ALIGN: `first` is a multiple of this.
// They are on their way, and what else there is to do may be done before they are waited for.
template <u32 COUNT, u32 ALIGN, Of OF = Of::ROW> struct Some {
    using Held = typename HeldOf<OF, COUNT>::Type;
    // Then no bit is carried from one lane's value to its next ones.
    static constexpr bool IS_REGULAR = OF == Of::WORDS || (ALIGN & -ALIGN) >= LANES * COUNT;
    Held held;
    decltype(Held::begin(Waiting{}, Source{})) all;
    u32 own;

    static DEVICE_MEMBER u32 place(u32 i) { return OF == Of::ROW ? Held::place(i) : i; }
    DEVICE_MEMBER Some(const Waiting& waiting, const Source& source, u32 first, u32 from, u32 to)
        : held(waiting, source), all(Held::begin(waiting, source)), own(first + lane_index()) {
        if (IS_REGULAR) all += place(own);
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 at = own + i * LANES;
            if (at < from || at >= to) held.put(i, 0.0f);
            else if (source.number == 0) held.put(i, static_cast<const float*>(source.at)[at]);
            else held.expect(i);
        }
        look();
    }
    DEVICE_MEMBER void look() {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++)
            if (held.is_other(held.of[i])) held.of[i] = Held::load_one(all + place((IS_REGULAR ? 0 : own) + i * LANES));
    }
    DEVICE_MEMBER void wait(const Waiting& waiting, float (&v)[COUNT]) {
        u32 looks = 0;
        while (!are_there(held) && keeps_waiting(waiting, looks)) look();
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) v[i] = held.value(i);
    }
};
template <u32 ALIGN, Of OF = Of::ROW, u32 COUNT>
DEVICE void take_some(const Waiting& waiting, const Source& source, u32 first, u32 from, u32 to, float (&v)[COUNT]) {
    Some<COUNT, ALIGN, OF>(waiting, source, first, from, to).wait(waiting, v);
}
// Values `first + lane`, 32 further and so on, as far as `end`.
template <u32 ALIGN, u32 COUNT> DEVICE void take_strided(const Waiting& waiting, const Source& from, u32 first, u32 end, float (&v)[COUNT]) {
    take_some<ALIGN>(waiting, from, first, first, end, v);
}
DEVICE float take_one(const Waiting& waiting, const Source& from, u32 at) {
    if (from.number == 0) return static_cast<const float*>(from.at)[at];
    u32 looks = 0, bits;
    do bits = load_relaxed(row_of(waiting, from) + row_place(at));
    while (bits == ABSENT && keeps_waiting(waiting, looks));
    return bits_to_f32(bits);
}

// Where a row goes: among those of the token, from so many bytes on, 0: not there; and as plain values for whoever comes after the launch, null:
// nobody.
struct Target {
    u64 row;
    float* plain;
};
// A value that is looked for. Should it be a NaN of just those bits, another one is told.
DEVICE void store_value(u32* at, float value) {
    u32 bits = f32_to_bits(value);
    store_bits(at, bits == ABSENT ? ABSENT >> 1 : bits);
}
DEVICE void put(const Waiting& waiting, const Target& to, u32 at, float value) {
    if (to.row != 0) store_value(reinterpret_cast<u32*>(waiting.rows + to.row) + row_place(at), value);
    if (to.plain) to.plain[at] = value;
}
#endif
