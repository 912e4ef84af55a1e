// Attention of a prompt's rows to the key blocks that weigh most, with matrix units.
//
// `prepare_queries` norms and rotates. `put_means` averages keys of key blocks; `take` weighs key blocks by them and
// lists, for a query block of a head, those that it takes: two passes over the means, since a row's weights are a softmax
// over all of them. `attend` goes over the pages of these key blocks with an online softmax: per row, head and key seen
// 4 D flops, and K and V of a page are read once for the 128 rows of a query block.
//
// A block of threads has a query block of one head, a warp 16 of its rows. Queries and weights are rounded to f16, sums are
// f32. Keys lie in shared memory as in their pages, [D, tokens], and values, [tokens, D]: both are lines of warpgroup.h. The
// products of a page's keys are made beside those of the values before it, and weighed meanwhile.
//
// HEAD_DIM: D, a multiple of 16 up to 128. GROUP: query heads of a key head. STAGES: pages in shared memory, two or more.
#include "tables.h"
#include "turns.h"
#include "warpgroup.h"

constexpr u32 BLOCK_TOKENS = 128, BLOCK_PAGES = BLOCK_TOKENS / PAGE_TOKENS;
constexpr u32 THREADS = 256, WARPS = THREADS / LANES, ROWS = 16, STEP = 16;
constexpr u32 DIM_STEPS = HEAD_DIM / STEP, KEY_TILES = PAGE_TOKENS / 8;
constexpr u32 KEY_BYTES = HEAD_DIM * LINE_BYTES;
constexpr u32 HALF_BYTES = PAGE_TOKENS * LINE_BYTES, VALUE_BYTES = (HEAD_DIM + LINE_COLUMNS - 1) / LINE_COLUMNS * HALF_BYTES;
constexpr u32 STEP_BYTES = STEP * LINE_BYTES;
static_assert(WARPS * ROWS == BLOCK_TOKENS && HEAD_DIM % STEP == 0 && PAGE_TOKENS == LINE_COLUMNS, "sizes");
constexpr float UNSEEN = -1e30f;

struct SparseArgs {
    // [N, H, D]
    float* q;
    // [page, Hkv, D, PAGE_TOKENS] and [page, Hkv, PAGE_TOKENS, D]
    const u16* k;
    const u16* v;
    // Mean keys, as keys of tokens in pages that follow one another.
    u16* means;
    // [query blocks, H, taken_len]: how many key blocks, and which, ascending.
    u32* taken;
    // [N, H, D]
    float* out;
    Tables tables;
    HeadArgs of_queries;
    u32 num_heads, num_kv_heads, num_rows, taken_len;
    // Of the whole prompt.
    u32 num_blocks;
    // First key blocks, and those nearest to a query block, that it takes anyway; last query blocks, which take all.
    u32 sink_blocks, near_blocks, dense_blocks;
    // 0: all are taken.
    float threshold;
};

// Grid: rows, heads by warps.
KERNEL(prepare_queries, SparseArgs, 256) {
    SHARED float heads[WARPS][HEAD_DIM];
    u32 head = block_y() * WARPS + warp_index();
    if (head >= args.num_heads) return;
    const Segment segment = args.tables.segments[0];
    float* q = args.q + ((u64)block_x() * args.num_heads + head) * HEAD_DIM;
    float* x = heads[warp_index()];
    prepare_head<HEAD_DIM>(x, q, args.of_queries, (u64)segment.first_position + segment.committed_len + block_x());
    for (u32 d = lane_index(); d < HEAD_DIM; d += LANES) q[d] = x[d];
}

DEVICE u64 head_of_page(const SparseArgs& args, u32 page, u32 kv_head) {
    return ((u64)page * args.num_kv_heads + kv_head) * PAGE_TOKENS * HEAD_DIM;
}

