//! What blocks have of phases without products; it changes no result.

use crate::gpu::megakernel::phases::Share;

/// Units that blocks take by turns.
pub(super) fn dealt(blocks: usize, units: usize) -> Vec<Share> {
    let share = |block: usize| Share {
        first: block as u32,
        count: units.saturating_sub(block).div_ceil(blocks) as u32,
    };
    (0..blocks).map(share).collect()
}

/// Channels, of which `count` blocks from `first` on have a part each.
pub(super) fn spread(blocks: usize, channels: usize, (first, count): (usize, usize)) -> Vec<Share> {
    let each = channels.div_ceil(count);
    let share = |block: usize| {
        let place = (block + blocks - first) % blocks;
        let begin = channels.min(place * each);
        Share {
            first: begin as u32,
            count: (channels - begin).min(each) as u32,
        }
    };
    (0..blocks).map(share).collect()
}

/// Attention: each block has units of one head of keys, `blocks / heads` units apart. Of the first blocks are the first units, or where they are
/// `reversed` of the last ones.
pub(super) fn attending(blocks: usize, heads: usize, reversed: bool) -> Vec<Share> {
    let share = |place: usize| {
        let first = place / heads;
        if first >= blocks / heads {
            return Share::default();
        }
        Share {
            first: first as u32,
            // One more than the head: 0 is none.
            count: (place % heads) as u32 + 1,
        }
    };
    let mut shares: Vec<_> = (0..blocks).map(share).collect();
    if reversed {
        shares.reverse();
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shares: &[Share], apart: u32) -> Vec<u32> {
        let of = |share: &Share| {
            let first = share.first;
            (0..share.count).map(move |i| first + i * apart)
        };
        let mut all: Vec<u32> = shares.iter().flat_map(of).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn each_unit_and_each_channel_is_one_blocks() {
        for units in [1, 128, 132, 300] {
            let expected: Vec<u32> = (0..units as u32).collect();
            assert_eq!(all(&dealt(132, units), 132), expected, "{units} units");
        }
        for part in [(0, 132), (64, 68), (130, 5), (7, 1)] {
            let shares = spread(132, 6144, part);
            let expected: Vec<u32> = (0..6144).collect();
            assert_eq!(all(&shares, 1), expected, "blocks {part:?}");
            let having = shares.iter().filter(|share| share.count > 0);
            assert!(having.count() <= part.1, "blocks {part:?}");
        }
    }

    #[test]
    fn each_head_of_keys_has_as_many_blocks() {
        for (blocks, heads) in [(132, 2), (132, 8), (4, 3), (5, 5)] {
            let shares = attending(blocks, heads, false);
            for head in 0..heads {
                let of_head = shares.iter().filter(|share| share.count == head as u32 + 1);
                let first: Vec<u32> = of_head.map(|share| share.first).collect();
                let expected: Vec<u32> = (0..(blocks / heads) as u32).collect();
                assert_eq!(first, expected, "head {head} of {heads}, {blocks} blocks");
            }
            let mut reversed = attending(blocks, heads, true);
            reversed.reverse();
            assert_eq!(reversed, shares);
        }
    }
}
