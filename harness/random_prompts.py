"""Random prompts for a long time: does every answer come, and is it the same each time?

    python3 harness/random_prompts.py --seconds 1800 --model FILE --flag=--target-device=cuda:0 --flag=--decode-path=megakernel

Prompts are random token ids of random lengths; answers have random lengths, greedy or drawn with a seed. Each is asked for twice, by
different streams and at different times, and has to be the same. Some are broken off. An answer that says nothing for a minute is a
standstill. Standard library only.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections import Counter

from stack import BINARY, Stack

STALL_SECONDS = 60
SHARE_BROKEN_OFF = 0.1
SHARE_GREEDY = 0.7
# Answers that still have to come a second time.
MOST_OPEN = 64


class Failure(Exception):
    pass


def draw(source, options):
    """A request; mostly short, for decoding is what is looked at."""
    length = source.choice([1, 2, 17, source.randrange(1, 200), source.randrange(1, options.longest)])
    greedy = source.random() < SHARE_GREEDY
    return {
        "prompt": [source.randrange(options.vocabulary) for _ in range(length)],
        "max_tokens": source.choice([1, 2, 16, 17, source.randrange(1, 100), source.randrange(1, 600)]),
        "temperature": 0 if greedy else 1.0,
        "top_k": source.choice([0, 20]),
        "seed": source.randrange(1 << 30),
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class Work:
    """Requests, each handed out twice."""

    def __init__(self, options):
        self.lock, self.options, self.source = threading.Lock(), options, random.Random(options.seed)
        self.answered, self.count, self.wrong = [], Counter(), []

    def next(self):
        with self.lock:
            again = len(self.answered) >= MOST_OPEN or (self.answered and self.source.random() < 0.5)
            if again:
                return self.answered.pop(self.source.randrange(len(self.answered)))
            return draw(self.source, self.options), None

    def done(self, request, expected, got):
        with self.lock:
            self.count["answers"] += 1
            self.count["tokens"] += got[1]
            if expected is None:
                self.answered.append((request, got))
            elif expected != got:
                self.wrong.append(f"{len(request['prompt'])} ids, {request['max_tokens']} tokens: {expected!r} and then {got!r}")

    def failed(self, request, error):
        with self.lock:
            self.wrong.append(f"{len(request['prompt'])} ids, {request['max_tokens']} tokens: {type(error).__name__}: {error}")


def ask(stack, request, breaks_off):
    """Text and number of tokens; None where it was broken off."""
    connection = http.client.HTTPConnection(stack.host, stack.port, timeout=STALL_SECONDS)
    try:
        connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
        text, tokens = "", 0
        for line in connection.getresponse():
            if line == b"data: [DONE]\n":
                return text, tokens
            if not line.startswith(b"data: "):
                # How far a slow prompt has come is a comment.
                if line.strip() and not line.startswith(b":"):
                    raise Failure(line.decode())
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise Failure(event["error"]["message"])
            for choice in event["choices"]:
                text += choice.get("text") or ""
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if breaks_off and text:
                return None
        raise Failure("the stream ended without [DONE]")
    finally:
        connection.close()


def stream(stack, work, index, end):
    source = random.Random(f"{work.options.seed} {index}")
    while time.monotonic() < end and not work.wrong:
        request, expected = work.next()
        try:
            got = ask(stack, request, source.random() < SHARE_BROKEN_OFF)
        except (Failure, OSError, http.client.HTTPException, KeyError, ValueError) as error:
            work.failed(request, error)
            return
        if got:
            work.done(request, expected, got)
        else:
            work.count["broken off"] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--streams", type=int, default=2, help="with one, every step is of one row")
    parser.add_argument("--longest", type=int, default=2000, help="tokens of a prompt at most")
    parser.add_argument("--vocabulary", type=int, default=1000, help="ids are less than this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--model", help="GGUF file [default: the demo model]")
    parser.add_argument("--flag", action="append", default=[], help="of `tandem up`, as --flag=--name=value; may be given several times")
    options = parser.parse_args()
    work = Work(options)
    begin = time.monotonic()
    with Stack(*options.flag, binary=options.binary, model=options.model) as stack:
        end = begin + options.seconds
        threads = [threading.Thread(target=stream, args=(stack, work, index, end), daemon=True) for index in range(options.streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for what in work.wrong:
        print(f"FAIL  {what[:500]}")
    counts = ", ".join(f"{count} {name}" for name, count in sorted(work.count.items()))
    print(f"{time.monotonic() - begin:.0f} s: {counts}, {len(work.wrong)} wrong")
    sys.exit(bool(work.wrong) or not work.count["answers"])


if __name__ == "__main__":
    main()
