// A whole step of one row in one launch: the operations of the step, phase after phase, by blocks that all run at a time.
//
// Between phases there is no barrier: a row goes from block to block as words that say themselves that they have come
// (together.h). Weights depend on nothing: a block has a list of all its pieces of the step's matrices, and a ring in shared memory
// that is filled from it as soon as there is room, phases ahead of what is multiplied. The order of every sum is that of the
// kernels of single operations (products.h, attention.h, delta_state.h), so a step has the same bits either way.
//
// TYPES: bit mask of the weights' types. BLOCK_WARPS, STAGES: warps that work, and pieces of the ring. HAS_DELTA: with HK, HV, DK, DV,
// TAPS of delta_rows.h. HAS_ATTENTION: with HEAD_DIM, GROUP, TILES, K_TYPE, V_TYPE of attention_tiles.h.
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
#endif
#define KEPT 1
#define COLUMN_TILES 1
#include "activate.h"
#include "products.h"
#include "ring.h"
#include "tables.h"
#include "together.h"

// Elsewhere a step goes operation by operation.
#if HAS_RINGS

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
    // Sixteens whose sums wait for each other at a time.
    u32 round, unused;
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
// Its history moves along, when `after` has come, which needs all that reads it. By the first `blocks` blocks from `first` on.
struct Move {
    Source qkv, after;
    float* history;
    u32 first, blocks;
};
// Queries of a row with all that it sees, split by split.
struct Attend {
    Source q, k, v;
    const float* q_gamma;
    const float* k_gamma;
    const u64* turns;
    void* cache_k;
    void* cache_v;
    // [H, splits, D], and maximum and sum of each.
    float* partials;
    Vec2f* sums;
    // [Hkv, splits]: numbers of what is done.
    u32* done;
    float eps;
    u32 num_heads, num_kv_heads, q_stride, num_splits, pairs, adjacent;
};
// The splits put together.
struct Combine {
    // Null: no gates.
    Source q;
    const float* partials;
    const Vec2f* sums;
    const u32* done;
    Target out;
    // Of the phase that splits are from.
    u32 number;
    u32 num_heads, q_stride, num_splits, heads_of_key;
};
enum Kind : u32 { PRODUCT, DELTA, MOVE, ATTEND, COMBINE };
constexpr u32 PHASE_BYTES = 256;
struct alignas(16) Phase {
    u32 kind, number;
    union {
        Product product;
        Delta delta;
        Move move;
        Attend attend;
        Combine combine;
        u8 bytes[PHASE_BYTES - 8];
    };
};
static_assert(sizeof(Phase) == PHASE_BYTES, "phases lie one after another");

// Sixteens of rows of a product phase that a block multiplies.
struct Share {
    u32 first, count;
};

struct StepArgs {
    const Phase* phases;
    // [blocks, phases]
    const Share* shares;
    // Pieces of the blocks, one list after another, and where they begin: [blocks]. Of every BLOCK_WARPS of a list, each warp has one.
    const Vec4u* pieces;
    const u32* first_piece;
    Tables tables;
    u32* is_stuck;
    u32 num_phases, epoch;
    // Shared memory: of phases, shares and the step; of forms and other things of a phase; of the sums of products.
    u32 fixed_bytes, work_bytes, slot_bytes;
};

// 16 rows of a matrix by 256 inputs or, at their end and of large types, less. Words: the address's low half; its high half, and from bit 16 on the
// sixteenths of the bytes; tiles, and from bit 16 on the first of them among its rows'; the sums' slot, and from bit 16 on the type
// and what else is so:
constexpr u32 BEGINS_SLICE = 1 << 28, ENDS_SLICE = 1 << 29, ENDS_ROUND = 1u << 31;
// Behind a list's end.
constexpr u32 NO_PIECE = 0xffffffffu;
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

// The ring: what lies in it, what that is (in place of an address, which of the list it is, counted from 1), and what the list has for
// the stage next, which comes along: nobody waits for a list.
struct Stages {
    u8* bytes;
    Vec4u* pieces;
    Vec4u* next;
    const Vec4u* list;
};

