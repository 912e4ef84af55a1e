// Queries and keys made ready, keys and values stored and moved.
//
// HEAD_DIM: D. K_TYPE, V_TYPE: see kept.h.
#include "heads.h"

constexpr u32 WARPS = 4;
// Words between heads, so that those of eight dims of four heads lie in different banks.
constexpr u32 HEAD_WORDS = HEAD_DIM + 8;

// Keys of as many rows as there are warps, of one head: a dim's are neighbours where the rows are, and go out together.
DEVICE void keep_keys(const PrepareArgs& args, const Head& head, bool has_row, const float (&keys)[WARPS][HEAD_WORDS]) {
    SHARED KeyUnit* places[WARPS];
    if (lane_index() == 0) places[warp_index()] = has_row ? head.key_page(args) + head.token : nullptr;
    sync_threads();
    for (u32 at = thread_index(); at < WARPS * HEAD_DIM; at += block_threads()) {
        u32 d = at / WARPS, row = at % WARPS;
        if (places[row]) places[row][key_place(d, 0)] = to_unit<K_TYPE>(keys[row][d]);
    }
}

// A warp a head of a row. Queries are changed in place. Attention does not start before the product in front of this kernel has ended, or its
// blocks go where that leaves room first.
KERNEL_AHEAD(prepare, PrepareArgs, 128, 1) {
    SHARED float heads[WARPS][HEAD_WORDS];
    u32 first = block_y() * WARPS, all = args.num_heads + args.num_kv_heads, number = first + warp_index(), row_index = block_x();
    // Blocks of as many rows as there are warps that all have keys share them the other way round: each has one head of all the rows.
    u32 first_row = row_index / WARPS * WARPS;
    bool are_keys = !KeyFormat::IS_CODED && first >= args.num_heads && first + WARPS <= all && first_row + WARPS <= grid_x();
    if (are_keys) {
        number = first + row_index % WARPS;
        row_index = first_row + warp_index();
    }
    Head head(args, smaller(number, all - 1));
    Row row = args.tables.rows[row_index];
    bool has_row = row.segment != NONE && number < all;
    if (has_row) head.take(args, row);
    wait_for_inputs();
    let_next_start();
    if (are_keys) {
        if (has_row) head.make_ready<false>(args, row_index, heads[warp_index()], nullptr);
        keep_keys(args, head, has_row, heads);
    } else if (has_row) {
        head.make_ready(args, row_index, heads[warp_index()], head.query(args, row_index));
    }
}

struct AnswerArgs {
    // [N, H, D], changed in place.
    float* out;
    // [N, H, q_stride], with gates after each head's query where `q_stride` is more than D.
    const float* q;
    Tables tables;
    u32 num_heads, q_stride;
};
// Answers of rotated values: rotated back, and multiplied by their gates. A warp a head of a row.
KERNEL(rotate_answers, AnswerArgs, 128) {
    u32 lane = lane_index(), head = block_y() * WARPS + warp_index();
    if (head >= args.num_heads || args.tables.rows[block_x()].segment == NONE) return;
    u64 at = (u64)block_x() * args.num_heads + head;
    float* out = args.out + at * HEAD_DIM;
    float values[HEAD_VALUES];
#pragma unroll
    for (u32 i = 0; i < HEAD_VALUES; i++) values[i] = lane + i * LANES < HEAD_DIM ? out[lane + i * LANES] : 0.0f;
    if constexpr (ROTATES_VALUES) rotate(values, true);
    const float* gates = args.q + at * args.q_stride + HEAD_DIM;
#pragma unroll
    for (u32 i = 0; i < HEAD_VALUES; i++) {
        u32 d = lane + i * LANES;
        if (d < HEAD_DIM) out[d] = args.q_stride > HEAD_DIM ? values[i] * sigmoid(gates[d]) : values[i];
    }
}

// Rows and layers that one launch moves, and rows that a thread reads before it writes any.
constexpr u32 MOVES = 64, MOST_LAYERS = 64, HELD = 8;

struct MovedLayer {
    KeyUnit* k;
    ValueUnit* v;
    u32 num_kv_heads;
};
struct MoveArgs {
    MovedLayer layers[MOST_LAYERS];
    u32 count;
    // page * PAGE_TOKENS + token. Both ascend in slots and no source lies before its target, so what is written is
    // needed by no later move.
    u32 from[MOVES], to[MOVES];
};
// A thread walks all moves for its own units.
template <u32 TYPE, bool IS_KEY> DEVICE void move_units(const MoveArgs& args, typename UnitOf<TYPE>::Unit* kept, u32 num_kv_heads) {
    typedef Format<TYPE> Of;
    auto place = [&](u32 at, u32 unit) {
        u64 page = (u64)(at / PAGE_TOKENS) * num_kv_heads + block_x();
        return page * Of::PAGE_UNITS + place_of<TYPE, IS_KEY>(unit, at % PAGE_TOKENS);
    };
    for (u32 unit = thread_index(); unit < Of::UNITS; unit += block_threads())
        for (u32 first = 0; first < args.count; first += HELD) {
            typename UnitOf<TYPE>::Unit held[HELD];
#pragma unroll
            for (u32 i = 0; i < HELD; i++)
                if (first + i < args.count) held[i] = kept[place(args.from[first + i], unit)];
#pragma unroll
            for (u32 i = 0; i < HELD; i++)
                if (first + i < args.count) kept[place(args.to[first + i], unit)] = held[i];
        }
}
// Grid: heads, keys (y = 0) and values (y = 1), layers.
KERNEL(move_rows, MoveArgs, 128) {
    MovedLayer layer = args.layers[block_z()];
    if (block_x() >= layer.num_kv_heads) return;
    if (block_y() == 0) move_units<K_TYPE, true>(args, layer.k, layer.num_kv_heads);
    else move_units<V_TYPE, false>(args, layer.v, layer.num_kv_heads);
}
