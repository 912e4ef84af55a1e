#!/usr/bin/env python3
"""Speculative decoding of `tandem` beside llama.cpp's own DFlash: same machine, same run, same weights, taking turns.

    cargo build --release
    pip install numpy gguf
    python3 harness/to_llama_cpp_pair.py --target target.gguf --draft draft.gguf --out target/pair
    python3 harness/compare_llama_cpp_speculative.py --llama-cpp "$(harness/build-llama-cpp)" \\
        --model target.gguf --draft draft.gguf --llama-draft target/pair/draft.gguf

Each round gives every prompt to llama.cpp without a draft and with it, and all of them to `tandem bench` in all its
modes. Answers are greedy, of one sequence, and end at the model's end of text. A speed is that of all prompts together:
their tokens over their seconds, of each prompt the median over the rounds. Behind it stand the slowest and the fastest
round. Run it on an idle machine: llama.cpp's threads spin while they wait, and fall to a tenth of their speed where
another program wants a core.

Where weights are quantised, llama.cpp's text with a draft may part from its own without one (it did in 14 of the 24
demo prompts), and another text has other rounds; the last column counts that. In F32, as the converter writes it too,
all 24 are the same.

What the seconds hold: decoding only. Loading, warm-up and the prompt are outside in both programs, but llama.cpp's
first round computes the prompt's last token. It may go on past `-n` or the end of the text by the rest of an accepted
block; those tokens count in its favour. Its sampler is cut down to taking the most likely token.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from compare_llama_cpp import ROOT, output_of

# llama-speculative-simple leaves without waiting for its log, the end of which is lost now and then.
ATTEMPTS = 5
# Without any kind of draft it refuses to run; n-grams of 1024 tokens fit no context of that size, so none are found.
NO_DRAFT = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 1024]


@dataclass
class Answer:
    """What one prompt gave: the rounds are those of the target, `text` is whatever can be compared."""

    tokens: int
    seconds: float
    rounds: float
    text: bytes | list[int]


def llama_answer(output: bytes, log: str) -> Answer:
    """The one place that knows how llama-speculative-simple reports (examples/speculative-simple)."""
    decoded = re.search(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s", log)
    accepted = re.search(r"n_accept += (\d+)", log)
    if not (decoded and accepted):
        raise ValueError("no `decoded N tokens in S seconds, speed: X t/s` or no `n_accept = N`")
    tokens, speed = int(decoded[1]), float(decoded[2])
    # Each round ends with a token of the target's own, which is not among the accepted.
    return Answer(tokens, tokens / speed, tokens - int(accepted[1]), output.strip(b"\n"))


def llama(args, prompt: str, speculation: list) -> Answer:
    command = [args.llama_cpp / "llama-speculative-simple", "-m", args.llama_model or args.model, *speculation]
    # It stops once it has more than `-n` tokens.
    command += ["-t", args.threads, "-c", args.ctx, "-n", args.n - 1, "-fit", "off"]
    command += ["--samplers", "top_k", "--top-k", 1, "--no-escape"]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".txt") as file:
        file.write(prompt)
        file.flush()
        # As binary: `-f` would drop a newline at the end.
        command = [str(part) for part in [*command, "-bf", file.name]]
        for _ in range(ATTEMPTS):
            ran = subprocess.run(command, capture_output=True)
            log = ran.stderr.decode(errors="replace")
            if ran.returncode != 0:
                raise SystemExit(f"{' '.join(command)} ended with {ran.returncode}:\n{log}")
            try:
                return llama_answer(ran.stdout, log)
            except ValueError as error:
                wrong = error
    raise SystemExit(f"the report of `{' '.join(command)}` is not understood: {wrong}; its end is\n{log[-2000:]}")


def tandem(args) -> dict[str, list[Answer]]:
    """All prompts in every mode, by the mode's name."""
    command = [args.tandem, "bench", "--model", args.model, "--draft", args.draft, "--mode", "ar,chain,tree"]
    command += ["--budget", args.budget, "--prompts", args.prompts, "-n", args.n]
    report = json.loads(output_of([*command, "--threads", args.threads, "--json"]))
    modes = {}
    for result in report["results"]:
        name = result["mode"] if result["budget"] is None else f"{result['mode']} {result['budget']}"
        modes[f"tandem {name}"] = [
            Answer(
                len(each["tokens"]),
                len(each["tokens"]) / each["tokens_per_second"],
                len(each["tokens"]) / (each["acceptance_length"] or 1),
                each["tokens"],
            )
            for each in result["prompts"]
        ]
    return modes


