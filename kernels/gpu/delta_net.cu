// Gated DeltaNet for long walks and trees: rows are prepared, the recurrence is walked. Answers are normed by activate.cu.
//
// OWN_COLUMNS: columns of a head that a walker's lane has.
#ifndef OWN_COLUMNS
#define OWN_COLUMNS 4
#endif
#include "delta_state.h"

// Convolution, norm of q and k, decay and write strength; a warp takes a head of a few rows.
struct PrepareArgs {
    Tables tables;
    Layer layer;
    // [N, CHANNELS]: q of length q_scale, k of length 1, v. [N, HV]: decay and strength, and nothing.
    float* prepared;
    Vec4f* gates;
    u32 num_rows;
    u32 rows_per_warp;
    float q_scale;
};
constexpr u32 PREPARE_WARPS = 4, PREPARE_BLOCKS = 10;

template <u32 DIM> DEVICE void prepare_rows(const PrepareArgs& args, u32 head, u32 first_channel, float length) {
    const Layer& layer = args.layer;
    HeadTaps<DIM> weights, values;
    load_weights(weights, layer.conv_weight, first_channel, DIM);
    u32 first_row = block_x() * args.rows_per_warp, end = smaller(first_row + args.rows_per_warp, args.num_rows);
    for (u32 row = first_row; row < end; row++) {
        u32 segment = args.tables.rows[row].segment;
        if (segment == NONE) continue;
        Window window = window_of(args.tables, layer, args.tables.segments[segment].state_index, row);
        wait_for_inputs();
        let_next_start();
        load_values(values, window, first_channel, DIM);
        prepare_head(weights, values, DIM, length, args.prepared + (u64)row * CHANNELS + first_channel);
        if (head < 2 * HK || lane_index() > 0) continue;
        u32 value_head = head - 2 * HK;
        u64 gate = (u64)row * HV + value_head;
        Vec2f pair = prepare_gates(layer.alpha[gate], layer.beta[gate], layer.a[value_head], layer.dt_bias[value_head]);
        args.gates[gate] = {pair.x, pair.y, 0.0f, 0.0f};
    }
}

// Of the states that will be walked, a block's share comes as far as L2 while rows are not there yet.
DEVICE void prefetch_states(const PrepareArgs& args) {
    u32 row = block_x() * args.rows_per_warp, number = args.tables.rows[row].segment;
    if (number == NONE || thread_index() != 0) return;
    const Segment& segment = args.tables.segments[number];
    u32 blocks = (segment.num_rows + args.rows_per_warp - 1) / args.rows_per_warp * grid_y();
    u32 own = (row - segment.first_row) / args.rows_per_warp * grid_y() + block_y();
    constexpr u32 BYTES = HV * DK * DV * sizeof(float), LINE = 128;
    u32 share = (BYTES + blocks * LINE - 1) / (blocks * LINE) * LINE;
    if (own * share >= BYTES) return;
    const u8* states = reinterpret_cast<const u8*>(args.layer.states) + (u64)segment.state_index * BYTES;
    prefetch(states + own * share, smaller(share, BYTES - own * share));
}

// A walk does not start before the product in front of this kernel has ended, or its blocks go where that leaves room first. So many blocks of a
// multiprocessor are all that a tree of 64 rows has for it: none waits for another's end.
KERNEL_AHEAD(delta_prepare, PrepareArgs, PREPARE_WARPS * LANES, PREPARE_BLOCKS) {
    u32 head = block_y() * PREPARE_WARPS + warp_index();
    prefetch_states(args);
    if (head < 2 * HK) prepare_rows<DK>(args, head, head * DK, head < HK ? args.q_scale : 1.0f);
    else if (head < HEADS) prepare_rows<DV>(args, head, 2 * HK * DK + (head - 2 * HK) * DV, 0.0f);
    // Who has no row.
    wait_for_inputs();
    let_next_start();
}

// A thread block has a strip of columns of a head. Each of its walkers, which are warps, has a part of them: q and k, which all columns read, are
// read once for all of a lane's. A row is a chain of sums and shuffles, for which each walker has a scheduler, and nothing else is to be on its way:
// one more warp, the carrier, brings in what rows need, and another, the adder, sums up their answers.
constexpr u32 WALKERS = 4, WALKER_COLUMNS = 4 * OWN_COLUMNS, STRIP = WALKERS * WALKER_COLUMNS;
constexpr u32 CARRIER = WALKERS, STRIP_WARPS = WALKERS + 2;
constexpr u32 STRIPS = (DV + STRIP - 1) / STRIP;
constexpr u32 STRIP_THREADS = STRIP_WARPS * LANES;
// A level of a block: 16-byte pieces of its lanes' states.
constexpr u32 LEVEL_PIECES = QUADS * OWN_COLUMNS * WALKERS * LANES;
constexpr u32 MAX_LEVELS = 8;

