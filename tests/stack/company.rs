//! Many clients at once.

use std::thread;

use crate::http::{Client, Event, completion, endless};
use crate::processes::{connections, open_files, wait_until};
use crate::set::Set;

const CLIENTS: u64 = 8;
const WORDS: [&str; 8] = [
    "def merge(a, b):\n",
    "import json\n",
    "class Queue:\n",
    "for i in range(10):\n",
    "    return self.items\n",
    "# read the file\n",
    "with open(path) as f:\n",
    "assert total == 3\n",
];

/// What one client does: a prompt, and either tokens to wait for, or pieces after which it leaves.
#[derive(Debug)]
struct Visit {
    prompt: String,
    max_tokens: u32,
    leaves_after: Option<u64>,
}

/// A draw from 0 to `limit`, the end not included (SplitMix64).
fn draw(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ (bits >> 31)) % limit
}

fn visits(seed: u64) -> Vec<Visit> {
    let mut state = seed;
    let visit = |index| {
        let words = 1 + draw(&mut state, 12);
        let word = |_| WORDS[draw(&mut state, WORDS.len() as u64) as usize];
        Visit {
            prompt: (0..words).map(word).collect(),
            max_tokens: 4 + draw(&mut state, 36) as u32,
            // Some leave in each round.
            leaves_after: (index % 3 == 2).then(|| 1 + draw(&mut state, 10)),
        }
    };
    (0..CLIENTS).map(visit).collect()
}

/// All at once; the answers of those who stay.
fn round(client: &Client, visits: &[Visit]) -> Vec<Option<String>> {
    thread::scope(|scope| {
        let pay = |visit| scope.spawn(move || pay(client, visit));
        let threads: Vec<_> = visits.iter().map(pay).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn pay(client: &Client, visit: &Visit) -> Option<String> {
    let Some(pieces) = visit.leaves_after else {
        let body = completion(&visit.prompt, visit.max_tokens);
        let (text, last) = client.stream("/v1/completions", &body).rest();
        assert_eq!(last, Event::Done, "{visit:?}");
        return Some(text);
    };
    let mut stream = client.stream("/v1/completions", &endless(&visit.prompt));
    for _ in 0..pieces {
        stream.first_text();
    }
    None
}

#[test]
fn streams_in_company_equal_those_alone_the_counts_add_up_and_nothing_leaks() {
    let set = Set::start(&[]);
    let client = set.client();
    // Its connections count as open files.
    client.wait_until_attached();
    let seeds = [11, 12];
    let (mut alone, mut generated, mut requests) = (Vec::new(), 0, 0);
    for seed in seeds {
        let answer = |visit: &Visit| {
            visit.leaves_after.is_none().then(|| {
                let (text, tokens) = client.complete(&visit.prompt, visit.max_tokens);
                generated += tokens;
                requests += 1;
                text
            })
        };
        alone.push(visits(seed).iter().map(answer).collect::<Vec<_>>());
    }
    let count = |name: &str| client.metric(name, &[]) as u64;
    assert_eq!(count("tandem_generated_tokens_total"), generated);
    assert_eq!(count("tandem_worker_generated_tokens"), generated);

    let (router, worker) = (set.pid("router"), set.pid("target-worker"));
    let open = || {
        wait_until("all connections to be closed", || {
            connections(set.address) == 0
        });
        (open_files(router), open_files(worker))
    };
    let before = open();
    let mut left = 0;
    for (seed, alone) in seeds.into_iter().zip(&alone) {
        let visits = visits(seed);
        assert_eq!(&round(&client, &visits), alone, "seed {seed}");
        left += visits.iter().filter(|v| v.leaves_after.is_some()).count() as u64;
        wait_until("the worker to be idle", || {
            client.metric("tandem_worker_running_sequences", &[]) == 0.0
                && client.metric("tandem_worker_queued_requests", &[]) == 0.0
                && client.metric("tandem_answers_in_flight", &[]) == 0.0
        });
        assert_eq!(
            open(),
            before,
            "open files of router and worker, seed {seed}"
        );
    }

    // The second time those who stayed got the same tokens, those who left some more.
    let completed = 2 * requests;
    assert!(count("tandem_generated_tokens_total") >= 2 * generated + left);
    assert!(count("tandem_worker_generated_tokens") >= count("tandem_generated_tokens_total"));
    assert_eq!(count("tandem_requests_cancelled_total"), left);
    assert_eq!(count("tandem_worker_cancelled_requests"), left);
    assert_eq!(count("tandem_worker_finished_requests"), completed);
    assert_eq!(count("tandem_answers_failed_total"), 0);
    let of = |labels: &[&str]| client.metric("tandem_requests_total", labels) as u64;
    let route = "route=\"/v1/completions\"";
    assert_eq!(of(&[route, "status=\"200\""]), completed + left);
    assert_eq!(of(&[route]), completed + left);
    assert!(set.stop().success());
}