// A warp's sums of two keys a lane, of those that are there.
DEVICE float sum_keys(const u16* keys, u32 count) {
    u32 pair = reinterpret_cast<const u32*>(keys)[lane_index()];
    float a = lane_index() * 2 < count ? f16_to_f32((u16)pair) : 0.0f;
    float b = lane_index() * 2 + 1 < count ? f16_to_f32((u16)(pair >> 16)) : 0.0f;
    return warp_sum(a + b);
}
// Grid: key blocks of the rows, key heads.
KERNEL(put_means, SparseArgs, 256) {
    const Segment segment = args.tables.segments[0];
    u32 kv_head = block_y(), key_block = segment.committed_len / BLOCK_TOKENS + block_x();
    u32 count = smaller(args.num_rows - block_x() * BLOCK_TOKENS, BLOCK_TOKENS);
    u16* to = args.means + head_of_page(args, key_block / PAGE_TOKENS, kv_head) + key_block % PAGE_TOKENS;
    for (u32 d = warp_index(); d < HEAD_DIM; d += WARPS) {
        float sum = 0;
        for (u32 page = 0; page * PAGE_TOKENS < count; page++) {
            u32 at = page_of(args.tables, segment, (key_block * BLOCK_PAGES + page) * PAGE_TOKENS);
            sum += sum_keys(args.k + head_of_page(args, at, kv_head) + d * PAGE_TOKENS, count - page * PAGE_TOKENS);
        }
        if (lane_index() == 0) to[d * PAGE_TOKENS] = f32_to_f16(divide(sum, (float)count));
    }
}

// A warp's rows: those of its part of the query block, the last one again where there are no more.
struct Queries {
    // Fragments of two rows a lane, g and g + 8, scaled so that exponentials are powers of two.
    u32 a[DIM_STEPS][4];
    u32 row[2];
    bool is_there[2];
};
DEVICE void load_queries(Queries& queries, const SparseArgs& args, u32 first_row, u32 head) {
    u32 g = lane_index() / 4, t = lane_index() % 4;
    float scale = divide(1.44269504088896340736f, square_root((float)HEAD_DIM));
    const float* from[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 row = first_row + warp_index() * ROWS + g + i * 8;
        queries.is_there[i] = row < args.num_rows;
        queries.row[i] = smaller(row, args.num_rows - 1);
        from[i] = args.q + ((u64)queries.row[i] * args.num_heads + head) * HEAD_DIM + t * 2;
    }
#pragma unroll
    for (u32 step = 0; step < DIM_STEPS; step++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            Vec2f q = *reinterpret_cast<const Vec2f*>(from[i % 2] + step * STEP + i / 2 * 8);
            queries.a[step][i] = f32_to_halves(q.x * scale, q.y * scale);
        }
}

// Copies values, [LINES, COLUMNS], to lines.
template <u32 LINES, u32 COLUMNS> DEVICE void copy_lines(u8* to, const u16* from) {
    constexpr u32 CHUNKS = COLUMNS / 8, CHUNKS_OF_LINE = LINE_COLUMNS / 8, AT_ONCE = THREADS / CHUNKS;
    u32 first = thread_index() / CHUNKS, chunk = thread_index() % CHUNKS;
    if (THREADS % CHUNKS != 0 && first >= AT_ONCE) return;
    to += chunk / CHUNKS_OF_LINE * (LINES * LINE_BYTES);
#pragma unroll
    for (u32 i = 0; i < LINES; i += AT_ONCE) {
        u32 line = first + i;
        if (LINES % AT_ONCE != 0 && line >= LINES) break;
        copy_async(shared_place(to + place_in_lines(line, chunk % CHUNKS_OF_LINE)), from + line * COLUMNS + chunk * 8);
    }
}