// Begins to bring a piece to the ring's present stage, whose last one all lanes have read; a warp's work.
DEVICE void bring(const Vec4u& piece, u32 which, PieceRing& ring, const Stages& stages) {
    if (piece.w == NO_PIECE || lane_index() != 0) return;
    u32 bytes = piece.y >> 16 << 4, slot = ring.slot;
    stages.pieces[slot] = {which, 0, piece.z, piece.w};
    ring.expect(slot, bytes + sizeof(Vec4u));
    const u8* weights = reinterpret_cast<const u8*>((u64)piece.x | (u64)(piece.y & 0xffff) << 32);
    if (bytes > 0) ring.copy(slot, stages.bytes + slot * STAGE_BYTES, weights, bytes);
    const Vec4u* next = stages.list + which - 1 + STAGES;
    ring.copy(slot, reinterpret_cast<u8*>(stages.next + slot), reinterpret_cast<const u8*>(next), sizeof(Vec4u));
}
// Waits for a piece. A warp may be so far ahead of the one whose piece lies in the stage that the barrier alone would not do: it has
// only the parity of what has come.
DEVICE Vec4u wait_for(u32 which, PieceRing& ring, const Stages& stages) {
    const volatile u32* there = &stages.pieces[ring.slot].x;
    while (*there != which) let_others_run();
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

#if HAS_DELTA
namespace delta {
#include "delta_state.h"
}
#endif
#if HAS_ATTENTION
// So many warps attend together, and so many of such groups at a time.
constexpr u32 ATTENDING = 8, ATTENDING_GROUPS = BLOCK_WARPS / ATTENDING;
static_assert(TILES < 5, "eight warps attend together");
DEVICE u32 group_thread() { return thread_index() % (ATTENDING * LANES); }
DEVICE u32 group_warp() { return warp_index() % ATTENDING; }
DEVICE void sync_group() { sync_some(1 + warp_index() / ATTENDING, ATTENDING * LANES); }
namespace attention {
#include "attention_tiles.h"
#include "quantise.h"
#include "turns.h"
}
#endif

struct Context {
    Waiting waiting;
    Tables tables;
    Row row;
    Segment segment;
    u8* work;
    float* slots;
};
constexpr u32 CONTEXT_BYTES = 256;
static_assert(sizeof(Context) <= CONTEXT_BYTES, "room in shared memory");

// The row of a product in the forms that are read. `squares`: room for the row's.
DEVICE Activations put_row(const Context& step, const Product& product, float* squares) {
    u32 cols = product.cols, blocks = (cols + 255) / 256, warp = warp_index();
    Activations to = forms_at(step.work, cols, product.forms & 1, product.forms & 2, product.forms & 4);
    Source from = product.row;
#if HAS_DELTA
    if (product.head_gamma) {
        float* row = step.slots;
        delta::Norm norm = {nullptr, nullptr, row, product.head_eps};
        delta::Factors gamma = delta::load_factors(product.head_gamma);
        // The sums of the phase before lie where the row does.
        sync_threads();
#pragma unroll 1
        for (u32 head = warp; head < HV; head += BLOCK_WARPS) {
            delta::Factors answers, z;
            take_strided(step.waiting, product.z, head * DV, (head + 1) * DV, z.of);
            take_strided(step.waiting, product.row, head * DV, (head + 1) * DV, answers.of);
            delta::norm_head(norm, head, answers, gamma, z);
        }
        sync_threads();
        from = {row, 0};
    }
#endif
    RowOf gamma = {product.gamma, cols, true};
    float v[OWN], factors[OWN], inverse = 1.0f;
    u32 last = NONE;
    // Rows have whole eights of values, lanes behind the end none.
    auto take = [&](u32 block) {
        if (block == last) return;
        last = block;
        u32 first = 256 * block + OWN * lane_index();
        if (first < cols) take_run(step.waiting, from, first, v);
        else
            for (u32 i = 0; i < OWN; i++) v[i] = 0.0f;
    };
    if (product.gamma) {
        load_block(gamma, warp, factors);
#pragma unroll 1
        for (u32 block = warp; block < blocks; block += BLOCK_WARPS) {
            take(block);
            put_squares(squares, block, v);
        }
        sync_threads();
        inverse = inverse_norm(squares, cols, product.eps);
    }
#pragma unroll 1
    for (u32 block = warp; block < blocks; block += BLOCK_WARPS) {
        take(block);
        if (product.gamma) {
            if (block != warp) load_block(gamma, block, factors);
            norm(v, inverse, factors);
        }
        put_forms(to, 0, cols, block, false, v);
        // They are used up.
        last = NONE;
    }
    sync_threads();
    return to;
}

// A matrix's inputs that have no place in a slice give no piece.
DEVICE bool has_slice(u32 slice, u32 cols) {
    u32 blocks = (cols + 255) / 256;
    return slice * blocks / SLICES < (slice + 1) * blocks / SLICES;
}
// A matrix's sum for a row of sixteen `place` of those whose sums are there, slices in their order.
DEVICE float sum_of(const float* slots, u32 cols, u32 r) {
    float parts[SLICES];
#pragma unroll
    for (u32 k = 0; k < SLICES; k++) parts[k] = has_slice(k, cols) ? slots[k * TILE_ROWS + r] : 0.0f;
#pragma unroll
    for (u32 width = 1; width < SLICES; width *= 2)
#pragma unroll
        for (u32 k = 0; k < SLICES; k += 2 * width) parts[k] += parts[k + width];
    return parts[0];
}
DEVICE float output_of(const float* slots, const Product& product, u32 place, u32 r) {
    constexpr u32 OF_MATRIX = SLICES * TILE_ROWS;
    if (!product.gated) return sum_of(slots + place * OF_MATRIX, product.cols, r);
    return silu(sum_of(slots + 2 * place * OF_MATRIX, product.cols, r)) * sum_of(slots + (2 * place + 1) * OF_MATRIX, product.cols, r);
}

DEVICE void multiply(const Context& step, const Product& product, u32 number, Share share, PieceRing& ring, const Stages& stages, u32& which, float* squares) {
    if (share.count == 0) return;
    Activations x = put_row(step, product, squares);
#pragma unroll 1
    for (u32 first = 0; first < share.count; first += product.round) {
        u32 count = smaller(product.round, share.count - first);
        // Those that write, the last ones, have nothing else to wait for: what they add to came long before.
        u32 mine = BLOCK_THREADS - 1 - thread_index();
        u64 before = 0;
        auto place_of = [&](u32 at, u32& output) {
            u32 sixteen = share.first + first + at / TILE_ROWS;
            output = 0;
            while (output + 1 < product.num_outputs && sixteen >= product.outputs[output + 1].first_sixteen) output++;
            return (sixteen - product.outputs[output].first_sixteen) * TILE_ROWS + at % TILE_ROWS;
        };
        bool adds = product.add.at != nullptr;
        if (adds && product.add.number != 0 && mine < count * TILE_ROWS) {
            u32 output, row = place_of(mine, output);
            // Looked at later.
            if (row < product.outputs[output].rows) before = load_word(static_cast<const u64*>(product.add.at) + row);
        }
        Sums sums;
        for (bool is_last = false; !is_last;) {
            Vec4u piece = wait_for(which, ring, stages);
            is_last = (piece.w & ENDS_ROUND) != 0;
            if (piece.w & BEGINS_SLICE) sums[0][0] = sums[0][2] = 0.0f;
            const u8* tiles = stages.bytes + ring.slot * STAGE_BYTES;
            if (tiles_of(piece) > 0) visit_type<MultiplyPiece>(piece.w >> 16 & 31, piece, tiles, x, sums);
            if ((piece.w & ENDS_SLICE) && lane_index() % 4 == 0) {
                float* slot = step.slots + (piece.w & 0xffff) * TILE_ROWS + lane_index() / 4;
                slot[0] = sums[0][0];
                slot[8] = sums[0][2];
            }
            Vec4u next = stages.next[ring.slot];
            ring.has_read();
            bring(next, which + STAGES, ring, stages);
            ring.skip(BLOCK_WARPS);
            which += BLOCK_WARPS;
        }
        sync_threads();
        for (u32 at = mine; at < count * TILE_ROWS; at += BLOCK_THREADS) {
            u32 output, row = place_of(at, output);
            if (row >= product.outputs[output].rows) continue;
            float value = output_of(step.slots, product, at / TILE_ROWS, at % TILE_ROWS);
            if (adds) {
                bool has_come = at == mine && product.add.number != 0 && (u32)(before >> 32) == step.waiting.epoch + (u32)product.add.number;
                value = (has_come ? bits_to_f32((u32)before) : take_one(step.waiting, product.add, row)) + value;
            }
            put(product.outputs[output].to, row, value, step.waiting.epoch + number);
        }
        // The next sums take their place.
        if (first + product.round < share.count) sync_threads();
    }
}

#if HAS_DELTA
// Columns of a head that a block walks with, those of one warp.
constexpr u32 STRIP = 16, STRIPS = DV / STRIP;
constexpr u32 WALKER = 4;
static_assert(BLOCK_WARPS > WALKER, "warps that prepare and one that walks");
struct DeltaShared {
    delta::Staged<DV> staged;
};

// A part of a row, convolved: what is before it is plain, it comes itself as words.
template <u32 DIM> DEVICE void prepare(const Context& step, const Delta& layer, u32 channel, float length, float* to) {
    constexpr u32 VALUES = (DIM + LANES - 1) / LANES;
    delta::HeadTaps<DIM> weights, values;
    delta::load_weights(weights, layer.conv_weight, channel, DIM);
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) {
        u32 at = lane_index() + j * LANES;
        const float* from = layer.history + (u64)step.segment.state_index * delta::KEPT_ROWS * delta::CHANNELS + channel + at;
#pragma unroll
        for (u32 tap = 0; tap < delta::KEPT_ROWS; tap++) values.of[j][tap] = at < DIM ? from[tap * delta::CHANNELS] : 0.0f;
    }
    float now[VALUES];
    take_strided(step.waiting, layer.qkv, channel, channel + DIM, now);
#pragma unroll
    for (u32 j = 0; j < VALUES; j++) values.of[j][delta::KEPT_ROWS] = now[j];
    delta::prepare_head(weights, values, DIM, length, to);
}

