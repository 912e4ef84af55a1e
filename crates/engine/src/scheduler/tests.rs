use super::*;
use Need::Prefill;

const DECODE: Need = Need::Decode { rows: 1 };

/// Shares as (sequence, rows).
fn check(needs: &[Need], chunk: usize, max_rows: usize, expected: &[(usize, usize)]) {
    let limits = StepLimits {
        max_batch_rows: max_rows,
        prefill_chunk_tokens: chunk,
    };
    let shares: Vec<_> = share_rows(needs, limits)
        .into_iter()
        .map(|share| (share.sequence, share.rows))
        .collect();
    assert_eq!(
        shares, expected,
        "{needs:?}, chunk {chunk}, {max_rows} rows"
    );
}

fn prompt(tokens: usize) -> Need {
    Prefill {
        tokens,
        position: 0,
    }
}

#[test]
fn nobody_gets_nothing() {
    check(&[], 8, 8, &[]);
}

#[test]
fn every_decoding_sequence_has_a_row_beside_any_prompt() {
    let needs = [DECODE, prompt(1000), DECODE, DECODE];
    check(&needs, 16, 64, &[(0, 1), (1, 16), (2, 1), (3, 1)]);
    check(&needs, 1000, 8, &[(0, 1), (1, 5), (2, 1), (3, 1)]);
    check(&needs, 1000, 4, &[(0, 1), (1, 1), (2, 1), (3, 1)]);
    check(&needs, 1000, 3, &[(0, 1), (2, 1), (3, 1)]);
}

#[test]
fn prompts_share_the_chunk_in_order_of_arrival() {
    let needs = [prompt(5), prompt(20), prompt(3)];
    check(&needs, 16, 64, &[(0, 5), (1, 11)]);
    check(&needs, 28, 64, &[(0, 5), (1, 20), (2, 3)]);
    check(&needs, 28, 10, &[(0, 5), (1, 5)]);
    check(&needs, 4, 64, &[(0, 4)]);
}

#[test]
fn pieces_end_with_a_page_where_they_can() {
    let at = |position, tokens| Prefill { tokens, position };
    check(&[at(0, 1000)], 128, 512, &[(0, 128)]);
    check(&[at(0, 1000)], 100, 512, &[(0, 64)]);
    check(&[at(37, 1000)], 128, 512, &[(0, 91)]);
    check(&[at(37, 1000)], 16, 512, &[(0, 16)]);
    check(&[at(53, 1000)], 16, 512, &[(0, 11)]);
    // The last piece ends where it ends, and what one leaves the next one has.
    check(&[at(37, 100)], 128, 512, &[(0, 100)]);
    check(&[at(0, 1000), at(0, 30)], 100, 512, &[(0, 64), (1, 30)]);
}

/// All small cases: no step is over its bounds, and none is empty while somebody needs rows.
#[test]
fn steps_stay_in_bounds_and_never_stall() {
    for code in 0..4usize.pow(4) {
        let needs: Vec<_> = (0..4)
            .map(|place| match code / 4usize.pow(place) % 4 {
                0 => DECODE,
                tokens => Prefill {
                    tokens: tokens * 3,
                    position: 64 - tokens,
                },
            })
            .collect();
        for (chunk, max_rows) in [(1, 4), (4, 5), (7, 30), (100, 9)] {
            let limits = StepLimits {
                max_batch_rows: max_rows,
                prefill_chunk_tokens: chunk,
            };
            let shares = share_rows(&needs, limits);
            let rows = |decode| -> usize {
                let of = shares
                    .iter()
                    .filter(|share| (needs[share.sequence] == DECODE) == decode);
                of.map(|share| share.rows).sum()
            };
            let decoding = needs.iter().filter(|need| **need == DECODE).count();
            assert_eq!(rows(true), decoding, "{needs:?}");
            assert!(rows(false) <= chunk, "{needs:?}: {shares:?}");
            assert!(
                rows(true) + rows(false) <= max_rows,
                "{needs:?}: {shares:?}"
            );
            assert!(shares.iter().all(|share| share.rows > 0) && !shares.is_empty());
        }
    }
}

#[test]
fn drafts_take_their_rows_from_prompts_only_beyond_the_chunk() {
    let limits = StepLimits {
        max_batch_rows: 32,
        prefill_chunk_tokens: 16,
    };
    assert_eq!(rows_for_drafts(&[DECODE, DECODE], limits), 30);
    assert_eq!(rows_for_drafts(&[DECODE, prompt(100)], limits), 15);
    assert_eq!(rows_for_drafts(&[DECODE, prompt(3)], limits), 28);
    check(
        &[Need::Decode { rows: 16 }, prompt(100), DECODE],
        16,
        32,
        &[(0, 16), (1, 15), (2, 1)],
    );
}