typedef Run<OWN_COLUMNS>::Type Piece;
// To and from a level, where each thread has a column of pieces of its own.
DEVICE void put_state(const State<OWN_COLUMNS>& state, Vec4f* level) {
    Piece* at = reinterpret_cast<Piece*>(level) + thread_index();
#pragma unroll
    for (u32 i = 0; i < 4 * QUADS; i++) at[i * WALKERS * LANES] = together(state.at[i / 4][i % 4]);
}
DEVICE void get_state(State<OWN_COLUMNS>& state, const Vec4f* level) {
    const Piece* at = reinterpret_cast<const Piece*>(level) + thread_index();
#pragma unroll
    for (u32 i = 0; i < 4 * QUADS; i++) spread(at[i * WALKERS * LANES], state.at[i / 4][i % 4]);
}

// A step in shared memory.
struct Arrived {
    Staged<STRIP> staged;
    // Load and save of Step.
    Vec2u words;
    // k times q, by lanes of eight.
    float products[8];
};
// Steps come in by batches of STEPS, which are asked for while the third batch before them is walked. A lane's part of a column's answers lies in
// a row of its own, by the lane's number of eight, so far from the next that eight lanes write at once.
constexpr u32 BATCHES = 4, RING = BATCHES * STEPS, PARTS = 2 * STEPS;
struct Strip {
    Arrived ring[RING];
    float parts[PARTS][8][STRIP + 4];

    DEVICE_MEMBER const Arrived& step(u32 at) const { return ring[at % RING]; }
    DEVICE_MEMBER Piece* parts_of_lane(u32 at, u32 walker) {
        return reinterpret_cast<Piece*>(&parts[at % PARTS][lane_index() % 8][walker * WALKER_COLUMNS + lane_index() / 8 * OWN_COLUMNS]);
    }
};

// k times q of the batch from step `first` on, eight lanes a step.
DEVICE void multiply(Strip& strip, u32 first) {
    Arrived& of = strip.ring[first % RING + lane_index() / 8];
    of.products[lane_index() % 8] = part_of_product(values_of(of.staged.k), values_of(of.staged.q));
}

// Of v and the gates a lane copies one piece.
constexpr u32 V_PIECES = STRIP / 4;
static_assert(V_PIECES < LANES, "pieces of v and the gates");

// No step has a branch of its own: what each waits for, all wait for together. Behind the last step that one comes again.
struct Carrier {
    Strip& strip;
    const Step* steps;
    u32 num_rows;
    // Of row 0: a head's q, and a lane's piece of v or the gates, which is so many bytes apart from the next row's.
    const float* q;
    const u8* piece;
    u32 piece_stride;
    bool has_piece;
    // Of the batch that is brought in next: the rows, and a lane's step.
    u32 rows[STEPS];
    Step ahead;

    DEVICE_MEMBER void find(u32 first) {
        u32 last = num_rows - 1;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) rows[i] = steps[smaller(first + i, last)].row;
        ahead = steps[smaller(first + lane_index() % STEPS, last)];
    }
    static DEVICE_MEMBER SharedPlace place_of(Vec4f* at) { return shared_place(reinterpret_cast<u8*>(at)); }
    // DK values.
    static DEVICE_MEMBER void copy_head(Vec4f* to, const float* from) {
#pragma unroll
        for (u32 first = 0; first < DK / 4; first += LANES) {
            u32 at = first + lane_index();
            if ((DK / 4) % LANES == 0 || at < DK / 4) copy_async(place_of(to + at), from + 4 * at);
        }
    }
    // The batch from step `first` on; batches follow one another.
    DEVICE_MEMBER void bring(u32 first) {
        if (first < num_rows) {
            Arrived* to = strip.ring + first % RING;
            if (lane_index() < STEPS) to[lane_index()].words = {ahead.load, ahead.save};
#pragma unroll
            for (u32 i = 0; i < STEPS; i++) {
                const float* q_of_row = q + (u64)rows[i] * CHANNELS;
                copy_head(to[i].staged.q, q_of_row);
                copy_head(to[i].staged.k, q_of_row + HK * DK);
            }
            if (has_piece) {
#pragma unroll
                for (u32 i = 0; i < STEPS; i++) {
                    Vec4f* of_piece = lane_index() == V_PIECES ? &to[i].staged.gates : to[i].staged.v + lane_index();
                    copy_async(place_of(of_piece), reinterpret_cast<const float*>(piece + (u64)rows[i] * piece_stride));
                }
            }
            find(first + STEPS);
        }
        commit_copies();
    }
    DEVICE_MEMBER void carry() {
        u32 first = 0;
#pragma unroll 1
        for (; first < (BATCHES - 1) * STEPS; first += STEPS) bring(first);
#pragma unroll 1
        for (first = 0; first < num_rows; first += STEPS) {
            // This batch and the next: a walker is a step ahead with its reading, and the adder a batch.
            wait_copies<BATCHES - 3>();
            if (first == 0) {
                sync_warp();
                multiply(strip, 0);
            }
            sync_threads();
            bring(first + (BATCHES - 1) * STEPS);
        }
        sync_threads();
    }
};