DEVICE void walk(const Context& step, const Delta& layer, u32 number, u32 unit, DeltaShared& shared) {
    u32 head = unit / STRIPS, strip = unit % STRIPS, key_head = head % HK, warp = warp_index(), lane = lane_index();
    u32 column = strip * STRIP + lane / 8 * 4;
    float* committed = layer.states + ((u64)step.segment.state_index * HV + head) * DK * DV + column;
    auto& staged = shared.staged;
    // Each with its own way through the barrier: registers are for what a warp has to do.
    if (warp == WALKER) {
        delta::State<4> state;
        delta::load_state(state, committed);
        sync_threads();
        float answer = delta::whole(delta::advance<true, true>(state, staged, strip));
        if (lane % 8 < 4) put(layer.out, head * DV + column + lane % 4, answer, step.waiting.epoch + number);
        delta::store_state(state, committed);
    } else {
        if (warp == 0) {
            if (DK / 4 + lane < delta::KEYS / 4) staged.q[DK / 4 + lane] = {};
            prepare<DK>(step, layer, key_head * DK, layer.q_scale, reinterpret_cast<float*>(staged.q));
        } else if (warp == 1) {
            if (DK / 4 + lane < delta::KEYS / 4) staged.k[DK / 4 + lane] = {};
            prepare<DK>(step, layer, (HK + key_head) * DK, 1.0f, reinterpret_cast<float*>(staged.k));
        } else if (warp == 2) {
            prepare<DV>(step, layer, 2 * HK * DK + head * DV, 0.0f, reinterpret_cast<float*>(staged.v));
        } else if (warp == 3 && lane == 0) {
            float a = layer.a[head], dt_bias = layer.dt_bias[head];
            float alpha = take_one(step.waiting, layer.alpha, head), beta = take_one(step.waiting, layer.beta, head);
            Vec2f gates = delta::prepare_gates(alpha, beta, a, dt_bias);
            staged.gates.x = gates.x, staged.gates.y = gates.y;
        }
        sync_threads();
    }
    // The next phase, or unit, takes the place of what is staged.
    sync_threads();
}

