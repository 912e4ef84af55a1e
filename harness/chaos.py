"""Harm to the draft worker while answers are written: is every text still right, and does the set recover?

    python3 harness/chaos.py --seconds 120 --streams 4

A set without speculation answers each request first; those texts count. Then a set with its draft worker gets the same
requests, several streams at a time, while that worker is killed, stopped for a while, or killed without its socket.
Every stream has to end with exactly the plain text: a draft saves time, its loss costs time, and nothing else.
Standard library only.
"""

import argparse
import bisect
import http.client
import json
import math
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import soak
from soak import Failure, connect, events, grown, look, solo, take
from stack import ROOT, Stack, descendants, role, wait_until

# Sampled answers with a seed are as fixed as greedy ones.
CASES = [
    *soak.CASES,
    *(
        (path, {**body, "max_tokens": 150, "temperature": 0.8, "seed": seed, **more})
        for seed, ((path, body), more) in enumerate(
            [
                (soak.CASES[0], {"top_p": 0.95}),
                (soak.CASES[1], {"frequency_penalty": 0.5}),
                (soak.CASES[4], {}),
                (soak.CASES[5], {"presence_penalty": 0.3, "stop": ["\n\n"]}),
            ]
        )
    ),
]
HARMS = ("kill", "stop", "kill-and-unlink")
STOP_SECONDS = (0.1, 3)
PAUSE_SECONDS = (0.5, 3)
# This share of the time the next harm does not wait until the draft is back.
SHARE_IMPATIENT = 0.25
ATTACHED = "attached"
BACK_SECONDS = 30
LOOK_SECONDS = 0.1
# What is counted after a harm.
WINDOW_SECONDS = 1.0
TOKENS = "tandem_generated_tokens_total"
PLAIN_HELP = "what is right: the texts of a set with `--speculation off`, or of the same set before any harm"


def draft_pid(stack):
    """The process of the draft worker; None while there is none."""
    for pid in descendants(stack.process.pid):
        try:
            if role(pid) == "draft-worker":
                return pid
        except (FileNotFoundError, ProcessLookupError, IndexError):
            # It ended while we looked, or has ended and waits for its parent.
            continue
    return None


def difference(found, plain):
    """Where two answers part, reasoning first."""
    for one, other in zip(found, plain, strict=True):
        if one != other:
            at = len(os.path.commonprefix([one, other]))
            return f"from character {at} on {one[at : at + 40]!r}, plain it is {other[at : at + 40]!r}"
    return "the same text"


class Client(threading.Thread):
    """One stream after the other until the time is up, each read to its end."""

    def __init__(self, stack, expected, seed, index, end):
        super().__init__(daemon=True)
        self.stack, self.expected, self.end = stack, expected, end
        self.first, self.random = index % len(CASES), random.Random(seed * 1000 + index)
        self.complete, self.tokens, self.wrong = 0, 0, []

    def run(self):
        number = self.first
        while time.monotonic() < self.end:
            try:
                self.one(number)
            except (Failure, OSError, http.client.HTTPException, KeyError, ValueError) as error:
                self.wrong.append(f"case {number}: {type(error).__name__}: {error}")
            number = self.random.randrange(len(CASES))

    def one(self, number):
        connection, said, tokens = connect(self.stack), ["", ""], 0
        try:
            soak.send(connection, CASES[number])
            response = connection.getresponse()
            if response.status != 200:
                raise Failure(f"status {response.status}: {response.read().decode()}")
            for event in events(response):
                take(event, said)
                tokens = event["usage"]["completion_tokens"] if event.get("usage") else tokens
        finally:
            connection.close()
        whole, whole_tokens, _ = self.expected[number]
        if (said, tokens) != (whole, whole_tokens):
            raise Failure(f"{tokens} tokens, plain {whole_tokens}; {difference(said, whole)}")
        self.complete += 1
        self.tokens += tokens


class Watch(threading.Thread):
    """Looks at the tokens that went out, again and again."""

    def __init__(self, stack):
        super().__init__(daemon=True)
        self.stack, self.times, self.tokens = stack, [], []
        self.done = threading.Event()

    def run(self):
        while not self.done.wait(LOOK_SECONDS):
            tokens = self.stack.metrics()[TOKENS]
            self.times.append(time.monotonic())
            self.tokens.append(tokens)

    def tokens_at(self, moment):
        """Between two looks as if tokens had come evenly; None outside of what was seen."""
        after = bisect.bisect_left(self.times, moment)
        if not 0 < after < len(self.times):
            return None
        start, end = self.times[after - 1 : after + 1]
        share = (moment - start) / (end - start)
        return self.tokens[after - 1] + share * (self.tokens[after] - self.tokens[after - 1])

    def speed_after(self, moment):
        """Tokens per second in the window that begins there."""
        first, last = self.tokens_at(moment), self.tokens_at(moment + WINDOW_SECONDS)
        return None if None in (first, last) else (last - first) / WINDOW_SECONDS


