// A row alone of a gated DeltaNet layer, from the residual row to what is normed: the products that make its inputs, and what delta_heads.cu
// does, to the bit, in one launch.
//
// A cluster has a head: each of its blocks the same share of q's, k's, v's and z's columns, whose products it makes, and that strip of the state. What
// all need of each other, q, k, gates and answers, they send.
// CLUSTER: blocks of a cluster. TYPES: bit mask of the types in use. For as many key heads as value heads, of the same dims.
#ifndef TYPES
#define TYPES (1 << 12)
#define CLUSTER 8
#define HK 16
#define HV 16
#define DK 128
#define DV 128
#define TAPS 4
#endif
#define KEPT 1
#define COLUMN_TILES 1
#include "held.h"
// Clusters of later chips have not been tried.
#if ON_HOST || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cluster.h"
#include "delta_state.h"

constexpr u32 WARPS = 18, THREADS = WARPS * LANES;
// A warp multiplies a piece: 16 rows by two slices of the inputs.
constexpr u32 OF_SIXTEEN = SLICES / 2;
// Columns of a block, of q, k, v and z each, and their sixteens.
constexpr u32 STRIP = DV / CLUSTER, OF_PART = STRIP / TILE_ROWS;
enum PartOf : u32 { Q, K, V, Z, NUM_PARTS };
constexpr u32 SIXTEENS = NUM_PARTS * OF_PART;
// Pieces of the gates' two sums are dealt out to the blocks.
constexpr u32 GATE_PIECES = 2 * OF_SIXTEEN, OF_GATES = GATE_PIECES / CLUSTER;
constexpr u32 PIECES = SIXTEENS * OF_SIXTEEN + OF_GATES;
// Of at most 1024 inputs, two slices have 256.
constexpr bool ONE_TILE = !BY_32 && !FLOATS;
static_assert(HK == HV && DK == DV && DV % (CLUSTER * TILE_ROWS) == 0 && GATE_PIECES % CLUSTER == 0, "a head's columns are dealt out evenly");
// Warps with a part in what follows the products.
constexpr u32 WALKERS = STRIP / 4, FIRST_OUTPUT = 8, OUTPUT_WARPS = SIXTEENS * TILE_ROWS / LANES, NORMS_Q = 12, NORMS_K = 13, GATES = 14;
static_assert(WALKERS <= FIRST_OUTPUT && FIRST_OUTPUT + OUTPUT_WARPS <= NORMS_Q && TILE_ROWS * OF_PART <= LANES, "each has its own");

// What comes from the blocks of a cluster: first q, k and sums of pieces of gates, then answers.
constexpr u32 INPUT_WORDS = 2 * DK + GATE_PIECES, ANSWERS_AT = INPUT_WORDS, INBOX_BYTES = (INPUT_WORDS + DV) * sizeof(float);
constexpr u32 LINE = 128;
constexpr u32 SLOTS_AT = (INBOX_BYTES + LINE - 1) / LINE * LINE, ROW_AT = SLOTS_AT + (PIECES * TILE_ROWS * sizeof(float) + LINE - 1) / LINE * LINE;

struct Weights {
    const u8* at;
    u32 type, unused;
};
enum MatrixOf : u32 { QKV, OF_Z, ALPHA, BETA, NUM_MATRICES };
struct StepArgs {
    Tables tables;
    // Of the fields for a batch's rows none is there.
    Layer layer;
    // Without z.
    Norm norm;
    Weights weights[NUM_MATRICES];
    // The residual row, of whole 256 inputs, one for each warp at most, and what norms it.
    const float* row;
    const float* gamma;
    float eps, q_scale;
    u32 cols;
    // Where weights begin in shared memory; of a piece, and of one of the gates'.
    u32 weights_at, piece_bytes, gate_piece_bytes;
};