struct Adder {
    // Steps that are summed up together, four columns a lane, and how many times.
    static constexpr u32 AT_ONCE = smaller(LANES / V_PIECES, STEPS), TIMES = STEPS / AT_ONCE;
    Strip& strip;
    const Step* steps;
    u32 num_rows;
    // Of row 0 and the strip's first column, of so many that there are.
    float* out;
    u32 columns;
    // Of the batch that is summed up next.
    u32 rows[TIMES];

    static DEVICE_MEMBER u32 own() { return lane_index() / V_PIECES; }
    DEVICE_MEMBER void find(u32 first) {
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) rows[i] = steps[smaller(first + i * AT_ONCE + own(), num_rows - 1)].row;
    }
    // Answers of the batch from step `first` on: of the eight lanes' parts, in the order in which shuffles would add them.
    DEVICE_MEMBER void sum_up(u32 first) const {
        u32 column = lane_index() % V_PIECES * 4;
        if (AT_ONCE * V_PIECES < LANES && own() >= AT_ONCE) return;
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            u32 at = first + i * AT_ONCE + own();
            float sums[8][4];
#pragma unroll
            for (u32 r = 0; r < 8; r++) spread(*reinterpret_cast<const Vec4f*>(&strip.parts[at % PARTS][r][column]), sums[r]);
#pragma unroll
            for (u32 width = 1; width < 8; width *= 2)
#pragma unroll
                for (u32 r = 0; r < 8; r += 2 * width)
#pragma unroll
                    for (u32 c = 0; c < 4; c++) sums[r][c] += sums[r + width][c];
            Vec4f* to = reinterpret_cast<Vec4f*>(out + (u64)rows[i] * (HV * DV)) + lane_index() % V_PIECES;
            if (at < num_rows && column < columns) *to = together(sums[0]);
        }
    }
    DEVICE_MEMBER void add_up() {
        u32 first = 0;
#pragma unroll 1
        for (; first < num_rows; first += STEPS) {
            sync_threads();
            multiply(strip, first + STEPS);
            if (first > 0) sum_up(first - STEPS);
            find(first);
        }
        sync_threads();
        sum_up(first - STEPS);
    }
};

struct WalkArgs {
    Tables tables;
    Layer layer;
    // See PrepareArgs.
    const float* prepared;
    const Vec4f* gates;
    // [N, HV, DV], before the norm.
    float* out;
    // Levels that shared memory has no room for.
    Vec4f* spill;
    u32 shared_levels;
};

// Levels of a walk that shared memory has no room for. The first level takes a node above two others that are no
// leaves, one more takes a node above two walks that need one less.
DEVICE u32 spilled_levels(const Segment& segment, u32 shared_levels) {
    u32 levels = 0;
    while (!segment.advance && levels < MAX_LEVELS && (6u << levels) - 1 <= segment.num_rows) levels++;
    return levels > shared_levels ? levels - shared_levels : 0;
}

// Saved states of a block, by level.
struct Levels {
    Vec4f* shared;
    u32 shared_levels;
    // Those that shared memory has no room for, so many pieces apart.
    Vec4f* spill;
    u64 spill_stride;

    DEVICE_MEMBER Vec4f* at(u32 level) const {
        return level < shared_levels ? shared + level * LEVEL_PIECES : spill + (level - shared_levels) * spill_stride;
    }
};
// BRANCHES: segments may be trees. `active`: the warp has columns.
template <bool BRANCHES>
DEVICE void walk_steps(Strip& strip, State<OWN_COLUMNS>& state, const float* committed, const Levels& levels, u32 num_rows, bool active) {
    u32 walker = warp_index();
    sync_threads();
    KeyValues key = values_of(strip.step(0).staged.k), query = values_of(strip.step(0).staged.q);
    Vec2u words = strip.step(0).words;
    // Leaves have no use for k again, and to keep it is to move it; where columns are few, it is shared memory that is short.
    constexpr bool READS_AGAIN = BRANCHES && OWN_COLUMNS == 4;
    // One piece of code for all steps: longer code comes slower than it is done.
#pragma unroll 1
    for (u32 at = 0; at < num_rows; at++) {
        if (at > 0 && at % STEPS == 0) sync_threads();
        if (!active) continue;
        const Arrived &now = strip.step(at), &next = strip.step(at + 1);
        if (BRANCHES && words.x != NONE && at > 0) {
            if (words.x == BASE) load_state(state, committed);
            else get_state(state, levels.at(words.x));
        }
        Parts<OWN_COLUMNS> read = read_by(state, key), by_q = read_by(state, query);
        add_across(read);
        u32 save = words.y;
        KeyValues own = key;
        key = values_of(next.staged.k), query = values_of(next.staged.q);
        words = next.words;
        Parts<OWN_COLUMNS> write = to_write(read, now.staged, walker);
        if (!BRANCHES || save != LEAF) {
            decay_state(state, now.staged.gates.x);
            write_state(state, READS_AGAIN ? values_of(now.staged.k) : own, write);
            if (BRANCHES && save != NONE) put_state(state, levels.at(save));
        }
        Parts<OWN_COLUMNS> parts = answer(by_q, write, now.staged.gates.x, now.products[lane_index() % 8]);
        *strip.parts_of_lane(at, walker) = together(parts.of);
    }
    sync_threads();
}