class Harm(threading.Thread):
    """Does one thing after the other to the draft worker."""

    def __init__(self, stack, kinds, seed, end):
        super().__init__(daemon=True)
        self.stack, self.kinds, self.end = stack, kinds, end
        self.random = random.Random(seed)
        self.count = Counter()
        # Of each harm: its kind, its moment, and the seconds until the draft was back; None where nobody waited.
        self.done, self.wrong = [], []

    def run(self):
        while time.monotonic() < self.end:
            time.sleep(self.random.uniform(*PAUSE_SECONDS))
            try:
                self.one(self.random.choice(self.kinds))
            except (AssertionError, Failure, OSError, http.client.HTTPException) as error:
                self.wrong.append(f"{type(error).__name__}: {error}")

    def one(self, kind):
        wait_until(lambda: draft_pid(self.stack), BACK_SECONDS, "a draft worker runs")
        pid, moment = draft_pid(self.stack), time.monotonic()
        if pid is None:
            return
        patient = self.random.random() >= SHARE_IMPATIENT
        try:
            if kind == "stop":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self.random.uniform(*STOP_SECONDS))
                # Perhaps it was given up and killed meanwhile.
                os.kill(pid, signal.SIGCONT)
            else:
                if kind == "kill-and-unlink":
                    self.count["sockets removed"] += self.unlink()
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            self.count["already gone"] += 1
        self.count[kind] += 1
        seconds = None
        if patient:
            # A stopped process may be kept or replaced; a killed one is replaced.
            wait_until(lambda: self.is_back(None if kind == "stop" else pid), BACK_SECONDS, f"attached after {kind}")
            seconds = time.monotonic() - moment
        self.done.append((kind, moment, seconds))

    def is_back(self, old):
        pid = draft_pid(self.stack)
        return pid not in (None, old) and self.stack.draft_state() == ATTACHED

    def unlink(self):
        """Removes the draft worker's socket; how many there were."""
        sockets = [path for path in Path(self.stack.runtime.name).rglob("*draft*") if path.is_socket()]
        for path in sockets:
            path.unlink(missing_ok=True)
        return len(sockets)


def plain_answers(options):
    with Stack("--speculation", "off", binary=options.binary, model=options.model) as stack:
        return [solo(stack, case) for case in CASES]


def chaos(stack, expected, kinds, options, checks):
    """Runs load and harm and puts down what came out."""

    def check(name, holds, fact):
        checks.append((bool(holds), name, fact))

    def check_in_time(name, condition, seconds, fact):
        """Whether a condition comes to hold; `fact` is asked what is the case then."""
        try:
            took = wait_until(condition, seconds, name)
            check(name, True, f"after {took:.1f} s")
        except AssertionError:
            check(name, False, fact())

    def is_attached():
        return stack.draft_state() == ATTACHED

    def state():
        return f"its state is {stack.draft_state()}, its process {draft_pid(stack)}"

    # The draft worker comes and goes; the others stay.
    stack.pids.pop("draft-worker", None)
    if kinds:
        check_in_time("draft attached at the start", is_attached, BACK_SECONDS, state)
    alone = [solo(stack, case) for case in CASES]
    expected = expected or alone
    pairs = enumerate(zip(alone, expected, strict=True))
    differ = [
        f"case {number}: {difference(one[0], other[0])}" for number, (one, other) in pairs if one[:2] != other[:2]
    ]
    tokens = sum(tokens for _, tokens, _ in expected)
    check("alone, before any harm", not differ, differ or f"{len(CASES)} requests, {tokens} tokens, all as plain")
    baseline, segments_before = look(stack), len(stack.segments())

    end = time.monotonic() + options.seconds
    clients = [Client(stack, expected, options.seed, index, end) for index in range(options.streams)]
    watch, harm = Watch(stack), Harm(stack, kinds, options.seed, end)
    working = [*clients, *([harm] if kinds else [])]
    start = time.monotonic()
    for thread in [watch, *working]:
        thread.start()
    for thread in working:
        thread.join(max(0, end - time.monotonic()) + 2 * soak.STALL_SECONDS)
        assert not thread.is_alive(), f"{type(thread).__name__} hangs"
    elapsed = time.monotonic() - start
    watch.done.set()
    watch.join()

    wrong = [fact for each in clients for fact in each.wrong]
    complete = sum(each.complete for each in clients)
    check("texts", complete and not wrong, wrong[0] if wrong else f"{complete} streams, each exactly the plain text")
    if kinds:
        check("the draft came back after each harm", harm.done and not harm.wrong, harm.wrong or dict(harm.count))
        check_in_time("draft attached at the end", lambda: harm.is_back(None), BACK_SECONDS, state)
    keys = ("fds", "sockets")
    check_in_time(
        "descriptors and sockets not above the baseline",
        lambda: not grown(baseline, look(stack), keys),
        soak.SETTLE_SECONDS,
        lambda: "; ".join(grown(baseline, look(stack), keys)),
    )
    check_in_time(
        "segments not above the baseline",
        lambda: len(stack.segments()) <= segments_before,
        soak.SETTLE_SECONDS,
        lambda: f"{segments_before} -> {len(stack.segments())}",
    )
    return {
        "seconds": round(elapsed, 1),
        "streams": options.streams,
        "seed": options.seed,
        "complete": complete,
        "mismatches": len(wrong),
        "tokens_per_second": round(sum(each.tokens for each in clients) / elapsed, 1),
        **losses(watch, harm, kinds),
    }


