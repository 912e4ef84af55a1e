// What a launch of a whole step is told: its phases, as src/gpu/megakernel/phases.rs makes them, and blocks' shares of them. Needs
// BLOCK_WARPS.
#pragma once
#include "tables.h"
#include "together.h"

constexpr u32 BLOCK_THREADS = BLOCK_WARPS * LANES;

// A matrix's rows among those of a phase, in sixteens.
struct Output {
    Target to;
    u32 first_sixteen, rows;
};
constexpr u32 MOST_OUTPUTS = 4;
// y = W norm(x), or silu(first) * second of two matrices, or on top of another row.
struct Product {
    Source row;
    // Null: no norm.
    const float* gamma;
    // Where the row is made of answers of DeltaNet heads: their gates and the norm of heads. Null: it is not.
    const float* head_gamma;
    Source z;
    // What is added to; at null: nothing.
    Source add;
    float eps, head_eps;
    u32 cols, num_outputs, gated;
    // Bits: by256, by32, floats.
    u32 forms;
    // Sixteens whose sums wait for each other at a time, and a bit for each slice that has inputs: of the others there is no piece.
    u32 round, slices;
    // A bit for each slice whose last piece another warp multiplies: with its scale it comes on top of the others' sum.
    u32 tails, unused;
    Output outputs[MOST_OUTPUTS];
};
// A row of a DeltaNet layer's recurrence.
struct Delta {
    Source qkv, alpha, beta;
    const float* conv_weight;
    const float* a;
    const float* dt_bias;
    float* history;
    float* states;
    Target out;
    float q_scale;
};
// Its history moves along, when `after` has come, which needs all that reads it.
struct Move {
    Source qkv, after;
    float* history;
};
// Queries of a row with all keys that it sees, and then with all values, split by split: where that is one split, with its answer.
struct Attend {
    // `gates`, null: none.
    Source q, k, v, gates;
    // [H, splits of keys], as words side by side.
    Source scores;
    const float* q_gamma;
    const float* k_gamma;
    const u64* turns;
    void* cache_k;
    void* cache_v;
    // [H, splits, D], and [H, 2, splits], maximum and sum of each, as words side by side.
    u64* partials;
    u64* sums;
    float eps;
    u32 num_kv_heads, q_stride, num_splits, pairs, adjacent;
    // Units of a block lie so far apart: so many blocks share those of a head of keys.
    u32 stride, unused;
    Target out;
};
// The splits put together.
struct Combine {
    // Null: no gates.
    Source gates;
    const u64* partials;
    const u64* sums;
    Target out;
    // Of the phase that splits are from.
    u32 number;
    u32 num_heads, q_stride, num_splits;
};
// Most are products: a bit of its own is looked at before all else.
enum Kind : u32 { DELTA, MOVE, SCORE, MIX, COMBINE, PRODUCT = 8 };
// What a block has of a phase: sixteens of a product's rows; heads' strips of a recurrence or of splits that are put together, as far apart as there
// are blocks; channels of a history. Of attention, the first of its units, and one more than the head of keys that all of those belong to. A count
// of 0: the phase is not the block's.
struct Share {
    u32 first;
    union {
        u32 count, of_head;
    };
};
constexpr u32 PHASE_BYTES = 256, PHASE_VECS = PHASE_BYTES / 16;
struct alignas(16) Phase {
    u32 kind, number;
    // Of the block that has copied the phase: it reads all of this at once.
    Share share;
    union {
        Product product;
        Delta delta;
        Move move;
        Attend attend;
        Combine combine;
        u8 bytes[PHASE_BYTES - 16];
    };
};
static_assert(sizeof(Phase) == PHASE_BYTES, "phases lie one after another");

// What the host asks of a launch that is under way, and what that says, in host memory. Tokens are told by what their phases' numbers are
// counted from.
struct Asked {
    // Written last. 0: nothing more.
    u32 number;
    u32 id;
    // Pages of the sequence that are new in its table: `num_pages`, from this one on.
    u32 first_page, num_pages;
    Row row;
    Segment segment;
    Step step;
    u32 unused[10];
};
constexpr u32 MOST_SOUGHT = 64;
struct Mail {
    Asked asked;
    // The last token that is done, the last one whose inputs have been read, and the one that the last launch has not waited for.
    u32 answered, taken, left;
    u32 unused[29];
    // The likeliest ids of the one that is done, and bits of their logits.
    u32 ids[MOST_SOUGHT], values[MOST_SOUGHT];
    u32 pages[1];
};
static_assert(sizeof(Asked) == 128 && sizeof(Mail) == 256 + 8 * MOST_SOUGHT + 4, "as src/gpu/megakernel/mail.rs has it");
// The row of an id.
struct Embed {
    const u8* tiles;
    float* out;
    u32 rows, cols, tiles_per_row, unused;
};

struct StepArgs {
    const Phase* phases;
    // [blocks, phases]
    const Share* shares;
    // Pieces of the blocks, one list after another, and where they begin and the last one ends: [blocks + 1]. Of every BLOCK_WARPS of a list,
    // each warp has one.
    const Vec4u* pieces;
    const u32* first_piece;
    Tables tables;
    u32* is_stuck;
    Mail* mail;
    // [blocks, listed]: the best keys of each (likeliest.h). [blocks]: the last token that it is done with.
    u64* lists;
    u32* ended;
    // The token that is to begin; one less: there is none.
    u32* said;
    // Of two tokens, in turn: [2, rows_bytes].
    u8* rows;
    Embed embed;
    // Of the last phase's row, which is logits, these many of the likeliest are told; 0: nothing is.
    u32 top_k;
    // That the launch may do, and nanoseconds that it waits to be asked for the next one.
    u32 num_tokens;
    u64 patience;
    // What the last one's numbers are counted from.
    u32 last_epoch, listed;
    u32 num_phases, epoch;
    u32 rows_bytes, unused;
};

// What all phases of a launch work with.
struct Context {
    Waiting waiting;
    Tables tables;
    Row row;
    Segment segment;
    // The block's list of pieces, as if those of the launch's earlier tokens lay before it.
    const Vec4u* list;
};
constexpr u32 CONTEXT_BYTES = 256;
static_assert(sizeof(Context) <= CONTEXT_BYTES, "room in shared memory");
