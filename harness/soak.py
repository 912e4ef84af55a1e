"""Many streams for a long time, with clients that leave: is every text right, and does nothing grow?

    python3 harness/soak.py --seconds 300 --streams 8

Greedy answers only, so each text is known beforehand from a run of the same request alone. A stream that is read to its
end must equal that text, and one that is broken off must be a beginning of it. Standard library only.
"""

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from stack import BINARY, SHARED_MEMORY, Stack, wait_until

CASES = [
    *(
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": limit})
        for text, limit in [
            ("Write a Python function that returns the n-th Fibonacci number.", 400),
            ("Write a function that checks whether a string is a palindrome.", 200),
            ("Write a function that sorts a list with bubble sort.", 60),
            ("Count the vowels in a string.", 120),
        ]
    ),
    *(
        ("/v1/completions", {"prompt": text, "max_tokens": limit, **more})
        for text, limit, more in [
            ("class Stack:\n    def __init__(self):\n", 150, {}),
            ("def is_prime(n):\n", 80, {"stop": ["return"]}),
            ("import os\n" * 150, 20, {}),
            ("def flatten(items):\n", 100, {"ignore_eos": True}),
        ]
    ),
]
SHARE_BROKEN_OFF = 0.3
SHARE_LEFT_EARLY = 0.1
# A connection that answers are read from to their end serves the next request with this likelihood.
SHARE_KEPT = 0.5
SETTLE_SECONDS = 15
STALL_SECONDS = 60
RSS_SHARE, RSS_BYTES = 1.05, 8 << 20
COUNTED = ("fds", "sockets", "threads", "segments")


class Failure(Exception):
    pass


def connect(stack):
    return http.client.HTTPConnection(stack.host, stack.port, timeout=STALL_SECONDS)


def send(connection, case):
    path, body = case
    body = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, **body}
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})


def events(response):
    """The JSON of each event up to [DONE], which has to come."""
    for line in response:
        if line.startswith(b"data: "):
            if line == b"data: [DONE]\n":
                response.read()
                return
            event = json.loads(line[6:])
            if "error" in event:
                raise Failure(event["error"]["message"])
            yield event
    raise Failure("the stream ended without [DONE]")


def take(event, said):
    """Adds what an event says to reasoning and content; whether it said something."""
    spoke = False
    for choice in event["choices"]:
        delta = choice.get("delta", choice)
        for index, key in enumerate(("reasoning_content", "text" if "text" in delta else "content")):
            if text := delta.get(key):
                said[index] += text
                spoke = True
    return spoke


def solo(stack, case):
    """The texts of a case, its tokens and its number of events, alone on the machine."""
    connection, said, spoke, tokens = connect(stack), ["", ""], 0, 0
    send(connection, case)
    for event in events(connection.getresponse()):
        spoke += take(event, said)
        tokens = event["usage"]["completion_tokens"] if event.get("usage") else tokens
    connection.close()
    return said, tokens, spoke


class Client(threading.Thread):
    """One stream after the other until the time is up."""

    def __init__(self, stack, expected, seed, index, end):
        super().__init__(daemon=True)
        self.stack, self.expected, self.end = stack, expected, end
        # Together the clients begin with every case, and go on at random.
        self.first = index % len(CASES)
        self.random = random.Random(seed * 1000 + index)
        self.count = Counter()
        self.wrong = []
        self.first_token_ms = []
        self.gaps_ms = []

    def run(self):
        connection = None
        while time.monotonic() < self.end and not self.wrong:
            connection = connection or connect(self.stack)
            number = self.random.randrange(len(CASES)) if self.count["started"] else self.first
            try:
                connection = self.one(connection, number)
            except (Failure, OSError, http.client.HTTPException, KeyError, ValueError) as error:
                self.wrong.append(f"case {number}: {type(error).__name__}: {error}")
        if connection:
            connection.close()

    def one(self, connection, number):
        """Asks once; gives the connection back if it is to be used again."""
        said, (whole, tokens, events_alone) = ["", ""], self.expected[number]
        chance, leaves_after = self.random.random(), None
        if chance < SHARE_BROKEN_OFF:
            leaves_after = self.random.randrange(events_alone)
        start = time.monotonic()
        self.count["started"] += 1
        send(connection, CASES[number])
        if chance > 1 - SHARE_LEFT_EARLY:
            # Perhaps before the request has been read.
            time.sleep(self.random.random() * 0.05)
            self.count["left before the answer"] += 1
            return self.leave(connection)
        response = connection.getresponse()
        if response.status == 429:
            # There may be more clients than places, for a moment also those of clients that have left.
            response.read()
            self.count["refused"] += 1
            time.sleep(float(response.headers["retry-after"]))
            return connection
        if response.status != 200:
            raise Failure(f"status {response.status}: {response.read().decode()}")
        spoke = 0
        for event in events(response):
            if take(event, said):
                now = time.monotonic()
                if spoke:
                    self.gaps_ms.append((now - last) * 1000)
                else:
                    self.first_token_ms.append((now - start) * 1000)
                last = now
                spoke += 1
            if spoke == leaves_after:
                self.check(all(w.startswith(s) for s, w in zip(said, whole)), number, said)
                self.check(not said[1] or said[0] == whole[0], number, said)
                self.count["broken off"] += 1
                self.count["tokens"] += spoke
                return self.leave(connection)
            if event.get("usage"):
                self.check(event["usage"]["completion_tokens"] == tokens, number, event["usage"])
                self.count["tokens"] += tokens
        self.check(said == whole, number, said)
        self.count["complete"] += 1
        if self.random.random() < SHARE_KEPT:
            return connection
        connection.close()
        return None

    def check(self, holds, number, found):
        if not holds:
            raise Failure(f"found {found!r}, alone it is {self.expected[number]!r}")

    def leave(self, connection):
        """Closes politely, or with a reset."""
        if self.random.random() < 0.5:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def look(stack):
    """Memory of its own, descriptors, sockets, threads and segments of shared memory of each process."""
    found = {}
    for part, pid in stack.pids.items():
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        links = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                links.append(os.readlink(link))
            except FileNotFoundError:
                continue
        # Without the pages of segments: those are as many as the segments are large, and become resident when a ring first goes around,
        # which takes as many rounds as it takes.
        resident, shared = (int(status[name].split()[0]) << 10 for name in ("VmRSS", "RssShmem"))
        found[part] = {
            "rss": resident - shared,
            "fds": len(links),
            "sockets": sum(link.startswith("socket:") for link in links),
            "threads": int(status["Threads"]),
            "segments": len(mapped(pid)),
        }
    return found