DEVICE void move_history(const Context& step, const Move& move) {
    u32 blocks = move.blocks, block = (block_x() + grid_x() - move.first) % grid_x();
    u32 of_block = (delta::CHANNELS + blocks - 1) / blocks, first = block * of_block;
    if (block >= blocks) return;
    // By the last warps, for the first ones have rows to wait for.
    for (u32 i = BLOCK_THREADS - 1 - thread_index(); i < of_block && first + i < delta::CHANNELS; i += BLOCK_THREADS) {
        float* history = move.history + (u64)step.segment.state_index * delta::KEPT_ROWS * delta::CHANNELS + first + i;
        float values[delta::KEPT_ROWS + 1];
#pragma unroll
        for (u32 tap = 1; tap < delta::KEPT_ROWS; tap++) values[tap] = history[tap * delta::CHANNELS];
        values[delta::KEPT_ROWS] = take_one(step.waiting, move.qkv, first + i);
        take_one(step.waiting, move.after, 0);
#pragma unroll
        for (u32 tap = 0; tap < delta::KEPT_ROWS; tap++) history[tap * delta::CHANNELS] = values[tap + 1];
    }
}
#endif

#if HAS_ATTENTION
// Of a group of warps.
struct AttendShared {
    float q[GROUP][HEAD_DIM];
    float key[HEAD_DIM];
    Vec4u at[attention::SPLIT / 4];
    attention::Places seen;
    u32 unused[2];
    // Queries, then weights.
    u8 columns[TILES * 8 * (attention::Q_PITCH > attention::WEIGHT_PITCH ? attention::Q_PITCH : attention::WEIGHT_PITCH)];
};