def losses(watch, harm, kinds):
    """What each kind of harm cost: tokens per second in the window after it, against those of windows without harm."""
    # Where nobody waited for the draft, the time of harm lasts until the next one is over.
    spans, begun = [], None
    for _, moment, seconds in harm.done:
        begun = moment if begun is None else begun
        if seconds is not None:
            spans.append((begun, moment + max(seconds, WINDOW_SECONDS)))
            begun = None
    if begun is not None:
        spans.append((begun, math.inf))
    quiet = [
        speed
        for moment in watch.times
        if not any(first - WINDOW_SECONDS < moment < last for first, last in spans)
        and (speed := watch.speed_after(moment)) is not None
    ]
    usual = statistics.median(quiet) if quiet else 0.0
    harms = {}
    for kind in kinds:
        done = [(moment, seconds) for what, moment, seconds in harm.done if what == kind]
        after = [speed for moment, _ in done if (speed := watch.speed_after(moment)) is not None]
        harms[kind] = {
            "times": len(done),
            "tokens_per_second_after": spread(after),
            "seconds_lost": spread([WINDOW_SECONDS * (1 - speed / usual) for speed in after]) if usual else None,
            "seconds_until_attached": spread([seconds for _, seconds in done if seconds is not None]),
        }
    return {"usual_tokens_per_second": round(usual, 1), "quiet_windows": len(quiet), "harms": harms}


def spread(values):
    """Smallest, median and largest."""
    if not values:
        return None
    return [round(value, 2) for value in (min(values), statistics.median(values), max(values))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1, help="of the choice of requests and of harms")
    parser.add_argument("--harm", choices=("all", *HARMS, "none"), default="all")
    parser.add_argument("--speculation", choices=("auto", "chain", "tree"), default="auto", help="of the harmed set")
    parser.add_argument("--plain", choices=("off", "solo"), default="off", help=PLAIN_HELP)
    parser.add_argument("--binary", default=ROOT / "target/release/tandem")
    parser.add_argument("--model", help="GGUF file [default: the demo models]")
    options = parser.parse_args()
    kinds = {"all": HARMS, "none": ()}.get(options.harm, (options.harm,))
    checks = []
    expected = plain_answers(options) if options.plain == "off" else None
    with Stack("--speculation", options.speculation, binary=options.binary, model=options.model) as stack:
        facts = chaos(stack, expected, kinds, options, checks)
        if not all(holds for holds, *_ in checks):
            print("---- end of the set's log ----\n" + stack.log_text()[-4000:])
    checks.append((True, "the set ended", "exit status 0; no process, file or segment left"))
    table(facts, checks)
    print(json.dumps({"passed": all(holds for holds, *_ in checks), **facts}))
    failed = sum(not holds for holds, *_ in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


def table(facts, checks):
    windows = f"median of {facts['quiet_windows']} windows without harm"
    print(f"{facts['usual_tokens_per_second']} tok/s ({windows}); smallest, median and largest after each harm:")
    for kind, cost in facts["harms"].items():
        print(f"{kind:16} {cost['times']:4} times")
        for name, values in cost.items():
            if name != "times":
                print(f"{'':16} {name.replace('_', ' '):26} {values}")
    for holds, name, fact in checks:
        print(f"  {'ok  ' if holds else 'FAIL'}  {name}: {fact}")


if __name__ == "__main__":
    main()