// Products of a warp's rows with a page of keys: of tile n, row g in [n][0], [n][1] and row g + 8 in the others, keys
// 8 n + 2 t and the next.
typedef float Scores[KEY_TILES][4];
DEVICE void begin_scores(Scores& scores, const Queries& queries, const u8* keys) {
    GroupLines lines = lines_of_group(keys, 0);
    begin_group();
    group_mma_lines<true>(scores, queries.a[0], lines);
#pragma unroll
    for (u32 step = 1; step < DIM_STEPS; step++) group_mma_lines<false>(scores, queries.a[step], further(lines, step * STEP_BYTES));
    end_group();
}
template <u32 TILES> DEVICE void settle_all(float (&sums)[TILES][4]) {
#pragma unroll
    for (u32 n = 0; n < TILES; n++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) settle(sums[n][i]);
}
// Waits for groups but the last NEWER, whose sums these are not.
template <u32 NEWER, u32 TILES> DEVICE void wait_for(float (&sums)[TILES][4]) {
    wait_groups<NEWER>();
    settle_all(sums);
}
// Hides keys from `seen[0]` on from row g, and from `seen[1]` on from row g + 8.
DEVICE void hide(Scores& scores, const u32 (&seen)[2]) {
    u32 key = lane_index() % 4 * 2;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (n * 8 + key + i % 2 >= seen[i / 2]) scores[n][i] = 2 * UNSEEN;
}
// Over the four lanes of a row.
DEVICE float row_max(float x) {
    x = larger(x, shuffle_xor(x, 1));
    return larger(x, shuffle_xor(x, 2));
}
DEVICE float row_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
// Scores become powers of two, less the largest so far of their row. `totals`: of this lane's keys. `shrink`: what is left of
// sums before.
DEVICE void weigh(Scores& scores, float (&tops)[2], float (&totals)[2], float (&shrink)[2]) {
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float top = tops[r], total = 0;
#pragma unroll
        for (u32 n = 0; n < KEY_TILES; n++) top = larger(top, larger(scores[n][2 * r], scores[n][2 * r + 1]));
        top = row_max(top);
        shrink[r] = exp2_fast(tops[r] - top);
        tops[r] = top;
#pragma unroll
        for (u32 n = 0; n < KEY_TILES; n++)
#pragma unroll
            for (u32 i = 2 * r; i < 2 * r + 2; i++) {
                scores[n][i] = exp2_fast(scores[n][i] - top);
                total += scores[n][i];
            }
        totals[r] = fused_multiply_add(totals[r], shrink[r], total);
    }
}

// Products with the means of key blocks from `first` on, of `count`.
DEVICE void score_means(const SparseArgs& args, Scores& scores, const Queries& queries, u8* means, u32 first, u32 count, u32 kv_head) {
    sync_threads();
    copy_lines<HEAD_DIM, PAGE_TOKENS>(means, args.means + head_of_page(args, first / PAGE_TOKENS, kv_head));
    commit_copies();
    wait_copies<0>();
    show_to_groups();
    sync_threads();
    begin_scores(scores, queries, means);
    wait_for<0>(scores);
    hide(scores, {count - first, count - first});
}

// Grid: query blocks of the rows, heads. Shared memory: a page of means, then weights.
KERNEL(take, SparseArgs, 256) {
    DYNAMIC_SHARED(memory);
    // Of a page of key blocks, by warps.
    SHARED float parts[WARPS][PAGE_TOKENS];
    const Segment segment = args.tables.segments[0];
    u32 head = block_y(), kv_head = head / GROUP, lane = lane_index();
    u32 query_block = segment.committed_len / BLOCK_TOKENS + block_x(), count = query_block + 1;
    u32* taken = args.taken + ((u64)block_x() * args.num_heads + head) * args.taken_len;
    bool takes_all = args.threshold == 0 || query_block + args.dense_blocks >= args.num_blocks || count <= args.sink_blocks + args.near_blocks;
    if (takes_all) {
        for (u32 n = thread_index(); n < count; n += THREADS) taken[1 + n] = n;
        if (thread_index() == 0) taken[0] = count;
        return;
    }
    u8* means = align_lines(memory);
    float* weights = reinterpret_cast<float*>(means + KEY_BYTES);
    Queries queries;
    load_queries(queries, args, block_x() * BLOCK_TOKENS, head);
    Scores scores;
    float tops[2] = {UNSEEN, UNSEEN}, totals[2] = {0, 0}, shrink[2];
    for (u32 first = 0; first < count; first += PAGE_TOKENS) {
        score_means(args, scores, queries, means, first, count, kv_head);
        weigh(scores, tops, totals, shrink);
    }
    float shares[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) shares[r] = queries.is_there[r] ? divide(1.0f, row_sum(totals[r])) : 0.0f;
    for (u32 first = 0; first < count; first += PAGE_TOKENS) {
        score_means(args, scores, queries, means, first, count, kv_head);
#pragma unroll
        for (u32 n = 0; n < KEY_TILES; n++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float sum = exp2_fast(scores[n][i] - tops[0]) * shares[0] + exp2_fast(scores[n][i + 2] - tops[1]) * shares[1];
                for (u32 mask = 4; mask < LANES; mask *= 2) sum += shuffle_xor(sum, mask);
                if (lane < 4) parts[warp_index()][n * 8 + lane * 2 + i] = sum;
            }
        sync_threads();
        if (thread_index() < PAGE_TOKENS) {
            float sum = 0;
            for (u32 w = 0; w < WARPS; w++) sum += parts[w][thread_index()];
            weights[first + thread_index()] = sum;
        }
    }
    sync_threads();
    if (warp_index() != 0) return;
    float least = 0;
    for (u32 n = lane; n < count; n += LANES) least = larger(least, weights[n]);
    least = warp_max(least) * args.threshold;
    u32 before = 0;
    for (u32 first = 0; first < count; first += LANES) {
        u32 n = first + lane;
        bool is_taken = n < count && (n < args.sink_blocks || query_block - n < args.near_blocks || weights[n] >= least);
        u32 votes = ballot(is_taken), place = before;
        for (u32 i = 0; i < LANES; i++) {
            before += votes >> i & 1;
            if (i < lane) place += votes >> i & 1;
        }
        if (is_taken) taken[1 + place] = n;
    }
    if (lane == 0) taken[0] = before;
}

