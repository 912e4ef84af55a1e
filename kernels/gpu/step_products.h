// Products of a step's row, piece by piece through a ring that is filled phases ahead. Needs TYPES, STAGES and what phases.h needs; with
// HAS_DELTA after step_recurrence.h.
#pragma once
#include "activate.h"
#include "phases.h"
#include "products.h"
#include "ring.h"

// 16 rows of a matrix by 256 inputs or, at their end and of large types, less. Words: the address's low half; its high half, and from bit 16 on the
// sixteenths of the bytes; tiles, and from bit 16 on the first of them among its rows'; the sums' slot, and from bit 16 on the type
// and what else is so:
constexpr u32 BEGINS_SLICE = 1 << 28, ENDS_SLICE = 1 << 29, ENDS_ROUND = 1u << 31;
// Behind a list's end, where a launch is for one token. Else there is as much of it anew as is asked for ahead.
constexpr u32 NO_PIECE = 0xffffffffu;
constexpr u32 LIST_TAIL = 2 * STAGES;
DEVICE u32 tiles_of(const Vec4u& piece) { return piece.z & 0xffff; }

template <u32 T> constexpr u32 largest_piece() {
    if constexpr (T == 32) return 0;
    else {
        constexpr u32 bytes = (TYPES >> T & 1) != 0 ? smaller(256 / tile_cols(T), 8192 / tile_bytes(T)) * tile_bytes(T) : 0;
        return bytes > largest_piece<T + 1>() ? bytes : largest_piece<T + 1>();
    }
}
constexpr u32 STAGE_BYTES = (largest_piece<0>() + 127) / 128 * 128;
typedef Ring<STAGES> PieceRing;
static_assert(STAGES >= BLOCK_WARPS, "each warp has a piece");

DEVICE u32 list_length(const StepArgs& args) { return args.first_piece[block_x() + 1] - args.first_piece[block_x()] - LIST_TAIL; }

// The ring: what lies in it, what that is (in place of an address, which of the launch's it is, counted from 1), and what the list has for
// the stage next, which comes along: nobody waits for a list.
struct Stages {
    u8* bytes;
    Vec4u* pieces;
    Vec4u* next;
};

// Begins to bring a piece to the ring's present stage, whose last one all lanes have read; a warp's work.
DEVICE void bring(const Context& step, const Vec4u& piece, u32 which, PieceRing& ring, const Stages& stages) {
    if (piece.w == NO_PIECE || !PieceRing::fills()) return;
    u32 bytes = piece.y >> 16 << 4, slot = ring.slot;
    if (lane_index() == 0) {
        Vec4u& there = stages.pieces[slot];
#if FOR_RACECHECK
        there.z = piece.z;
        there.w = piece.w;
        // A warp may look at it meanwhile.
        atomicExch(&there.x, which);
#else
        there = {which, 0, piece.z, piece.w};
#endif
    }
    ring.expect(slot, bytes + sizeof(Vec4u));
    const u8* weights = reinterpret_cast<const u8*>((u64)piece.x | (u64)(piece.y & 0xffff) << 32);
    if (bytes > 0) ring.copy_once(slot, stages.bytes + slot * STAGE_BYTES, weights, bytes);
    const Vec4u* next = step.list + which - 1 + STAGES;
    ring.copy_once(slot, reinterpret_cast<u8*>(stages.next + slot), reinterpret_cast<const u8*>(next), sizeof(Vec4u));
    ring.ends(slot);
}
// Waits for a piece. A warp may be so far ahead of the one whose piece lies in the stage that the barrier alone would not do: it has
// only the parity of what has come.
DEVICE Vec4u wait_for(u32 which, PieceRing& ring, const Stages& stages) {
#if FOR_RACECHECK
    while (atomic_add(&stages.pieces[ring.slot].x, 0) != which) let_others_run();
#else
    const volatile u32* there = &stages.pieces[ring.slot].x;
    while (*there != which) let_others_run();
#endif
    ring.wait_until_full();
    return stages.pieces[ring.slot];
}

