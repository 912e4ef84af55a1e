// From token to token of a launch: what the host asks, and what it is told. Needs what phases.h needs, and EMBED_TYPE: the type of the
// table that ids are embedded by, or NONE.
//
// The first block speaks with the host; the others wait for its word. All that a token's phases have written is there for the next
// token's, as it is for the next launch: every block says that it is done, and the first one's word follows all of those.
#pragma once
#include "likeliest.h"
#include "phases.h"
#include "values.h"

using Best = Likeliest<BLOCK_WARPS>;
// Of what a token's end works with, a word behind the keys of warps: whether the next one was asked for.
constexpr u32 IS_ASKED = Best::KEYS;

// Two tokens' numbers are as far apart as there are phases, and two more at least, for the token itself and for its end: by an odd number, so that
// tokens' rows take turns.
DEVICE u32 next_token(const StepArgs& args, u32 number) { return number + ((args.num_phases + 2) | 1); }
DEVICE u8* rows_of(const StepArgs& args, u32 number) { return args.rows + (number & 1) * (u64)args.rows_bytes; }
// Clears the next token's rows, which were those of the one before: nobody reads them any more, and its blocks begin when all have said that they are
// done with this one.
DEVICE void clear_next(const StepArgs& args, u32 number) {
    Vec4u* at = reinterpret_cast<Vec4u*>(rows_of(args, number + 1));
    for (u32 i = block_x() * BLOCK_THREADS + thread_index(); i < args.rows_bytes / sizeof(Vec4u); i += grid_x() * BLOCK_THREADS)
        at[i] = {ABSENT, ABSENT, ABSENT, ABSENT};
}

// The tables and the embedded row of the token that is asked for; all threads of the block that speaks with the host.
DEVICE void take_token(const StepArgs& args, u32* shared) {
    constexpr u32 ROW = 4, SEGMENT = ROW + sizeof(Row) / 4, STEP = SEGMENT + sizeof(Segment) / 4, END = STEP + sizeof(Step) / 4;
    static_assert(4 * END <= sizeof(Asked), "what the host writes");
    const Tables& tables = args.tables;
    u32 at = thread_index();
    if (at < END) {
        u32 word = load_far(&args.mail->asked.number + at);
        if (at >= STEP) reinterpret_cast<u32*>(const_cast<Step*>(tables.steps))[at - STEP] = word;
        else if (at >= SEGMENT) reinterpret_cast<u32*>(const_cast<Segment*>(tables.segments))[at - SEGMENT] = word;
        else if (at >= ROW) reinterpret_cast<u32*>(const_cast<Row*>(tables.rows))[at - ROW] = word;
        else shared[at] = word;
    }
    sync_threads();
    u32 id = shared[1], first_page = shared[2], num_pages = shared[3];
    for (u32 i = at; i < num_pages; i += BLOCK_THREADS) const_cast<u32*>(tables.pages)[first_page + i] = load_far(args.mail->pages + i);
    if constexpr (EMBED_TYPE != NONE) {
        const Embed& embed = args.embed;
        // An id that no table has is a mistake of the caller's; it must not read what is not there.
        if (id >= embed.rows) id = 0;
        for (u32 col = at; col < embed.cols; col += BLOCK_THREADS) embed.out[col] = value_of(EMBED_TYPE, embed.tiles, embed.tiles_per_row, id, col);
    }
    sync_threads();
}
// The block that speaks with the host.
DEVICE bool speaks() { return block_x() == 0; }