def speed(rounds: list[list[Answer]]) -> float:
    """Tokens per second of all prompts, each with its median over the rounds."""
    prompts = list(zip(*rounds, strict=True))
    seconds = sum(statistics.median(each.seconds for each in prompt) for prompt in prompts)
    return sum(prompt[0].tokens for prompt in prompts) / seconds


def same(one: Answer, other: Answer) -> bool:
    """Whether the shorter text is the beginning of the longer one."""
    length = min(len(one.text), len(other.text))
    return one.text[:length] == other.text[:length]


def table(rounds: list[dict[str, list[Answer]]], sorts: list[str]) -> None:
    """Markdown, a row for each mode: first llama.cpp without and with its draft, then tandem, without a draft first."""
    modes = {mode: [each[mode] for each in rounds] for mode in rounds[0]}
    alone, drafting, own_alone = list(modes)[:3]
    speeds = {mode: speed(answers) for mode, answers in modes.items()}
    names = list(dict.fromkeys(sorts))
    columns = ["mode", "tok/s", "by llama.cpp DFlash", "by llama.cpp alone", "tokens a round"]
    columns += [*(f"{name} tok/s" for name in names), "tokens", "text as without a draft"]
    print("| " + " | ".join(columns) + " |\n| --- |" + " ---: |" * (len(columns) - 1))
    for mode, answers in modes.items():
        plain = modes[alone if mode in (alone, drafting) else own_alone][0]
        each_round = [speed([one]) for one in answers]
        tokens = sum(each.tokens for each in answers[0])
        figures = [
            f"{speeds[mode]:.1f} ({min(each_round):.1f} to {max(each_round):.1f})",
            f"{speeds[mode] / speeds[drafting]:.2f}",
            f"{speeds[mode] / speeds[alone]:.2f}",
            f"{tokens / sum(each.rounds for each in answers[0]):.2f}",
        ]
        for name in names:
            kept = [index for index, sort in enumerate(sorts) if sort == name]
            figures.append(f"{speed([[one[index] for index in kept] for one in answers]):.0f}")
        equal = sum(same(one, other) for one, other in zip(answers[0], plain, strict=True))
        figures += [str(tokens), f"{equal} of {len(plain)}"]
        print("| " + " | ".join([mode, *figures]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="the target")
    parser.add_argument("-d", "--draft", type=Path, required=True, help="its draft, for tandem")
    parser.add_argument("--llama-draft", type=Path, required=True, help="the same draft in llama.cpp's dialect")
    parser.add_argument("--llama-model", type=Path, help="the target for llama.cpp [default: the same file]")
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder with llama-speculative-simple")
    parser.add_argument("--tandem", type=Path, default=ROOT / "target/release/tandem")
    parser.add_argument("--prompts", type=Path, default=ROOT / "deploy/demo/prompts.jsonl")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", default="8,16,22,32", help="nodes of tandem's trees")
    parser.add_argument("--draft-max", type=int, default=15, help="of llama.cpp, tokens: the block less one")
    parser.add_argument("--ctx", type=int, default=1024, help="llama.cpp's context")
    parser.add_argument("-n", type=int, default=128, help="generated tokens of each prompt")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    dflash = ["-md", args.llama_draft, "--spec-type", "draft-dflash", "--spec-draft-n-max", args.draft_max]
    rounds = []
    for number in range(args.rounds):
        pairs = [(llama(args, line["prompt"], NO_DRAFT), llama(args, line["prompt"], dflash)) for line in lines]
        alone, drafting = (list(answers) for answers in zip(*pairs, strict=True))
        rounds.append({"llama.cpp alone": alone, f"llama.cpp DFlash {args.draft_max}": drafting, **tandem(args)})
        report = ", ".join(f"{mode} {speed([answers]):.1f}" for mode, answers in rounds[-1].items())
        print(f"round {number + 1}: {report}", flush=True)
    print(f"\n{args.model.name}, {args.threads} threads, {len(lines)} prompts, -n {args.n}, {args.rounds} rounds\n")
    table(rounds, [line["sort"] for line in lines])


if __name__ == "__main__":
    main()
