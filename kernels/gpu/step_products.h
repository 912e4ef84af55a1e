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
constexpr u32 BEGINS_SLICE = 1 << 28, ENDS_SLICE = 1 << 29, IS_TAIL = 1 << 30, ENDS_ROUND = 1u << 31;
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
// Fills the present stage anew, whose piece the warp has read, and goes on to its next one.
DEVICE void fill_anew(const Context& step, PieceRing& ring, const Stages& stages, u32& which) {
    Vec4u next = stages.next[ring.slot];
    ring.has_been_read();
    bring(step, next, which + STAGES, ring, stages);
    ring.skip(BLOCK_WARPS);
    which += BLOCK_WARPS;
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
        Columns columns = {form_of<T>(x) + (piece.z >> 16) * form_bytes(T), 0, 1, piece.w & IS_TAIL};
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
            take_strided<DV>(step.waiting, product.z, head * DV, (head + 1) * DV, z.of);
            delta::Factors gates = delta::gates_of(z);
            take_strided<DV>(step.waiting, product.row, head * DV, (head + 1) * DV, answers.of);
            delta::norm_head(norm, head, answers, gamma, gates);
        }
        sync_threads();
        from = {row, 0};
    }
#endif
    RowOf gamma = {product.gamma, cols, true};
    float v[OWN], weights[OWN], squares = 0.0f;
    if (product.gamma) load_block(gamma, warp, weights);
    u32 block = warp;
#pragma unroll 1
    for (; block < blocks; block += BLOCK_WARPS) {
        take_block(step.waiting, from, block, cols, v);
        if (product.gamma) {
            if (block != warp) {
                load_block(gamma, block, weights);
                put_squares(room.norm, block - BLOCK_WARPS, squares);
            }
            squares = squares_of(v);
            scale(v, weights);
        }
        put_forms(to, 0, cols, block, {1, FORM_TERMS, 0}, v);
    }
    sync_threads();
    // Nobody waits for the last ones before sums meet.
    if (product.gamma && block != warp) put_squares(room.norm, block - BLOCK_WARPS, squares);
}

// A slice has a slot, and if there are tails two more: for its last piece, which another warp multiplied, and for the scale that this lacks.
DEVICE bool has_tails(const Product& product) { return BY_256 && product.tails != 0; }
DEVICE u32 slots_of_slice(const Product& product) { return has_tails(product) ? 3 : 1; }
// A matrix's sum for a row, slices in their order.
DEVICE float sum_of(const float* slots, const Product& product) {
    u32 apart = slots_of_slice(product) * TILE_ROWS;
    float parts[SLICES];
#pragma unroll
    for (u32 k = 0; k < SLICES; k++) parts[k] = product.slices >> k & 1 ? slots[k * apart] : 0.0f;
    if (has_tails(product)) {
#pragma unroll
        for (u32 k = 0; k < SLICES; k++)
            if (product.tails >> k & 1) parts[k] = fused_multiply_add(slots[k * apart + 2 * TILE_ROWS], slots[k * apart + TILE_ROWS], parts[k]);
    }
    return add_slices(parts);
}
// `factor`: see row_norm.h.
DEVICE float output_of(const float* slots, const Product& product, float factor, u32 place, u32 r) {
    u32 of_matrix = slots_of_slice(product) * SLICES * TILE_ROWS;
    auto sum = [&](u32 matrix) { return multiply(factor, sum_of(slots + matrix * of_matrix + r, product)); };
    return product.gated ? silu(sum(2 * place)) * sum(2 * place + 1) : sum(place);
}

// Bytes on their way are in the way of the row that all blocks look for. So half of the warps fill the stage of a phase's last piece anew when the
// next row is there; all of them would then ask for too many bytes at once. What a warp asks for must not be a piece that the next row waits for.
constexpr u32 FIRST_LATER = STAGES < 2 * BLOCK_WARPS ? 2 * BLOCK_WARPS - STAGES : 0, NUM_LATER = BLOCK_WARPS / 2;
constexpr bool FILLS_LATER = FIRST_LATER + NUM_LATER <= BLOCK_WARPS;
DEVICE bool fills_later() { return FILLS_LATER && warp_index() - FIRST_LATER < NUM_LATER; }

// `owes`: the ring's present stage has been read, and is to be filled anew.
DEVICE void multiply(const Context& step, const Product& product, u32 number, Share share, PieceRing& ring, const Stages& stages, u32& which,
                     bool& owes, const Room& room) {
    // Outputs are written by the last threads, each `mine` and those that lie a block's threads further.
    u32 mine = BLOCK_THREADS - 1 - thread_index();
    bool adds = product.add.at != nullptr, has_row = false;
    auto place_of = [&](u32 at, u32& output) {
        u32 sixteen = share.first + at / TILE_ROWS;
        output = 0;
        while (output + 1 < product.num_outputs && sixteen >= product.outputs[output + 1].first_sixteen) output++;
        return (sixteen - product.outputs[output].first_sixteen) * TILE_ROWS + at % TILE_ROWS;
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
            PieceRing next = ring;
            if (FILLS_LATER && owes) next.skip(BLOCK_WARPS);
            Vec4u piece = wait_for(FILLS_LATER && owes ? which + BLOCK_WARPS : which, next, stages);
            if (!has_row) put_row(step, product, x, room);
            has_row = true;
            if (FILLS_LATER && owes) fill_anew(step, ring, stages, which);
            owes = false;
            const u8* tiles = stages.bytes + ring.slot * STAGE_BYTES;
            if (piece.w & BEGINS_SLICE) sums[0][0] = sums[0][2] = 0.0f;
            if (tiles_of(piece) > 0) visit_type<MultiplyPiece>(piece.w >> 16 & 31, piece, tiles, x, sums);
            if ((piece.w & ENDS_SLICE) && lane_index() % 4 == 0) {
                float* slot = room.slots + (piece.w & 0xffff) * TILE_ROWS + lane_index() / 4;
                slot[0] = sums[0][0];
                slot[8] = sums[0][2];
                if (BY_256 && (piece.w & IS_TAIL)) {
                    float scale = *reinterpret_cast<const float*>(x.by256 + (piece.z >> 16) * BYTES_256 + SCALES_256);
                    slot[TILE_ROWS] = slot[TILE_ROWS + 8] = scale;
                }
            }
            if (piece.w & ENDS_ROUND) break;
            fill_anew(step, ring, stages, which);
        }
        sync_threads();
        float factor = product.gamma && mine < count * TILE_ROWS ? factor_of(room.norm, product.cols, product.eps) : 1.0f;
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
        bool is_last = first + product.round >= share.count;
        owes = is_last && fills_later();
        if (!owes) fill_anew(step, ring, stages, which);
        // The next sums take their place.
        if (!is_last) sync_threads();
    }
}