struct MultiplyPiece {
    template <u32 T> static DEVICE_MEMBER void of(const Vec4u& piece, const u8* tiles, const Activations& x, Sums& sums) {
        Columns columns = {form_of<T>(x) + (piece.z >> 16) * form_bytes(T), 0, 1};
        u32 count = tiles_of(piece);
        if constexpr (T == BF16) {
            constexpr u32 BYTES = tile_bytes(T);
            if (count == 4) return multiply_floats<T, 4>({tiles, tiles + BYTES, tiles + 2 * BYTES, tiles + 3 * BYTES}, columns, sums);
        }
        if constexpr (is_by256(T)) {
            multiply_tile<T>(tiles, columns, sums);
        } else if (count == 4 && !is_float(T)) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                multiply_tile<T>(tiles + i * tile_bytes(T), columns, sums);
                columns.at += form_bytes(T);
            }
        } else {
#pragma unroll 1
            for (u32 i = 0; i < count; i++) {
                multiply_tile<T>(tiles + i * tile_bytes(T), columns, sums);
                columns.at += form_bytes(T);
            }
        }
    }
};

// What a product works with in shared memory: a row's forms, the sums of slices, squares of a row.
struct Room {
    u8* forms;
    float* slots;
    RowNorm& norm;
};
// Where the forms of a product's row lie that are read. Which there may be is a matter of types.
DEVICE Activations forms_of(const Product& product, const Room& room) {
    constexpr u32 KINDS = BY_256 + BY_32 + FLOATS;
    auto has = [&](bool may_be, u32 bit) { return may_be && (KINDS == 1 || (product.forms & bit) != 0); };
    return forms_at(room.forms, product.cols, has(BY_256, 1), has(BY_32, 2), has(FLOATS, 4));
}
// The row of a product in those.
DEVICE void put_row(const Context& step, const Product& product, const Activations& to, const Room& room) {
    u32 cols = product.cols, blocks = (cols + 255) / 256, warp = warp_index();
    if (BY_256 + BY_32 + FLOATS == 1 && ((BY_256 && !to.by256) || (BY_32 && !to.by32) || (FLOATS && !to.floats))) __builtin_unreachable();
    Source from = product.row;
#if HAS_DELTA
    if (product.head_gamma) {
        float* row = room.slots;
        delta::Norm norm = {nullptr, nullptr, row, product.head_eps};
        delta::Factors gamma = delta::load_factors(product.head_gamma);
        // The sums of the phase before lie where the row does.
        sync_threads();
#pragma unroll 1
        for (u32 head = warp; head < HV; head += BLOCK_WARPS) {
            delta::Factors answers, z;
            take_strided(step.waiting, product.z, head * DV, (head + 1) * DV, z.of);
            delta::Factors gates = delta::gates_of(z);
            take_strided(step.waiting, product.row, head * DV, (head + 1) * DV, answers.of);
            delta::norm_head(norm, head, answers, gamma, gates);
        }
        sync_threads();
        from = {row, 0};
    }
#endif
    RowOf gamma = {product.gamma, cols, true};
    float v[OWN], weights[OWN];
    if (product.gamma) load_block(gamma, warp, weights);
#pragma unroll 1
    for (u32 block = warp; block < blocks; block += BLOCK_WARPS) {
        take_block(step.waiting, from, block, cols, v);
        if (product.gamma) {
            if (block != warp) load_block(gamma, block, weights);
            put_squares(room.norm, block, v);
            scale(v, weights);
        }
        put_forms(to, 0, cols, block, {1, FORM_TERMS, 0}, v);
    }
    sync_threads();
}

// A matrix's sum for a row, slices in their order.
DEVICE float sum_of(const float* slots, u32 slices) {
    float parts[SLICES];
#pragma unroll
    for (u32 k = 0; k < SLICES; k++) parts[k] = slices >> k & 1 ? slots[k * TILE_ROWS] : 0.0f;
    return add_slices(parts);
}
// `factor`: see row_norm.h.
DEVICE float output_of(const float* slots, const Product& product, float factor, u32 place, u32 r) {
    constexpr u32 OF_MATRIX = SLICES * TILE_ROWS;
    auto sum = [&](u32 matrix) { return multiply(factor, sum_of(slots + matrix * OF_MATRIX + r, product.slices)); };
    return product.gated ? silu(sum(2 * place)) * sum(2 * place + 1) : sum(place);
}

