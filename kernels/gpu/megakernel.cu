// Whole steps of one row in one launch: the operations of a step, phase after phase, by blocks that all run at a time; and of the next
// token's, where the host asks for it in time (tokens.h).
//
// Between phases there is no barrier: a row goes from block to block as values that say themselves that they have come
// (together.h). Weights depend on nothing: a block has a list of all its pieces of the step's matrices, and a ring in shared memory
// that is filled from it as soon as there is room, phases ahead of what is multiplied. The order of every sum is that of the
// kernels of single operations (products.h, attention.h, delta_state.h), so a step has the same bits either way.
//
// TYPES: bit mask of the weights' types. BLOCK_WARPS, STAGES: warps that work, and pieces of the ring. HAS_DELTA: with HK, HV, DK, DV,
// TAPS of delta_rows.h. HAS_ATTENTION: with HEAD_DIM, GROUP, TILES, K_TYPE, V_TYPE of attention_tiles.h. COPIES_BY_LANES: see ring.h.
// EMBED_TYPE: see tokens.h.
#ifndef TYPES
#define TYPES (1 << 30)
#define BLOCK_WARPS 16
#define STAGES 20
#define HAS_DELTA 1
#define HAS_ATTENTION 1
#define HK 16
#define HV 16
#define DK 128
#define DV 128
#define TAPS 4
#define HEAD_DIM 256
#define GROUP 4
#define TILES 1
#define K_TYPE 1
#define V_TYPE 1
#define EMBED_TYPE 30
#endif
#define KEPT 1
#define COLUMN_TILES 1
#include "ring.h"

// Elsewhere a step goes operation by operation.
#if HAS_RINGS
#if HAS_DELTA
#include "step_recurrence.h"
#endif
#include "step_products.h"
#if HAS_ATTENTION
#include "step_combine.h"
#endif
#include "tokens.h"

// Whole lines of shared memory, as is all that comes before the ring, which so begins with one.
struct alignas(128) Fixed {
    u64 barriers[PieceRing::BARRIER_BYTES / 8];
    RowNorm norm;
};

KERNEL_AHEAD(step, StepArgs, BLOCK_THREADS, 1) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    SHARED Fixed fixed;
    // Phases and the block's shares of them, the step, what phases work with, sums of products, the ring.
    Phase* phases = reinterpret_cast<Phase*>(shared);
    Share* shares = reinterpret_cast<Share*>(phases + args.num_phases);
    Context& step = *reinterpret_cast<Context*>(shared + args.fixed_bytes - CONTEXT_BYTES);
    u8* work = shared + args.fixed_bytes;
    Room room = {work, reinterpret_cast<float*>(work + args.work_bytes), fixed.norm};
    u8* rings = work + args.work_bytes + args.slot_bytes;
    Vec4u* of_stages = reinterpret_cast<Vec4u*>(rings + STAGES * STAGE_BYTES);
    Stages stages = {rings, of_stages, of_stages + STAGES};
    PieceRing ring(reinterpret_cast<u8*>(fixed.barriers), 1);
    // Weights are nobody's result. A stage is filled anew by the warp that has read it.
    for (u32 i = thread_index(); i < STAGES; i += BLOCK_THREADS) stages.pieces[i].x = 0;
    if (thread_index() == 0) step.list = args.pieces + args.first_piece[block_x()];
    sync_threads();
    for (u32 stage = warp_index(); stage < STAGES; stage += BLOCK_WARPS) {
        PieceRing first = ring;
        first.skip(stage);
        bring(announce(step, step.list[stage], 1 + stage, first, stages), first, stages);
    }
    // This warp's next one.
    u32 which = 1 + warp_index();
    ring.skip(warp_index());
    bool owes = false;
    for (u32 i = thread_index(); i < args.num_phases * (PHASE_BYTES / 16); i += BLOCK_THREADS)
        reinterpret_cast<Vec4u*>(phases)[i] = reinterpret_cast<const Vec4u*>(args.phases)[i];
    for (u32 i = thread_index(); i < args.num_phases; i += BLOCK_THREADS) shares[i] = args.shares[(u64)block_x() * args.num_phases + i];
    wait_for_inputs();
    if (thread_index() == 0) step.waiting = {args.epoch, args.is_stuck, nullptr};
    sync_threads();
    // A token's number lies in shared memory: registers are for what its phases do.
    for (;;) {
        if (!begin_token(args, step.waiting, work)) break;
        if (thread_index() == 0) {
            Row row = args.tables.rows[0];
            step.waiting.rows = rows_of(args, step.waiting.epoch);
            step = {step.waiting, args.tables, row, args.tables.segments[row.segment], step.list};
        }
        clear_next(args, step.waiting.epoch);
        sync_threads();
#pragma unroll 1
        for (u32 p = 0; p < args.num_phases; p++) {
            // Each leaves what phases work with to the next one: nobody of the block reads it any more.
            const Phase& phase = phases[p];
            Share share = shares[p];
            if (share.count == 0) continue;
            if (phase.kind == PRODUCT) multiply(step, phase.product, share, ring, stages, which, owes, room);
#if HAS_DELTA
            else if (phase.kind == DELTA) {
                for (u32 i = 0; i < share.count; i++)
                    walk(step, phase.delta, share.first + i * grid_x(), *reinterpret_cast<DeltaShared*>(work));
            } else if (phase.kind == MOVE) move_history(step, phase.move, share);
#endif
#if HAS_ATTENTION
            else if (phase.kind == SCORE) {
                score_all(step, phase.attend, phase.number, share, *reinterpret_cast<ScoreShared*>(work));
            } else if (phase.kind == MIX) {
                mix_all(step, phase.attend, phase.number, share, reinterpret_cast<MixShared*>(work));
                sync_threads();
            } else if (phase.kind == COMBINE) {
                for (u32 i = 0; i < share.count; i++)
                    combine(step, phase.combine, share.first + i * grid_x(), *reinterpret_cast<CombineShared*>(work));
            }
#endif
        }
        end_token(args, step.waiting, phases, shares, work);
        if (thread_index() == 0) step.list -= list_length(args);
    }
    // What was asked for ahead comes before the block goes.
    if (args.num_tokens == 1) return;
    if constexpr (FILLS_LATER) {
        // The list has moved.
        sync_threads();
        if (owes) fill_anew(step, ring, stages, which);
    }
    for (u32 stage = warp_index(); stage < STAGES; stage += BLOCK_WARPS) {
        wait_for(which, ring, stages);
        ring.skip(BLOCK_WARPS);
        which += BLOCK_WARPS;
    }
}
#endif