// A head of the row, normed and rotated, from words to shared memory.
DEVICE void prepare_head(const Context& step, const Attend& layer, const Source& from, u32 first, const float* gamma, float* to) {
    constexpr u32 DIMS = (HEAD_DIM + LANES - 1) / LANES;
    float values[DIMS];
    take_strided(step.waiting, from, first, first + HEAD_DIM, values);
#pragma unroll
    for (u32 i = 0; i < DIMS; i++)
        if (lane_index() + i * LANES < HEAD_DIM) to[lane_index() + i * LANES] = values[i];
    sync_warp();
    attention::HeadArgs args = {gamma, layer.turns, layer.eps, layer.pairs, layer.adjacent};
    attention::prepare_head<HEAD_DIM>(to, to, args, (u64)step.segment.first_position + step.row.place);
    if constexpr (attention::ROTATES_KEYS) {
#pragma unroll
        for (u32 i = 0; i < DIMS; i++) values[i] = lane_index() + i * LANES < HEAD_DIM ? to[lane_index() + i * LANES] : 0.0f;
        attention::rotate(values, false);
#pragma unroll
        for (u32 i = 0; i < DIMS; i++)
            if (lane_index() + i * LANES < HEAD_DIM) to[lane_index() + i * LANES] = values[i];
    }
    sync_warp();
}
// The row's own key and value, into the cache.
DEVICE void keep(const Context& step, const Attend& layer, u32 kv_head, float* key) {
    constexpr u32 DIMS = (HEAD_DIM + LANES - 1) / LANES;
    float values[DIMS];
    prepare_head(step, layer, layer.k, kv_head * HEAD_DIM, layer.k_gamma, key);
    u64 page = (u64)page_of(step.tables, step.segment, step.row.slot) * layer.num_kv_heads + kv_head;
    u32 token = step.row.slot % PAGE_TOKENS;
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) values[i] = lane_index() + i * LANES < HEAD_DIM ? key[lane_index() + i * LANES] : 0.0f;
    attention::store_row<K_TYPE, true>(static_cast<attention::KeyUnit*>(layer.cache_k) + page * attention::KeyFormat::PAGE_UNITS, token, values);
    take_strided(step.waiting, layer.v, kv_head * HEAD_DIM, (kv_head + 1) * HEAD_DIM, values);
    attention::store_row<V_TYPE, false>(static_cast<attention::ValueUnit*>(layer.cache_v) + page * attention::ValueFormat::PAGE_UNITS, token, values);
}