struct FindPiece {
    template <u32 T>
    static DEVICE_MEMBER void of(const StepArgs& args, const Weights& weights, Held& piece, u32 sixteen, u32 slice, const u8*& at) {
        constexpr u32 OF_256 = 256 / tile_cols(T);
        u32 tiles = args.cols / tile_cols(T);
        piece.from = slice_start(slice, args.cols, OF_256, tiles);
        piece.middle = slice_start(slice + 1, args.cols, OF_256, tiles);
        piece.to = slice_start(slice + 2, args.cols, OF_256, tiles);
        at = weights.at + ((u64)sixteen * tiles + piece.from) * tile_bytes(T);
    }
};
// Its weights are at `at`.
DEVICE Held find_piece(const StepArgs& args, u32 head, u32 rank, u32 number, const u8*& at) {
    u32 of_part = number / OF_SIXTEEN, part = of_part / OF_PART, slice = 2 * (number % OF_SIXTEEN), matrix = part < Z ? QKV : OF_Z;
    u32 sixteen = (((part < Z ? part * HK : 0) + head) * DK + rank * STRIP) / TILE_ROWS + of_part % OF_PART;
    if (of_part >= SIXTEENS) {
        u32 gate = rank * OF_GATES + number - SIXTEENS * OF_SIXTEEN;
        matrix = gate / OF_SIXTEEN ? BETA : ALPHA;
        slice = 2 * (gate % OF_SIXTEEN);
        sixteen = head / TILE_ROWS;
    }
    const Weights& weights = args.weights[matrix];
    Held piece = {weights.type, 0, 0, 0};
    visit_type<FindPiece>(weights.type, args, weights, piece, sixteen, slice, at);
    return piece;
}
// Where a piece lies in shared memory.
DEVICE u8* place_of_piece(const StepArgs& args, u8* shared, u32 number) {
    u32 inputs = smaller(number, SIXTEENS * OF_SIXTEEN);
    return shared + args.weights_at + inputs * args.piece_bytes + (number - inputs) * args.gate_piece_bytes;
}
// A head of q or k as it came, to length `length`; by a warp. As `prepare_head` has it.
DEVICE void norm_input(const Inbox& inbox, u32 at, float length, Vec4f* to) {
    constexpr u32 VALUES = (DK + LANES - 1) / LANES;
    float mixed[VALUES], squares = 0.0f;
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        u32 channel = lane_index() + j * LANES;
        mixed[j] = channel < DK ? inbox.word(at + channel) : 0.0f;
        squares = fused_multiply_add(mixed[j], mixed[j], squares);
    }
    float factor = length * inverse_root(warp_sum(squares) + 1e-6f);
    float* values = reinterpret_cast<float*>(to);
#pragma unroll
    for (u32 j = 0; j < (KEYS + LANES - 1) / LANES; j++) {
        u32 channel = lane_index() + j * LANES;
        if (channel < KEYS) values[channel] = j < VALUES ? mixed[j] * factor : 0.0f;
    }
}

// Whole lines, so that what lies behind them begins with one (see row_norm.h).
struct alignas(LINE) Own {
    RowNorm row_norm;
    Staged<STRIP> staged;
    // Of what comes.
    u64 counters[2];
    Held pieces[PIECES];
};

KERNEL_CLUSTERED(delta_step, StepArgs, THREADS, 1, CLUSTER) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    SHARED Own of_block;
    RowNorm& row_norm = of_block.row_norm;
    Staged<STRIP>& staged = of_block.staged;
    u32 head = block_x() / CLUSTER, rank = block_x() % CLUSTER, warp = warp_index(), lane = lane_index();
    Inbox inputs = Inbox::at(shared, of_block.counters[0]), answers = Inbox::at(shared + ANSWERS_AT * sizeof(float), of_block.counters[1]);
    if (thread_index() == 0) {
        inputs.begin();
        answers.begin();
        inputs.expect(INPUT_WORDS * sizeof(float));
        answers.expect(DV * sizeof(float));
    }
    arrive_at_cluster();
    // Weights are nobody's result; what the step before left is there: see `walk_head` of delta_heads.cu.
#pragma unroll 1
    for (u32 number = warp; number < PIECES; number += WARPS) {
        const u8* from = nullptr;
        Held piece = find_piece(args, head, rank, number, from);
        u8* to = place_of_piece(args, shared, number);
        visit_type<CopyHeld>(piece.type, piece, from, to);
        if (lane == 0) of_block.pieces[number] = piece;
    }
    commit_copies();
    u32 state_index = args.tables.segments[0].state_index;
    float* strip = args.layer.states + ((u64)state_index * HV + head) * DK * DV + rank * STRIP;
    if (thread_index() < DK) prefetch(strip + thread_index() * DV, STRIP * sizeof(float));
    // An output's column of its part, and its channel.
    u32 output = thread_index() - FIRST_OUTPUT * LANES, part = output / STRIP, column = rank * STRIP + output % STRIP;
    bool has_output = output < SIXTEENS * TILE_ROWS, is_mixed = has_output && part < Z;
    u32 channel = (part * HK + head) * DK + column;
    float* history = args.layer.history + (u64)state_index * KEPT_ROWS * CHANNELS + channel;
    float taps[TAPS] = {}, kept[TAPS] = {}, head_gamma = 0.0f, a = 0.0f, dt_bias = 0.0f;
    if (is_mixed) {
#pragma unroll
        for (u32 i = 0; i < TAPS; i++) taps[i] = args.layer.conv_weight[(u64)channel * TAPS + i];
#pragma unroll
        for (u32 i = 0; i < KEPT_ROWS; i++) kept[i] = history[(u64)i * CHANNELS];
    } else if (has_output) {
        head_gamma = args.norm.gamma[column];
    }
    if (warp == GATES) a = args.layer.a[head], dt_bias = args.layer.dt_bias[head];
    OwnRow<true, WARPS> row(args.gamma, args.cols);
    Activations x = forms_at(shared + ROW_AT, args.cols, BY_256, BY_32, FLOATS);
    wait_for_inputs();

    row.put(args.row, args.cols, x, row_norm);
    sync_threads();
    wait_for_cluster();
    float* slots = reinterpret_cast<float*>(shared + SLOTS_AT);
    if (warp == WARPS - 1) put_factor(row_norm, args.cols, args.eps);
    wait_copies<0>();
    sync_warp();
