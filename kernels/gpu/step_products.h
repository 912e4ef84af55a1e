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

// The thread's index, asked for here and now: the compiler would keep it in memory, or ask for it only where everybody waits for what follows.
#if ON_CUDA
DEVICE u32 thread_index_now() {
    u32 index;
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(index));
    return index;
}
#else
DEVICE u32 thread_index_now() { return thread_index(); }
#endif

DEVICE u32 list_length(const StepArgs& args) { return args.first_piece[block_x() + 1] - args.first_piece[block_x()] - LIST_TAIL; }

// The ring: what lies in it, what that is (in place of an address, which of the launch's it is, counted from 1), and what the list has for
// the stage next, which comes along: nobody waits for a list.
struct Stages {
    u8* bytes;
    Vec4u* pieces;
    Vec4u* next;
};

// The phase that a warp is at, and whether the ring's present stage has been read and is still to be filled anew: in one register, of which there are
// none to spare, and memory is looked at too late for whoever waits for the next phase.
struct Progress {
    u32 bits;

    DEVICE_MEMBER void begin() { bits &= 1; }
    DEVICE_MEMBER void next() { bits += 2; }
    DEVICE_MEMBER u32 phase() const { return bits / 2; }
    DEVICE_MEMBER bool owes() const { return bits & 1; }
    DEVICE_MEMBER void put_off() { bits |= 1; }
    DEVICE_MEMBER void pay() { bits &= ~1u; }
};