DEVICE void attend(const Context& step, const Attend& layer, u32 number, u32 kv_head, u32 split, AttendShared& shared) {
    attention::Places seen = attention::seen_of_split(step.row, 0, 1, split);
    bool has_own = step.row.slot / attention::SPLIT == split;
#pragma unroll 1
    for (u32 head = group_warp(); head < GROUP + has_own; head += ATTENDING) {
        if (head < GROUP) prepare_head(step, layer, layer.q, (kv_head * GROUP + head) * layer.q_stride, layer.q_gamma, shared.q[head]);
        else keep(step, layer, kv_head, shared.key);
    }
    if (group_thread() == 0) shared.seen = seen;
    sync_group();
    attention::AttendArgs args = {};
    // Heads are counted from the first one.
    args.q = shared.q[0] - (u64)kv_head * GROUP * HEAD_DIM;
    args.q_stride = HEAD_DIM;
    args.k = layer.cache_k;
    args.v = layer.cache_v;
    // The row and its segment are at hand.
    args.tables = step.tables;
    args.tables.rows = &step.row;
    args.tables.segments = &step.segment - step.row.segment;
    args.partials = layer.partials;
    args.sums = layer.sums;
    args.num_heads = layer.num_heads;
    args.num_kv_heads = layer.num_kv_heads;
    args.num_splits = layer.num_splits;
    attention::Block block = {};
    block.rows = 1;
    block.split = split;
    block.first = split * attention::SPLIT;
    block.kv_head = kv_head;
    block.seen = seen;
    block.at = reinterpret_cast<u32*>(shared.at);
    block.q = shared.columns;
    block.rows_seen = &shared.seen;
    attention::attend_rows(args, block, false);
    sync_group();
    if (group_thread() == 0) store_release(layer.done + kv_head * layer.num_splits + split, step.waiting.epoch + number);
}
DEVICE void attend_all(const Context& step, const Attend& layer, u32 number, AttendShared* shared) {
    attention::Places splits = attention::splits_of(attention::seen_by(step.row, 0, 1));
    u32 count = splits.end - splits.first, group = warp_index() / ATTENDING, units = count * layer.num_kv_heads;
#pragma unroll 1
    for (u32 unit = block_x() + grid_x() * group; unit < units; unit += grid_x() * ATTENDING_GROUPS)
        attend(step, layer, number, unit % layer.num_kv_heads, splits.first + unit / layer.num_kv_heads, shared[group]);
}

// As combine.cu does it: a warp is a member, a lane has four dims.
constexpr u32 QUADS = HEAD_DIM / 4, RUNS = (QUADS + LANES - 1) / LANES;
struct CombineShared {
    attention::Mixed parts[attention::MEMBERS][LANES];
};
DEVICE void combine(const Context& step, const Combine& layer, u32 number, u32 unit, CombineShared& shared) {
    u32 head = unit / RUNS, quad = unit % RUNS * LANES + lane_index(), kv_head = head / layer.heads_of_key;
    attention::Places splits = attention::splits_of(attention::seen_by(step.row, 0, 1));
    const u32* done = layer.done + kv_head * layer.num_splits;
    for (u32 s = splits.first + thread_index(); s < splits.end; s += BLOCK_THREADS) {
        u32 looks = 0;
        while (load_acquire(done + s) != step.waiting.epoch + layer.number && keeps_waiting(step.waiting, looks)) {}
    }
    sync_threads();
    bool is_used = quad < QUADS;
    const Vec2f* sums = layer.sums + (u64)head * layer.num_splits;
    const Vec4f* partials = reinterpret_cast<const Vec4f*>(layer.partials + (u64)head * layer.num_splits * HEAD_DIM) + (is_used ? quad : 0);
    float top = -1e30f;
    for (u32 s = splits.first + lane_index(); s < splits.end; s += LANES) top = larger(top, sums[s].x);
    top = warp_max(top);
#pragma unroll 1
    for (u32 member = warp_index(); member < attention::MEMBERS; member += BLOCK_WARPS) {
        attention::Mixed mixed = {};
#pragma unroll 4
        for (u32 s = splits.first / attention::MEMBERS * attention::MEMBERS + member; s < splits.end; s += attention::MEMBERS)
            if (s >= splits.first) attention::add_split(mixed, exp2_fast(sums[s].x - top), sums[s].y, partials[(u64)s * QUADS]);
        shared.parts[member][lane_index()] = mixed;
    }
    sync_threads();
    if (warp_index() == 0 && is_used) {
        attention::Mixed mixed = shared.parts[0][lane_index()];
        for (u32 m = 1; m < attention::MEMBERS; m++) {
            const attention::Mixed& part = shared.parts[m][lane_index()];
            attention::add_split(mixed, 1.0f, part.total, part.sum);
        }
        float values[4] = {mixed.sum.x, mixed.sum.y, mixed.sum.z, mixed.sum.w}, gates[4];
        if (layer.q.at) take_run(step.waiting, layer.q, head * layer.q_stride + HEAD_DIM + quad * 4, gates);
        for (u32 i = 0; i < 4; i++) {
            float value = divide(values[i], mixed.total);
            if (layer.q.at) value *= sigmoid(gates[i]);
            put(layer.out, head * HEAD_DIM + quad * 4 + i, value, step.waiting.epoch + number);
        }
    }
    sync_threads();
}
#endif