DEVICE void multiply(const Context& step, const Product& product, u32 number, Share share, PieceRing& ring, const Stages& stages, u32& which,
                     const Room& room) {
    // Outputs are written by the last threads, each `mine` and those that lie a block's threads further.
    u32 mine = BLOCK_THREADS - 1 - thread_index();
    bool adds = product.add.at != nullptr, has_row = false;
    auto place_of = [&](u32 at, u32& output) {
        u32 sixteen = share.first + at / TILE_ROWS;
        output = 0;
        while (output + 1 < product.num_outputs && sixteen >= product.outputs[output + 1].first_sixteen) output++;
        return (sixteen - product.outputs[output].first_sixteen) * TILE_ROWS + at % TILE_ROWS;
    };
    auto refill = [&] {
        Vec4u next = stages.next[ring.slot];
        ring.has_read();
        bring(step, next, which + STAGES, ring, stages);
        ring.skip(BLOCK_WARPS);
        which += BLOCK_WARPS;
    };
    Activations x = forms_of(product, room);
#pragma unroll 1
    for (u32 first = 0; first < share.count; first += product.round) {
        u32 count = smaller(product.round, share.count - first);
        // What does not need the row is done before it is there: where this thread's output goes, and what it is added to, which came long
        // before and is looked at later.
        u32 output = 0, row = 0;
        u64 before = 0;
        if (mine < count * TILE_ROWS) {
            row = place_of(first * TILE_ROWS + mine, output);
            if (adds && product.add.number != 0 && row < product.outputs[output].rows)
                before = load_word(static_cast<const u64*>(product.add.at) + word_place(row));
        }
        Sums sums;
        for (;;) {
            Vec4u piece = wait_for(which, ring, stages);
            const u8* tiles = stages.bytes + ring.slot * STAGE_BYTES;
            if (!has_row) put_row(step, product, x, room);
            has_row = true;
            if (piece.w & BEGINS_SLICE) sums[0][0] = sums[0][2] = 0.0f;
            if (tiles_of(piece) > 0) visit_type<MultiplyPiece>(piece.w >> 16 & 31, piece, tiles, x, sums);
            if ((piece.w & ENDS_SLICE) && lane_index() % 4 == 0) {
                float* slot = room.slots + (piece.w & 0xffff) * TILE_ROWS + lane_index() / 4;
                slot[0] = sums[0][0];
                slot[8] = sums[0][2];
            }
            if (piece.w & ENDS_ROUND) break;
            refill();
        }
        // Behind the pieces, for all wait for those.
        if (product.gamma && first == 0 && warp_index() == 0) put_factor(room.norm, product.cols, product.eps);
        sync_threads();
        float factor = product.gamma ? room.norm.factor : 1.0f;
#pragma unroll 1
        for (u32 at = mine; at < count * TILE_ROWS; at += BLOCK_THREADS) {
            if (at != mine) row = place_of(first * TILE_ROWS + at, output);
            if (row >= product.outputs[output].rows) continue;
            float value = output_of(room.slots, product, factor, at / TILE_ROWS, at % TILE_ROWS);
            if (adds) {
                bool has_come = at == mine && product.add.number != 0 && (u32)(before >> 32) == step.waiting.epoch + (u32)product.add.number;
                value = (has_come ? bits_to_f32((u32)before) : take_one(step.waiting, product.add, row)) + value;
            }
            put(product.outputs[output].to, row, value, step.waiting.epoch + number);
        }
        // Asking for bytes takes thousands of cycles where many are on their way, and others wait for the sums.
        refill();
        // The next sums take their place.
        if (first + product.round < share.count) sync_threads();
    }
}