// A piece's weights on their way to a stage: all has been said of them, and only their copy is missing.
struct Announced {
    const u8* weights;
    // `is_any`: 0 where nothing has been announced.
    u32 slot, bytes, is_any;
};
// Says which piece comes to the ring's present stage, whose last one all lanes have read, and asks for what the list has for it next; a warp's work.
DEVICE Announced announce(const Context& step, const Vec4u& piece, u32 which, PieceRing& ring, const Stages& stages) {
    if (piece.w == NO_PIECE || !PieceRing::fills()) return {};
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
    const Vec4u* next = step.list + which - 1 + STAGES;
    ring.copy_once(slot, reinterpret_cast<u8*>(stages.next + slot), reinterpret_cast<const u8*>(next), sizeof(Vec4u));
    return {reinterpret_cast<const u8*>((u64)piece.x | (u64)(piece.y & 0xffff) << 32), slot, bytes, 1};
}
// Begins to bring them.
DEVICE void bring(const Announced& piece, PieceRing& ring, const Stages& stages) {
    if (piece.is_any == 0) return;
    if (piece.bytes > 0) ring.copy_once(piece.slot, stages.bytes + piece.slot * STAGE_BYTES, piece.weights, piece.bytes);
    ring.ends(piece.slot);
}
// Announces what fills the present stage anew, whose piece the warp has read, and goes on to the warp's next one.
DEVICE Announced announce_anew(const Context& step, PieceRing& ring, const Stages& stages, u32& which) {
    Vec4u next = stages.next[ring.slot];
    ring.has_been_read();
    Announced piece = announce(step, next, which + STAGES, ring, stages);
    ring.skip(BLOCK_WARPS);
    which += BLOCK_WARPS;
    return piece;
}
DEVICE void fill_anew(const Context& step, PieceRing& ring, const Stages& stages, u32& which) {
    bring(announce_anew(step, ring, stages, which), ring, stages);
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
    bool is_normed = gamma.at != nullptr;
    float v[OWN], weights[OWN], squares = 0.0f;
    if (is_normed) load_block(gamma, warp, weights);
    u32 block = warp;
#pragma unroll 1
    for (; block < blocks; block += BLOCK_WARPS) {
        take_block<RowValues>(step.waiting, from, block, cols, v);
        if (is_normed) {
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
    if (is_normed && block != warp) put_squares(room.norm, block - BLOCK_WARPS, squares);
}

// A slice has a slot, and if there are tails two more: for its last piece, which another warp multiplied, and for the scale that this lacks.
DEVICE bool has_tails(const Product& product) { return BY_256 && product.tails != 0; }
DEVICE u32 slots_of_slice(const Product& product) { return has_tails(product) ? 3 : 1; }
// An output of a product and a row of it, the `at`th of a block's sixteens from `first` on.
struct OutputRow {
    u32 output, row;

    DEVICE_MEMBER OutputRow(const Product& product, u32 first, u32 at) {
        u32 sixteen = first + at / TILE_ROWS, begin = 0;
        output = 0;
#pragma unroll
        for (u32 i = 1; i < MOST_OUTPUTS; i++) {
            u32 begins = product.outputs[i].first_sixteen;
            if (i < product.num_outputs && sixteen >= begins) output = i, begin = begins;
        }
        row = (sixteen - begin) * TILE_ROWS + at % TILE_ROWS;
    }
};
// What becomes of a row's sums and where that goes, looked up in shared memory all at once and before sums meet: behind them one warp goes on
// alone, and each look takes as long as ten other operations.
struct Epilogue {
    // Where it is looked for; null: nowhere.
    u32* place;
    float* plain;
    u32 row;
    u32 slices, tails, apart;
    // 0: no norm.
    u32 norm_cols;
    float eps;
    // Of the row's first matrix; the second one's come behind them.
    const float* slots;
    // `is_there`: false where the output has no such row. `adds`: on top of another row.
    bool gated, adds, is_there;

    Epilogue() = default;

    // Of the `nth` row of the block's sixteens from `first` on.
    DEVICE_MEMBER Epilogue(const Context& step, const Product& product, u32 first, const float* of_round, u32 nth) {
        OutputRow at(product, first, nth);
        const Output& of = product.outputs[at.output];
        Target to = of.to;
        row = at.row;
        is_there = row < of.rows;
        place = to.row != 0 ? reinterpret_cast<u32*>(step.waiting.rows + to.row) + row_place(row) : nullptr;
        plain = to.plain ? to.plain + row : nullptr;
        slices = product.slices;
        tails = BY_256 ? product.tails : 0;
        apart = slots_of_slice(product) * TILE_ROWS;
        norm_cols = product.gamma ? product.cols : 0;
        eps = product.eps;
        gated = product.gated;
        adds = product.add.at != nullptr;
        slots = of_round + nth / TILE_ROWS * (gated ? 2 : 1) * SLICES * apart + nth % TILE_ROWS;
    }
    // Slices in their order.
    DEVICE_MEMBER float value(const RowNorm& norm) const {
        // Without branches: all of them are on their way at a time. Slices without inputs have slots, too.
        const float* second = gated ? slots + SLICES * apart : slots;
        float parts[SLICES], others[SLICES];
#pragma unroll
        for (u32 k = 0; k < SLICES; k++) parts[k] = slots[k * apart], others[k] = second[k * apart];
#pragma unroll
        for (u32 k = 0; k < SLICES; k++) {
            bool has = slices >> k & 1;
            parts[k] = has ? parts[k] : 0.0f;
            others[k] = has ? others[k] : 0.0f;
        }
        // See row_norm.h.
        float factor = factor_of(norm, norm_cols, eps);
        if (norm_cols == 0) factor = 1.0f;
        if (tails != 0) {
#pragma unroll
            for (u32 k = 0; k < SLICES; k++) {
                bool has = tails >> k & 1;
                const float *last = slots + k * apart + TILE_ROWS, *of_other = second + k * apart + TILE_ROWS;
                float sum = fused_multiply_add(last[TILE_ROWS], last[0], parts[k]);
                float other = fused_multiply_add(of_other[TILE_ROWS], of_other[0], others[k]);
                parts[k] = has ? sum : parts[k];
                others[k] = has ? other : others[k];
            }
        }
        float sum = multiply(factor, add_slices(parts));
        return gated ? silu(sum) * multiply(factor, add_slices(others)) : sum;
    }
    DEVICE_MEMBER void put(float value) const {
        if (place) store_value(place, value);
        if (plain) *plain = value;
    }
};

// Bytes on their way are in the way of the row that all blocks look for. So half of the warps fill the stage of a phase's last piece anew when the
// next row is there; all of them would then ask for too many bytes at once. What a warp asks for must not be a piece that the next row waits for.
constexpr u32 FIRST_LATER = STAGES < 2 * BLOCK_WARPS ? 2 * BLOCK_WARPS - STAGES : 0, NUM_LATER = BLOCK_WARPS / 2;
constexpr bool FILLS_LATER = FIRST_LATER + NUM_LATER <= BLOCK_WARPS;
DEVICE bool fills_later() { return FILLS_LATER && warp_index() - FIRST_LATER < NUM_LATER; }

// What an output is added to, of the `nth` row of the block's sixteens from `first` on: it came long before the row, and is looked at later.
DEVICE u32 ask_for_before(const Context& step, const Product& product, u32 first, u32 nth) {
    if (product.add.at == nullptr || product.add.number == 0) return ABSENT;
    OutputRow at(product, first, nth);
    return at.row < product.outputs[at.output].rows ? load_relaxed(row_of(step.waiting, product.add) + row_place(at.row)) : ABSENT;
}

DEVICE void multiply(const Context& step, const Product& product, Share share, PieceRing& ring, const Stages& stages, u32& which,
                     Progress& progress, const Room& room) {
    bool has_row = false;
    Activations x = forms_of(product, room);
#pragma unroll 1
    for (u32 first = 0, count; first < share.count; first += count) {
        count = smaller(product.round, share.count - first);
        u32 before = ABSENT;
        // Each of the last threads has an output: asked for twice, for it would be kept in memory meanwhile.
        u32 nth = BLOCK_THREADS - 1 - thread_index_now();
        if (nth < count * TILE_ROWS) before = ask_for_before(step, product, share.first + first, nth);
        Sums sums;
        u32 lane = thread_index_now() % LANES;
        for (;;) {
            Announced owed = {};
            if (FILLS_LATER && progress.owes()) owed = announce_anew(step, ring, stages, which);
            progress.pay();
            Vec4u piece = wait_for(which, ring, stages);
            if (!has_row) put_row(step, product, x, room);
            has_row = true;
            if (FILLS_LATER) bring(owed, ring, stages);
            const u8* tiles = stages.bytes + ring.slot * STAGE_BYTES;
            if (piece.w & BEGINS_SLICE) sums[0][0] = sums[0][2] = 0.0f;
            if (tiles_of(piece) > 0) visit_type<MultiplyPiece>(piece.w >> 16 & 31, piece, tiles, x, sums);
            if ((piece.w & ENDS_SLICE) && lane % 4 == 0) {
                float* slot = room.slots + (piece.w & 0xffff) * TILE_ROWS + lane / 4;
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
        nth = BLOCK_THREADS - 1 - thread_index_now();
        Epilogue epilogue = {};
        if (nth < count * TILE_ROWS) epilogue = Epilogue(step, product, share.first + first, room.slots, nth);
        sync_threads();
        if (epilogue.is_there) {
            float value = epilogue.value(room.norm);
            if (epilogue.adds) value = (before != ABSENT ? bits_to_f32(before) : take_one(step.waiting, product.add, epilogue.row)) + value;
            epilogue.put(value);
        }
        // Asking for bytes takes thousands of cycles where many are on their way, and others wait for the sums.
        bool is_last = first + count == share.count;
        if (is_last && fills_later()) progress.put_off();
        else fill_anew(step, ring, stages, which);
        // The next sums take their place.
        if (!is_last) sync_threads();
    }
}
