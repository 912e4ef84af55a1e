"""An agent's loop: how long until the first token, where a long beginning stays and every turn adds a little?

    python3 harness/agent.py --tokens 4096 --turns 20

Two sets answer the same chat, one of them without a prefix cache. The texts must be the same, and from the second turn on the
first token must come within --share of the time that the whole prompt takes. Standard library only.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from soak import connect, events, send, take
from stack import BINARY, Stack

TOOL = "{name}(path: str, limit: int): looks into the files below a path and returns at most so many lines.\n"
RESULT = "Result of call {turn}: {turn} files, the first of which is src/module_{turn}.py. Say what to do next."


def count(stack, messages):
    """Tokens of a prompt."""
    return ask(stack, messages, 1)["prompt_tokens"]


def beginning(stack, tokens):
    """A system message of about so many tokens."""
    text = lambda tools: "You work on a program. You have these tools:\n" + "".join(
        TOOL.format(name=f"tool_{number}") for number in range(tools)
    )
    system = lambda tools: {"role": "system", "content": text(tools)}
    few, more = (count(stack, [system(tools)]) for tools in (10, 20))
    return system(10 + (tokens - few) * 10 // (more - few))


def ask(stack, messages, max_tokens):
    """An answer: its text, usage, and the seconds until its first token."""
    connection, said, first, usage = connect(stack), ["", ""], None, {}
    started = time.perf_counter()
    send(connection, ("/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens}))
    for event in events(connection.getresponse()):
        if take(event, said) and first is None:
            first = time.perf_counter() - started
        usage = event.get("usage") or usage
    connection.close()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {"said": said, "seconds": first, "prompt_tokens": usage["prompt_tokens"], "cached": cached}


def turns(cold, warm, options):
    """The same chat at both, turn by turn."""
    # Pages are touched and pools are awake before the first turn counts.
    messages = [beginning(cold, options.tokens)]
    ask(warm, [{"role": "user", "content": "Hello."}], 8)
    for turn in range(1, options.turns + 1):
        messages.append({"role": "user", "content": RESULT.format(turn=turn)})
        whole, rest = (ask(stack, messages, options.answer_tokens) for stack in (cold, warm))
        assert whole["cached"] == 0, whole
        row = {
            "turn": turn,
            "prompt_tokens": rest["prompt_tokens"],
            "cached_tokens": rest["cached"],
            "cold_ms": whole["seconds"] * 1e3,
            "ms": rest["seconds"] * 1e3,
            "share": rest["seconds"] / whole["seconds"],
            "same": whole["said"] == rest["said"],
        }
        yield row
        # As clients do: what was thought is no part of the history.
        messages.append({"role": "assistant", "content": rest["said"][1] or rest["said"][0]})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=BINARY)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of the system message")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--answer-tokens", type=int, default=32)
    parser.add_argument("--share", type=float, default=0.05, help="of the whole prompt's time, at most")
    parser.add_argument("flags", nargs="*", help="flags of `tandem up`, after --")
    options = parser.parse_args()
    start = lambda *flags: Stack(*options.flags, *flags, binary=options.binary)
    rows = []
    with start("--prefix-cache-slots", "0") as cold, start() as warm:
        for stack in (cold, warm):
            stack.wait_for_draft()
        for row in turns(cold, warm, options):
            rows.append(row)
            print("turn {turn:2}: {prompt_tokens} tokens, {cached_tokens} cached; first token after {ms:.0f} ms, "
                  "cold {cold_ms:.0f} ms, {share:.1%}".format(**row))
    later = sorted(row["share"] for row in rows[1:])
    summary = {"median_share": later[len(later) // 2], "largest_share": later[-1], "turns": rows}
    print(json.dumps(summary))
    wrong = [row["turn"] for row in rows if not row["same"]]
    if wrong or later[-1] > options.share:
        sys.exit(f"turns with other texts: {wrong}; largest share {later[-1]:.1%}, at most {options.share:.1%} expected")


if __name__ == "__main__":
    main()