// `saved`: a block's levels.
template <bool BRANCHES> DEVICE void walk(const WalkArgs& args, Vec4f* saved) {
    constexpr u32 BLOCKS = HV * STRIPS;
    SHARED Strip strip;
    Segment segment = args.tables.segments[block_y()];
    const Step* steps = args.tables.steps + segment.first_step;
    u32 num_rows = segment.num_rows;
    if (num_rows == 0 || block_x() >= BLOCKS) wait_for_inputs();
    if (num_rows == 0) return;
    if (block_x() >= BLOCKS) {
        u32 channel = (block_x() - BLOCKS) * STRIP_THREADS + thread_index();
        if (!segment.advance || channel >= CHANNELS) return;
        Window last = window_of_chain(steps, args.layer, segment.state_index, num_rows - 1);
        move_history(args.layer, last, segment.state_index, channel);
        return;
    }
    u32 head = block_x() / STRIPS, number = block_x() % STRIPS, lane = lane_index();
    u32 columns = smaller(DV - number * STRIP, STRIP);
    if (warp_index() == CARRIER) {
        // By the warp that multiplies the first batch's k by q before all others come.
        if (DK / 4 < KEYS / 4)
            for (u32 at = 0; at < RING; at++)
                if (DK / 4 + lane < KEYS / 4) strip.ring[at].staged.q[DK / 4 + lane] = {}, strip.ring[at].staged.k[DK / 4 + lane] = {};
        const float *q = args.prepared + head % HK * DK, *v = args.prepared + 2 * HK * DK + head * DV + number * STRIP;
        bool is_gates = lane == V_PIECES;
        const void* piece = is_gates ? static_cast<const void*>(args.gates + head) : v + 4 * lane;
        u32 stride = is_gates ? HV * sizeof(Vec4f) : CHANNELS * sizeof(float);
        Carrier carrier = {strip, steps, num_rows, q, static_cast<const u8*>(piece), stride, is_gates || 4 * lane < columns, {}, {}};
        carrier.find(0);
        wait_for_inputs();
        carrier.carry();
        return;
    }
    if (warp_index() > CARRIER) {
        wait_for_inputs();
        Adder adder = {strip, steps, num_rows, args.out + head * DV + number * STRIP, columns, {}};
        adder.add_up();
        return;
    }
    u32 column = number * STRIP + warp_index() * WALKER_COLUMNS + lane / 8 * OWN_COLUMNS;
    bool active = DV % STRIP == 0 || column < DV;
    float* committed = args.layer.states + ((u64)segment.state_index * HV + head) * DK * DV + column;
    // The step before has left it, and a copy of this one's tables lies between: no kernel that still runs writes it.
    State<OWN_COLUMNS> state = {};
    if (active) load_state(state, committed);
    Levels levels = {saved, args.shared_levels, nullptr, (u64)BLOCKS * LEVEL_PIECES};
    if (BRANCHES && spilled_levels(segment, args.shared_levels)) {
        // A level after another, those of the segments before first.
        u32 before = 0;
        for (u32 i = 0; i < block_y(); i++) before += spilled_levels(args.tables.segments[i], args.shared_levels);
        levels.spill = args.spill + ((u64)before * BLOCKS + block_x()) * LEVEL_PIECES;
    }
    wait_for_inputs();
    walk_steps<BRANCHES>(strip, state, committed, levels, num_rows, active);
    if (active && segment.advance) store_state(state, committed);
}

// Segments of rows that each follow the one before.
KERNEL_AHEAD(delta_walk_chains, WalkArgs, STRIP_THREADS, 1) {
    let_next_start();
    walk<false>(args, nullptr);
}
KERNEL_AHEAD(delta_walk_trees, WalkArgs, STRIP_THREADS, 1) {
    let_next_start();
    DYNAMIC_SHARED(levels);
    walk<true>(args, reinterpret_cast<Vec4f*>(levels));
}