// A query block's way through the pages of the key blocks that it takes.
struct Way {
    const u32* taken;
    const u16* k;
    const u16* v;
    u32 num_pages;

    DEVICE_MEMBER Way(const SparseArgs& args, const Segment& segment, u32 block, u32 head, u32 end) {
        taken = args.taken + ((u64)block * args.num_heads + head) * args.taken_len;
        k = args.k + head_of_page(args, 0, head / GROUP);
        v = args.v + head_of_page(args, 0, head / GROUP);
        num_pages = taken[0] * BLOCK_PAGES;
        // The query block's own may have a page that nobody sees, whose values are not there.
        if (taken[taken[0]] * BLOCK_TOKENS + PAGE_TOKENS >= end) num_pages--;
    }
    // Where the keys and values of a page begin, or of any where there are no more.
    DEVICE_MEMBER u64 at(const SparseArgs& args, const Segment& segment, u32 i) const {
        i = smaller(i, num_pages - 1);
        u32 token = taken[1 + i / BLOCK_PAGES] * BLOCK_TOKENS + i % BLOCK_PAGES * PAGE_TOKENS;
        return head_of_page(args, page_of(args.tables, segment, token), 0);
    }
};
DEVICE void load_page(const Way& way, u8* to, u64 at) {
    copy_lines<HEAD_DIM, PAGE_TOKENS>(to, way.k + at);
    copy_lines<PAGE_TOKENS, HEAD_DIM>(to + KEY_BYTES, way.v + at);
    commit_copies();
}
// Scores of a page become f16, as rows to multiply values by.
typedef u32 Weights[PAGE_TOKENS / STEP][4];
DEVICE void pack(Weights& weights, const Scores& scores) {
#pragma unroll
    for (u32 step = 0; step < PAGE_TOKENS / STEP; step++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const float* two = scores[2 * step + j / 2] + j % 2 * 2;
            weights[step][j] = f32_to_halves(two[0], two[1]);
        }
}
typedef float Sums[HEAD_DIM / 8][4];
DEVICE void begin_mix(Sums& sums, const Weights& weights, const u8* values) {
    GroupLines lines = lines_of_group(values, HALF_BYTES);
    begin_group();
#pragma unroll
    for (u32 step = 0; step < PAGE_TOKENS / STEP; step++) group_mma_lines<false>(sums, weights[step], further(lines, step * STEP_BYTES));
    end_group();
}

