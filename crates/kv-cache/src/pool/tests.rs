//! The pool against naive counts.

use std::collections::{BTreeSet, HashMap};

use super::*;

/// A small generator, so that a failing run can be repeated.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn random_operations_agree_with_naive_counts() {
    const PAGES: usize = 13;
    const SLOTS: usize = 5;
    let mut pool = Pool::new(PAGES, SLOTS);
    // The twin knows only (len, pages) of each live id.
    let mut twin: HashMap<SequenceId, (usize, Vec<u32>)> = HashMap::new();
    let mut dead: Vec<SequenceId> = Vec::new();
    let mut rng = Rng(7);
    let mut forks = 0;
    for _ in 0..20_000 {
        let mut ids: Vec<_> = twin.keys().copied().collect();
        ids.sort();
        let used: BTreeSet<u32> = twin.values().flat_map(|v| v.1.clone()).collect();
        let free = PAGES - used.len();
        let pick = (!ids.is_empty()).then(|| ids[rng.below(ids.len().max(1))]);
        match (rng.below(12), pick) {
            (0 | 1, _) => match pool.create() {
                Ok(id) => {
                    assert!(twin.len() < SLOTS && !dead.contains(&id));
                    twin.insert(id, (0, Vec::new()));
                }
                Err(_) => assert_eq!(twin.len(), SLOTS),
            },
            (2, Some(id)) => {
                pool.free(id).unwrap();
                twin.remove(&id);
                dead.push(id);
            }
            (3..=5, Some(id)) => {
                let extra = rng.below(200);
                let (len, held) = &twin[&id];
                let wanted = (len + extra).div_ceil(PAGE_TOKENS);
                let add = wanted.saturating_sub(held.len());
                match pool.reserve(id, extra) {
                    Ok(()) => {
                        assert!(add <= free);
                        let pages = pool.pages(id).unwrap();
                        let (old, new) = pages.split_at(held.len());
                        assert_eq!((old, new.len()), (&held[..], add));
                        assert!(new.iter().all(|page| !used.contains(page)));
                        let pages = pages.to_vec();
                        twin.insert(id, (*len, pages));
                    }
                    Err(CacheError::OutOfPages { missing, .. }) => {
                        assert_eq!(missing, add - free);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            (6, Some(id)) => {
                let n = rng.below(150);
                let (len, held) = &twin[&id];
                let fits = len + n <= held.len() * PAGE_TOKENS;
                assert_eq!(pool.advance(id, n).is_ok(), fits);
                if fits {
                    let grown = (len + n, held.clone());
                    twin.insert(id, grown);
                }
            }
            (7, Some(id)) => {
                let n = rng.below(4);
                let (len, held) = twin[&id].clone();
                assert_eq!(pool.drop_oldest(id, n).is_ok(), n <= len / PAGE_TOKENS);
                if n <= len / PAGE_TOKENS {
                    twin.insert(id, (len - n * PAGE_TOKENS, held[n..].to_vec()));
                }
            }
            (8, Some(id)) if rng.below(4) == 0 => {
                pool.clear(id).unwrap();
                twin.insert(id, (0, Vec::new()));
            }
            (9 | 10, Some(id)) => {
                let (len, held) = twin[&id].clone();
                let own = usize::from(len % PAGE_TOKENS > 0);
                match pool.fork(id) {
                    Ok(fork) => {
                        let pages = pool.pages(fork).unwrap().to_vec();
                        let (shared, rest) = pages.split_at(len / PAGE_TOKENS);
                        assert_eq!((shared, rest.len()), (&held[..shared.len()], own));
                        assert!(rest.iter().all(|page| !used.contains(page)));
                        twin.insert(fork, (len, pages));
                        forks += 1;
                    }
                    Err(CacheError::NoFreeSequence { .. }) => assert_eq!(twin.len(), SLOTS),
                    Err(CacheError::OutOfPages { .. }) => assert!(own > free),
                    Err(other) => panic!("{other}"),
                }
            }
            _ => {
                if let Some(&id) = dead.last() {
                    assert!(pool.len(id).is_err() && pool.reserve(id, 1).is_err());
                    assert!(pool.fork(id).is_err());
                }
            }
        }
        check(&pool, &twin, PAGES);
    }
    assert!(forks > 500);
}

/// Each sequence has what the twin says, and a page of several is full in all of them.
fn check(pool: &Pool, twin: &HashMap<SequenceId, (usize, Vec<u32>)>, num_pages: usize) {
    let mut holders: HashMap<u32, Vec<bool>> = HashMap::new();
    for (&id, (len, held)) in twin {
        assert_eq!(pool.len(id).unwrap(), *len);
        assert_eq!(pool.pages(id).unwrap(), held);
        for (number, &page) in held.iter().enumerate() {
            assert!((page as usize) < num_pages);
            let is_full = (number + 1) * PAGE_TOKENS <= *len;
            holders.entry(page).or_default().push(is_full);
        }
    }
    for (page, full) in &holders {
        let is_shared = full.len() > 1;
        assert!(!is_shared || full.iter().all(|full| *full), "page {page}");
        assert_eq!(pool.holders(*page), full.len());
    }
    assert_eq!(pool.free_pages(), num_pages - holders.len());
}
