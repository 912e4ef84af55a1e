// Whole steps of one row in one launch: the operations of a step, phase after phase, by blocks that all run at a time; and of the next
// token's, where the host asks for it in time (tokens.h).
//
// Between phases there is no barrier: a row goes from block to block as values that say themselves that they have come
// (together.h). Weights depend on nothing: a block has a list of all its pieces of the step's matrices, and a ring in shared memory
// that is filled from it as soon as there is room, phases ahead of what is multiplied. The order of every sum is that of the
// kernels of single operations (products.h, attention.h, delta_state.h), so a step has the same bits either way.
//
// TYPES: bit mask of the weights' types. BLOCK_WARPS, STAGES: warps that work, and pieces of the ring. WORK_BYTES, SLOT_BYTES: shared memory of what
// a phase works with, and of the sums of products. HAS_DELTA: with HK, HV, DK, DV, TAPS of delta_rows.h. HAS_ATTENTION: with HEAD_DIM, GROUP, TILES,
// K_TYPE, V_TYPE of attention_tiles.h. COPIES_BY_LANES: see ring.h. EMBED_TYPE: see tokens.h.
#ifndef TYPES
#define TYPES (1 << 30)
#define BLOCK_WARPS 16
#define STAGES 20
#define WORK_BYTES 16384
#define SLOT_BYTES 8192
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

// Whole lines of shared memory, so that the ring, which comes next, begins with one.
struct alignas(128) Fixed {
    u64 barriers[PieceRing::BARRIER_BYTES / 8];
    RowNorm norm;
};

// The compiler would find out where shared memory begins again and again, by an instruction that takes as long as ten others, and whoever waits for
// the next phase would wait for that, too. An address that it knows nothing of it keeps in a uniform register.
#if ON_CUDA
DEVICE u8* kept_address(u8* shared) {
    u32 at = (u32)__cvta_generic_to_shared(shared);
    asm volatile("" : "+r"(at));
    return static_cast<u8*>(__cvta_shared_to_generic(at));
}
#else
DEVICE u8* kept_address(u8* shared) { return shared; }
#endif

KERNEL_AHEAD(step, StepArgs, BLOCK_THREADS, 1) {
    let_next_start();
    DYNAMIC_SHARED(all_shared);
    // Barriers and a row's norm, the ring, what phases work with, sums of products, the step, and last its phases, of which there may be any number:
    // so where each begins is a constant.
    u8* shared = kept_address(all_shared);
    Fixed& fixed = *reinterpret_cast<Fixed*>(shared);
    shared += sizeof(Fixed);
    constexpr u32 LINE = 128, RING_BYTES = (STAGES * (STAGE_BYTES + 2 * sizeof(Vec4u)) + LINE - 1) / LINE * LINE;
    Vec4u* of_stages = reinterpret_cast<Vec4u*>(shared + STAGES * STAGE_BYTES);
    Stages stages = {shared, of_stages, of_stages + STAGES};
    u8* work = shared + RING_BYTES;
    Room room = {work, reinterpret_cast<float*>(work + WORK_BYTES), fixed.norm};
    Context& step = *reinterpret_cast<Context*>(work + WORK_BYTES + SLOT_BYTES);
    Phase* phases = reinterpret_cast<Phase*>(work + WORK_BYTES + SLOT_BYTES + CONTEXT_BYTES);
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
    Progress progress = {};
    for (u32 i = thread_index(); i < args.num_phases * PHASE_VECS; i += BLOCK_THREADS) {
        Vec4u vec = reinterpret_cast<const Vec4u*>(args.phases)[i];
        if (i % PHASE_VECS == 0) {
            Share share = args.shares[(u64)block_x() * args.num_phases + i / PHASE_VECS];
            vec.z = share.first;
            vec.w = share.count;
        }
        reinterpret_cast<Vec4u*>(phases)[i] = vec;
    }
    wait_for_inputs();
    if (thread_index() == 0) step.waiting = {args.epoch, args.is_stuck, nullptr};
    sync_threads();
    // A token's number lies in shared memory: registers are for what its phases do.
    for (;;) {
        if (!begin_token(args, step.waiting, work)) break;
        if (thread_index() == 0) {
            Row row = args.tables.rows[0];
            Waiting waiting = {step.waiting.epoch, args.is_stuck, rows_of(args, step.waiting.epoch)};
            step = {waiting, args.tables, row, args.tables.segments[row.segment], step.list};
        }
        sync_threads();
        clear_next(args, step.waiting.epoch);
#pragma unroll 1
        for (progress.begin(); progress.phase() < args.num_phases; progress.next()) {
            // Each leaves what phases work with to the next one: nobody of the block reads it any more.
            const Phase& phase = phases[progress.phase()];
            Vec4u head = *reinterpret_cast<const Vec4u*>(&phase);
            Share share = {head.z, head.w};
            if (share.count == 0) continue;
            if (head.x & PRODUCT) multiply(step, phase.product, share, ring, stages, which, progress, room);
#if HAS_DELTA
            else if (head.x == DELTA) {
                for (u32 i = 0; i < share.count; i++)
                    walk(step, phase.delta, share.first + i * grid_x(), *reinterpret_cast<DeltaShared*>(work));
            } else if (head.x == MOVE) move_history(step, phase.move, share);
#endif
#if HAS_ATTENTION
            else if (head.x == SCORE) {
                score_all(step, phase.attend, head.y, share, *reinterpret_cast<ScoreShared*>(work));
            } else if (head.x == MIX) {
                mix_all(step, phase.attend, head.y, share, reinterpret_cast<MixShared*>(work));
                sync_threads();
            } else if (head.x == COMBINE) {
                for (u32 i = 0; i < share.count; i++)
                    combine(step, phase.combine, share.first + i * grid_x(), *reinterpret_cast<CombineShared*>(work));
            }
#endif
        }
        end_token(args, step.waiting, phases, work);
        if (thread_index() == 0) step.list -= list_length(args);
    }
    // What was asked for ahead comes before the block goes.
    if (args.num_tokens == 1) return;
    if constexpr (FILLS_LATER) {
        // The list has moved.
        sync_threads();
        if (progress.owes()) fill_anew(step, ring, stages, which);
    }
    for (u32 stage = warp_index(); stage < STAGES; stage += BLOCK_WARPS) {
        wait_for(which, ring, stages);
        ring.skip(BLOCK_WARPS);
        which += BLOCK_WARPS;
    }
}
#endif