#pragma unroll 1
    for (u32 number = warp; number < PIECES; number += WARPS) {
        const Held& piece = of_block.pieces[number];
        const u8* tiles = place_of_piece(args, shared, number);
        float* slot = slots + number * TILE_ROWS;
        visit_type<MultiplyHeld<ONE_TILE>>(piece.type, piece, tiles, x, slot);
    }
    sync_threads();

    // A walker's columns, one a lane, on their way while others make its inputs.
    State<1> state = {};
    if (warp < WALKERS) load_state(state, strip + warp * 4 + lane / 8);
    float gate_of_answer = 0.0f;
    if (has_output) {
        u32 at = output / TILE_ROWS * OF_SIXTEEN, r = output % TILE_ROWS;
        float now = multiply(row_norm.factor, add_pieces<OF_SIXTEEN>([&](u32 k) { return slots[(at + k) * TILE_ROWS + r]; }));
        if (part == Z) {
            gate_of_answer = silu(now);
        } else {
            kept[KEPT_ROWS] = now;
            float sum = 0.0f;
#pragma unroll
            for (u32 tap = 0; tap < TAPS; tap++) sum = fused_multiply_add(taps[tap], kept[tap], sum);
            float mixed = silu(sum);
            if (part == V) {
                reinterpret_cast<float*>(staged.v)[output % STRIP] = mixed;
            } else {
#pragma unroll
                for (u32 block = 0; block < CLUSTER; block++) inputs.of_block(block).send(part * DK + column, mixed);
            }
        }
    } else if (warp == GATES && lane < OF_GATES * CLUSTER) {
        u32 gate = lane / CLUSTER;
        float sum = slots[(SIXTEENS * OF_SIXTEEN + gate) * TILE_ROWS + head % TILE_ROWS];
        inputs.of_block(lane % CLUSTER).send(2 * DK + rank * OF_GATES + gate, sum);
    }
    if (warp == NORMS_Q || warp == NORMS_K || warp == GATES) {
        inputs.wait_until_full();
        if (warp == NORMS_Q) norm_input(inputs, 0, args.q_scale, staged.q);
        if (warp == NORMS_K) norm_input(inputs, DK, 1.0f, staged.k);
        if (warp == GATES) {
            auto sum = [&](u32 gate) {
                return multiply(row_norm.factor, add_pieces<OF_SIXTEEN>([&](u32 k) { return inputs.word(2 * DK + gate * OF_SIXTEEN + k); }));
            };
            Vec2f gates = prepare_gates(sum(0), sum(1), a, dt_bias);
            if (lane == 0) staged.gates.x = gates.x, staged.gates.y = gates.y;
        }
    }
    sync_threads();

    // The state as its rows lie in memory, which whole lines go to; weights are of no use any more.
    constexpr u32 APART = STRIP + 4;
    float* rows = reinterpret_cast<float*>(shared + args.weights_at);
    if (warp < WALKERS) {
        float answer = whole(advance_and_answer(state, staged, warp));
        // A column's eight lanes have it.
        if (lane % 8 < CLUSTER) answers.of_block(lane % 8).send(rank * STRIP + warp * 4 + lane / 8, answer);
#pragma unroll
        for (u32 i = 0; i < QUADS; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u32 row = i * 32 + lane % 8 * 4 + j;
                if (DK % 32 == 0 || row < DK) rows[row * APART + warp * 4 + lane / 8] = state.at[i][j][0];
            }
    }
    sync_threads();
    // What is kept would be in the answers' way.
    answers.wait_until_full();
    if (warp == FIRST_OUTPUT + OUTPUT_WARPS - 1) {
        Factors all;
#pragma unroll
        for (u32 j = 0; j < (DV + LANES - 1) / LANES; j++) {
            u32 at = lane + j * LANES;
            all.of[j] = at < DV ? answers.word(at) : 0.0f;
        }
        float inverse = inverse_norm_of_head(all, args.norm.eps);
        if (part == Z) args.norm.out[head * DV + column] = gated(answers.word(column), inverse, head_gamma, gate_of_answer);
    }
#pragma unroll 2
    for (u32 at = 4 * thread_index(); at < DK * STRIP; at += 4 * THREADS) {
        u32 row = at / STRIP, of_row = at % STRIP;
        *reinterpret_cast<Vec4f*>(strip + row * DV + of_row) = *reinterpret_cast<const Vec4f*>(rows + row * APART + of_row);
    }
    if (is_mixed) {
#pragma unroll
        for (u32 i = 0; i < KEPT_ROWS; i++) history[(u64)i * CHANNELS] = kept[i + 1];
    }
}
#endif