def mapped(pid):
    """Names of the segments of shared memory that a process maps, whether they still lie there or not."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    names = (line.partition(f"{SHARED_MEMORY}/")[2] for line in lines)
    return {name.removesuffix(" (deleted)") for name in names if name}


def check_shared_memory(stack, check):
    """Target and draft share the segments of their channels, and nobody else maps any."""
    by_part = {part: mapped(pid) for part, pid in stack.pids.items()}
    ends = [by_part.pop(part, set()) for part in ("target-worker", "draft-worker")]
    foreign = [name for name in ends[0] if not name.startswith(stack.segment_prefix)]
    holds = ends[0] == ends[1] and not foreign and not any(by_part.values())
    check("target and draft map their channels, nobody maps else", holds, f"{len(ends[0])} segments")
    check("no segment has a name any more", not stack.segments(), stack.segments() or "none")


def soak(stack, options, checks):
    """Runs the load and puts down what came out: facts, and samples over time."""

    def check(name, holds, fact):
        checks.append((bool(holds), name, fact))

    has_draft = stack.wait_for_draft()
    expected = [solo(stack, case) for case in CASES]
    again = [solo(stack, case) for case in CASES]
    tokens_alone = sum(tokens for _, tokens, _ in expected)
    check("alone, twice", expected == again, f"{len(CASES)} requests, {tokens_alone} tokens")
    baseline, before = look(stack), stack.metrics()
    end = time.monotonic() + options.seconds
    clients = [Client(stack, expected, options.seed, i, end) for i in range(options.streams)]
    samples, busiest = [], 0
    for each in clients:
        each.start()
    start, pause = time.monotonic(), min(3.0, options.seconds / 40)
    while any(each.is_alive() for each in clients):
        time.sleep(pause)
        busiest = max(busiest, stack.metrics()["tandem_worker_running_sequences"])
        if time.monotonic() < end:
            samples.append(look(stack))
        assert time.monotonic() < end + STALL_SECONDS * 2, "clients hang"
    elapsed = time.monotonic() - start
    count = sum((each.count for each in clients), Counter())
    wrong = [fact for each in clients for fact in each.wrong]
    first = [ms for each in clients for ms in each.first_token_ms]
    gaps = [ms for each in clients for ms in each.gaps_ms]

    took = stack.wait_until_idle(SETTLE_SECONDS)
    check("texts", not wrong, wrong[0] if wrong else f"{count['complete']} equal, {count['broken off']} a beginning")
    check("0 running, 0 queued", True, f"{took * 1000:.0f} ms after the end")

    try:
        wait_until(lambda: grown(baseline, look(stack), COUNTED) == [], SETTLE_SECONDS, "")
    except AssertionError:
        pass
    last = look(stack)
    more = grown(baseline, last, COUNTED)
    check("descriptors, sockets, threads, segments not above the baseline", not more, "; ".join(more) or "none is")
    quarter = len(samples) // 4
    for part in baseline:
        second, fourth = (
            statistics.median(sample[part]["rss"] for sample in piece)
            for piece in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        fact = f"{second / 2**20:.1f} MiB in the second quarter, {fourth / 2**20:.1f} in the last"
        check(f"memory of the {part} is flat", fourth <= second * RSS_SHARE + RSS_BYTES, fact)
    check_shared_memory(stack, check)

    after = stack.metrics()
    delta = {name: after[name] - before.get(name, 0) for name in after}
    started, early = count["started"], count["left before the answer"]
    routes = (name for name in delta if name.startswith("tandem_requests_total") and "completions" in name)
    routed = sum(int(delta[name]) for name in routes)
    fact = f"{started} started, {early} of them left early; {routed} ended"
    check("the router saw each request", started - early <= routed <= started, fact)
    cancelled = int(delta["tandem_requests_cancelled_total"])
    # Who leaves late may find the answer complete already, in the buffers of the sockets.
    left = count["broken off"] + early
    check("cancelled at the router", cancelled <= left, f"{cancelled}, where {left} left")
    failed, refused = (int(delta[f"tandem_{name}_total"]) for name in ("answers_failed", "requests_rejected"))
    fact = f"{failed} failed, {refused} refused, which {count['refused']} clients were told"
    check("none failed, and who is refused is told", not failed and count["refused"] <= refused <= count["refused"] + early, fact)
    ended = {name: int(delta[f"tandem_worker_{name}_requests"]) for name in ("finished", "cancelled")}
    # Where a stop string was found, the router leaves the worker.
    fact = f"{routed} at the router, at the worker {ended}"
    check("the worker ended each", started - early - refused <= sum(ended.values()) <= routed - refused, fact)
    rounds, accepted, lost, late = (
        int(after[f"tandem_{name}"])
        for name in ("speculation_rounds", "speculation_accepted_tokens", "drafts_lost", "draft_timeouts")
    )
    fact = f"{rounds} rounds, {accepted} draft tokens accepted, {late} proposals late, {lost} drafts lost"
    check("the draft was used and stayed" if has_draft else "no draft", bool(rounds) == has_draft and not lost, fact)
    worker, router = (int(delta[f"tandem_{name}"]) for name in ("worker_generated_tokens", "generated_tokens_total"))
    fact = f"clients {count['tokens']}, router {router}, worker {worker}"
    check("tokens: clients <= router <= worker", count["tokens"] <= router <= worker, fact)
    return {
        "seconds": round(elapsed, 1),
        "streams": options.streams,
        "seed": options.seed,
        **{name.replace(" ", "_"): number for name, number in sorted(count.items())},
        "worker_tokens": worker,
        "worker_tokens_per_second": round(worker / elapsed, 1),
        "most_running": int(busiest),
        "first_token_ms": percentiles(first),
        "between_events_ms": percentiles(gaps),
        "baseline": baseline,
        "rounds": rounds,
        "peak": {part: {key: max(s[part][key] for s in samples) for key in baseline[part]} for part in baseline},
        "last": last,
    }


def percentiles(values):
    values = sorted(values)
    return {f"p{p}": round(values[len(values) * p // 100], 1) for p in (50, 90, 99) if values}


def grown(before, after, keys):
    return [
        f"{part}: {key} {before[part][key]} -> {after[part][key]}"
        for part in before
        for key in keys
        if after[part][key] > before[part][key]
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--parallel", type=int, default=8, help="sequences that the set decodes at a time; the others wait")
    parser.add_argument("--prefix-cache-slots", type=int, default=32, help="prefixes that the target keeps; memory grows until they are taken")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of requests and of who leaves when")
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--model", help="GGUF file [default: the demo model]")
    options = parser.parse_args()
    checks = []
    flags = ["--parallel", str(options.parallel), "--prefix-cache-slots", str(options.prefix_cache_slots)]
    with Stack(*flags, binary=options.binary, model=options.model) as stack:
        facts = soak(stack, options, checks)
        if not all(holds for holds, *_ in checks):
            print("---- end of the set's log ----\n" + stack.log_text()[-4000:])
    checks.append((True, "the set ended", "exit status 0; no process, file or segment left"))
    table(facts, checks)
    print(json.dumps({"passed": all(holds for holds, *_ in checks), **facts}))
    failed = sum(not holds for holds, *_ in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


def table(facts, checks):
    print(f"{'process':14} {'':8} {'RSS MiB':>8} {'fds':>5} {'sockets':>8} {'threads':>8} {'segments':>9}")
    for part in facts["baseline"]:
        for moment in ("baseline", "peak", "last"):
            seen = facts[moment][part]
            print(
                f"{part if moment == 'baseline' else '':14} {moment:8} {seen['rss'] / 2**20:8.1f} "
                f"{seen['fds']:5} {seen['sockets']:8} {seen['threads']:8} {seen['segments']:9}"
            )
    for name in ("first_token_ms", "between_events_ms"):
        print(f"{name}: " + ", ".join(f"{percentile} {ms}" for percentile, ms in facts[name].items()))
    for holds, name, fact in checks:
        print(f"  {'ok  ' if holds else 'FAIL'}  {name}: {fact}")


if __name__ == "__main__":
    main()