KERNEL_AHEAD(step, StepArgs, BLOCK_THREADS, 1) {
    let_next_start();
    DYNAMIC_SHARED(shared);
    SHARED float squares[SQUARES];
    SHARED u64 barriers[PieceRing::BARRIER_BYTES / 8];
    // Phases and the block's shares of them, the step, what phases work with, sums of products, the ring.
    Phase* phases = reinterpret_cast<Phase*>(shared);
    Share* shares = reinterpret_cast<Share*>(phases + args.num_phases);
    Context& step = *reinterpret_cast<Context*>(shared + args.fixed_bytes - CONTEXT_BYTES);
    u8* work = shared + args.fixed_bytes;
    u8* rings = work + args.work_bytes + args.slot_bytes;
    Vec4u* of_stages = reinterpret_cast<Vec4u*>(rings + STAGES * STAGE_BYTES);
    Stages stages = {rings, of_stages, of_stages + STAGES, args.pieces + args.first_piece[block_x()]};
    PieceRing ring(reinterpret_cast<u8*>(barriers), BLOCK_WARPS);
    // Weights are nobody's result. A stage is filled anew by the warp that has read it.
    for (u32 i = thread_index(); i < STAGES; i += BLOCK_THREADS) stages.pieces[i].x = 0;
    sync_threads();
    for (u32 stage = warp_index(); stage < STAGES; stage += BLOCK_WARPS) {
        PieceRing first = ring;
        first.skip(stage);
        bring(stages.list[stage], 1 + stage, first, stages);
    }
    // This warp's next one.
    u32 which = 1 + warp_index();
    ring.skip(warp_index());
    for (u32 i = thread_index(); i < args.num_phases * (PHASE_BYTES / 16); i += BLOCK_THREADS)
        reinterpret_cast<Vec4u*>(phases)[i] = reinterpret_cast<const Vec4u*>(args.phases)[i];
    for (u32 i = thread_index(); i < args.num_phases; i += BLOCK_THREADS) shares[i] = args.shares[(u64)block_x() * args.num_phases + i];
    wait_for_inputs();
    if (thread_index() == 0) {
        Row row = args.tables.rows[0];
        step = {{args.epoch, args.is_stuck}, args.tables, row, args.tables.segments[row.segment], work, reinterpret_cast<float*>(work + args.work_bytes)};
    }
    sync_threads();
#pragma unroll 1
    for (u32 p = 0; p < args.num_phases; p++) {
        const Phase& phase = phases[p];
        if (phase.kind == PRODUCT) multiply(step, phase.product, phase.number, shares[p], ring, stages, which, squares);
#if HAS_DELTA
        else if (phase.kind == DELTA) {
            sync_threads();
            for (u32 unit = block_x(); unit < HV * STRIPS; unit += grid_x())
                walk(step, phase.delta, phase.number, unit, *reinterpret_cast<DeltaShared*>(work));
        } else if (phase.kind == MOVE) move_history(step, phase.move);
#endif
#if HAS_ATTENTION
        else if (phase.kind == ATTEND) {
            sync_threads();
            attend_all(step, phase.attend, phase.number, reinterpret_cast<AttendShared*>(work));
            sync_threads();
        } else if (phase.kind == COMBINE) {
            sync_threads();
            for (u32 unit = block_x(); unit < phase.combine.num_heads * RUNS; unit += grid_x())
                combine(step, phase.combine, phase.number, unit, *reinterpret_cast<CombineShared*>(work));
        }
#endif
    }
}
#endif
