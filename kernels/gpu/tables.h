// What a step looks like to kernels: rows, segments, pages, and orders to walk in. Mirrors src/gpu/tables.rs.
#pragma once
#include "arch.h"

constexpr u32 NONE = 0xffffffffu;
// Tokens in a page of keys and values.
constexpr u32 PAGE_TOKENS = 64;

// A row of the batch.
struct Row {
    u32 segment;
    // Its place in the sequence: the committed rows before it and its ancestors. The position is `first_position` later.
    u32 place;
    // Slot that its key and value are written to.
    u32 slot;
    // One past the last place that it sees.
    u32 seen_end;
    // Where its path begins in `paths`: slots of the rows of its own segment that it sees, oldest first, which stand at
    // places `committed_len`, `committed_len + 1` and so on. NONE: slot and place are the same.
    u32 path;
    // Row of its parent; NONE: the committed state.
    u32 parent_row;
    // The first place that it sees.
    u32 seen_first;
};

struct Segment {
    u32 first_row;
    u32 num_rows;
    // Tokens that are committed.
    u32 committed_len;
    // Position of place 0.
    u32 first_position;
    // Where its pages begin in `pages`: slot s lies in page `pages[first_page + s / PAGE_TOKENS]`.
    u32 first_page;
    // Which recurrent state is its own.
    u32 state_index;
    // 1: the rows are a chain that recurrent states move along with.
    u32 advance;
    // Where its steps begin in `steps`; there are `num_rows` of them.
    u32 first_step;
};

// One row of a recurrence, in an order in which a state that is needed again is saved, with few saved at a time.
struct Step {
    u32 row;
    // What the row's state follows: NONE: the step before. BASE: the committed state. Else the level saved there.
    u32 load;
    // Level to save the state at after this row; NONE: nowhere. LEAF: nothing follows this row, and the next step finds
    // the state that this one found.
    u32 save;
};
constexpr u32 BASE = 0xfffffffeu;
constexpr u32 LEAF = 0xfffffffdu;

struct Tables {
    const Row* rows;
    const Segment* segments;
    const u32* pages;
    const u32* paths;
    const Step* steps;
};

// The slot that holds a place that `row` sees.
DEVICE u32 slot_of(const Tables& tables, const Row& row, const Segment& segment, u32 place) {
    return row.path == NONE || place < segment.committed_len ? place : tables.paths[row.path + place - segment.committed_len];
}
DEVICE u32 page_of(const Tables& tables, const Segment& segment, u32 slot) {
    return tables.pages[segment.first_page + slot / PAGE_TOKENS];
}