// Grid: query blocks of the rows, heads. Shared memory: STAGES pages of keys and values.
KERNEL_RESIDENT(attend_taken, SparseArgs, 256, 1) {
    constexpr u32 STAGE_BYTES = KEY_BYTES + VALUE_BYTES;
    // With enough stages the two groups of warps take turns: one weighs while the other multiplies.
    constexpr bool TAKES_TURNS = STAGES >= 5;
    constexpr u32 AHEAD = TAKES_TURNS ? STAGES - 2 : STAGES - 1;
    DYNAMIC_SHARED(memory);
    u8* stages = align_lines(memory);
    const Segment segment = args.tables.segments[0];
    // The last ones see the most.
    u32 block = grid_x() - 1 - block_x(), head = block_y(), t = lane_index() % 4, first_row = block * BLOCK_TOKENS;
    Way way(args, segment, block, head, segment.committed_len + smaller(first_row + BLOCK_TOKENS, args.num_rows));
    // The first page of the query block's own keys, which is the last key block.
    u32 own_page = (way.taken[0] - 1) * BLOCK_PAGES;
    Queries queries;
    load_queries(queries, args, first_row, head);
    Sums sums = {};
    Scores scores;
    Weights weights;
    float tops[2] = {UNSEEN, UNSEEN}, totals[2] = {0, 0}, shrink[2];
    // Of the page that is to be loaded next.
    u64 at = way.at(args, segment, AHEAD);
    auto weigh_page = [&](u32 i) {
        if (i >= own_page) {
            u32 before = (i - own_page) * PAGE_TOKENS, seen[2];
#pragma unroll
            for (u32 r = 0; r < 2; r++) seen[r] = larger(queries.row[r] - first_row + 1, before) - before;
            hide(scores, seen);
        }
        weigh(scores, tops, totals, shrink);
    };
    // When the values of the page before are mixed.
    auto use_weights = [&] {
        wait_for<0>(sums);
        pack(weights, scores);
        // Seldom, in a long prompt.
        if (ballot(shrink[0] != 1.0f || shrink[1] != 1.0f) == 0) return;
#pragma unroll
        for (u32 n = 0; n < HEAD_DIM / 8; n++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) sums[n][j] *= shrink[j / 2];
    };
    auto load_next = [&](u32 i) {
        load_page(way, stages + (i + AHEAD) % STAGES * STAGE_BYTES, at);
        at = way.at(args, segment, i + AHEAD + 1);
    };
    for (u32 i = 0; i < AHEAD; i++) load_page(way, stages + i * STAGE_BYTES, way.at(args, segment, i));
    wait_copies<AHEAD - 1>();
    show_to_groups();
    sync_threads();
    begin_scores(scores, queries, stages);
    if (TAKES_TURNS && way.num_pages > 1) {
        wait_copies<1>();
        show_to_groups();
        if (warp_index() >= 4) pass_turn();
    }
    wait_for<0>(scores);
    weigh_page(0);
#pragma unroll 1
    for (u32 i = 0; i + 1 < way.num_pages; i++) {
        const u8* values = stages + i % STAGES * STAGE_BYTES + KEY_BYTES;
        use_weights();
        if (TAKES_TURNS) {
            wait_for_turn();
        } else {
            // With two stages nothing is free before all are done with page i - 1.
            if (STAGES == 2) {
                sync_threads();
                load_next(i);
            }
            wait_copies<0>();
            show_to_groups();
            sync_threads();
        }
        begin_scores(scores, queries, stages + (i + 1) % STAGES * STAGE_BYTES);
        begin_mix(sums, weights, values);
        if (STAGES > 2) load_next(i);
        if (TAKES_TURNS) {
            // Page i + 2 is here, and page i - 1 done with.
            wait_copies<1>();
            show_to_groups();
            if (warp_index() < 4 || i + 2 < way.num_pages) pass_turn();
        }
        wait_for<1>(scores);
        weigh_page(i + 1);
    }
    use_weights();
    begin_mix(sums, weights, stages + (way.num_pages - 1) % STAGES * STAGE_BYTES + KEY_BYTES);
    wait_for<0>(sums);
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float share = divide(1.0f, row_sum(totals[r]));
        if (!queries.is_there[r]) continue;
        float* out = args.out + ((u64)queries.row[r] * args.num_heads + head) * HEAD_DIM + t * 2;
#pragma unroll
        for (u32 n = 0; n < HEAD_DIM / 8; n++) *reinterpret_cast<Vec2f*>(out + n * 8) = {sums[n][2 * r] * share, sums[n][2 * r + 1] * share};
    }
    // What is still on its way is nobody's.
    wait_copies<0>();
}
