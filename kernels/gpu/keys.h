// A logit and its id as one key, whose order is the order wanted: larger logits first, then smaller ids.
#pragma once
#include "arch.h"

// Keys of what is no logit sort behind all others.
constexpr u64 NO_KEY = 0;
DEVICE u64 key_of(float logit, u32 id) {
    // What is no number is the least likely, and zeros are equal.
    u32 bits = f32_to_bits(logit == logit ? logit + 0.0f : bits_to_f32(0xff800000u));
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (u32)~id;
}
DEVICE u32 id_of(u64 key) { return ~(u32)key; }
DEVICE float logit_of(u64 key) {
    u32 bits = (u32)(key >> 32);
    return bits_to_f32(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

DEVICE u64 warp_best(u64 key) {
    u32 high = warp_most((u32)(key >> 32));
    u32 low = warp_most((u32)(key >> 32) == high ? (u32)key : 0);
    return (u64)high << 32 | low;
}