// Whether there is a token; then its inputs are there. All threads.
DEVICE bool begin_token(const StepArgs& args, const Waiting& token, u8* work) {
    u32 number = token.epoch;
    bool is_first = number == args.epoch;
    u32& said = *reinterpret_cast<u32*>(work);
    if (speaks()) {
        // Where the last token ended.
        bool begins = is_first || reinterpret_cast<const u64*>(work)[IS_ASKED] != 0;
        if (begins) take_token(args, reinterpret_cast<u32*>(work));
        if (thread_index() == 0) store_release(args.said, begins ? number : number - 1);
        // The host hears of it by a thread that has no row to look for: that takes long.
        if (begins && thread_index() == BLOCK_THREADS - 1) store_release_far(&args.mail->taken, number);
        return begins;
    }
    if (thread_index() == 0) {
        u32 looks = 0, word;
        u64 begin = nanoseconds();
        do {
            word = load_acquire(args.said);
            // The host may take so long.
            if (nanoseconds() - begin < args.patience) looks = 0;
        } while (word != number && (is_first || word != number - 1) && keeps_waiting(token, looks));
        said = word;
    }
    sync_threads();
    return said == number;
}

// The row of logits that a token ends with.
struct LastRow {
    const float* logits;
    u32 count;

    DEVICE_MEMBER LastRow(const StepArgs& args, const Phase* phases) {
        const Output& output = phases[args.num_phases - 1].product.outputs[0];
        logits = output.to.plain;
        count = output.rows;
    }

    // The largest key less than `below` among every STRIDEth of a share's from its `first` on.
    template <u32 STRIDE> DEVICE_MEMBER u64 next(const Share& share, u32 first, u64 below) const {
        return next_key<STRIDE>(logits, share.first * TILE_ROWS + first, smaller((share.first + share.count) * TILE_ROWS, count), below);
    }
};
// Says that the block is done with a token, and which of its logits are the likeliest.
DEVICE void say_end(const StepArgs& args, u32 number, const Phase* phases, u8* work) {
    // What its other threads have written.
    sync_threads();
    if (args.top_k > 0) {
        LastRow row(args, phases);
        Share share = phases[args.num_phases - 1].share;
        u64* list = args.lists + block_x() * args.listed;
        auto next = [&](u64 below) { return row.next<BLOCK_THREADS>(share, thread_index(), below); };
        Best(work).take(args.listed, next, [&](u32 n, u64 key) { list[n] = key; });
    }
    if (thread_index() == 0) store_release(args.ended + block_x(), number);
}
// Tells the host what has come of a token, and waits to be asked for the next one, if there may be one in this launch.
DEVICE void answer(const StepArgs& args, const Waiting& token, const Phase* phases, u8* work) {
    u32 number = token.epoch;
    for (u32 block = thread_index(); block < grid_x(); block += BLOCK_THREADS) {
        u32 looks = 0;
        while (load_acquire(args.ended + block) != number && keeps_waiting(token, looks)) {}
    }
    // The block's own keys have been looked at, and all others' are there.
    sync_threads();
    if (warp_index() != 0) return;
    Mail& mail = *args.mail;
    if (args.top_k > 0) {
        LastRow row(args, phases);
        auto next = [&](u32 block, u64 below) {
            return row.next<LANES>(args.shares[(u64)(block + 1) * args.num_phases - 1], lane_index(), below);
        };
        merge_lists(args.lists, grid_x(), args.listed, args.top_k, work, next, [&](u32 n, u64 key) {
            store_far(mail.ids + n, id_of(key));
            store_far(mail.values + n, f32_to_bits(logit_of(key)));
        });
    }
    if (lane_index() != 0) return;
    u32 following = next_token(args, number);
    store_release_far(&mail.answered, number);
    bool is_asked = false, may_be = number != args.last_epoch;
    u64 begin = nanoseconds();
    while (may_be && !is_asked) {
        u32 asked = load_acquire_far(&mail.asked.number);
        is_asked = asked == following;
        may_be = asked != 0 && nanoseconds() - begin < args.patience;
        let_others_run();
    }
    if (!is_asked) store_release_far(&mail.left, following);
    reinterpret_cast<u64*>(work)[IS_ASKED] = is_asked;
}
// All threads; `token` is the next one then.
DEVICE void end_token(const StepArgs& args, Waiting& token, const Phase* phases, u8* work) {
    say_end(args, token.epoch, phases, work);
    if (speaks()) answer(args, token, phases, work);
    sync_threads();
    if (thread_index() == 0) token.epoch = next_token(args, token.epoch);
    sync_threads();
}
