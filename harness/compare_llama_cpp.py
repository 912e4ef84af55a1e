#!/usr/bin/env python3
"""Speed and memory of `tandem` beside llama.cpp's `llama-bench`: same machine, same run, same file, taking turns.

    cargo build --release
    python3 harness/compare_llama_cpp.py --llama-cpp "$(harness/build-llama-cpp)" -m model.gguf [-m other.gguf]

Each round runs both programs once; a figure is the median over the rounds, with the smallest and the largest behind it.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def output_of(command: list) -> str:
    command = [str(part) for part in command]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stderr}")
    return ran.stdout


def tandem_speeds(args, model: Path) -> dict[str, float]:
    command = [args.tandem, "bench", "-m", model, "--threads", args.threads, "--json", "-r", 3]
    report = json.loads(output_of([*command, "--pp", args.pp, "--tg", args.tg]))
    return {row["test"][:2]: row["tokens_per_second"] for row in report["results"]}


def llama_speeds(args, model: Path) -> dict[str, float]:
    command = [args.llama_cpp / "llama-bench", "-m", model, "-t", args.threads, "-r", 3, "-o", "json"]
    report = json.loads(output_of([*command, "-p", args.pp, "-n", args.tg]))
    return {"pp" if row["n_prompt"] else "tg": statistics.median(row["samples_ts"]) for row in report}


def peak_resident_bytes(command: list) -> int:
    """The high-water mark of a program's resident memory."""
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return usage.ru_maxrss * 1024


def summary(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def compare(args, model: Path) -> None:
    theirs, ours = [], []
    for number in range(args.rounds):
        theirs.append(llama_speeds(args, model))
        ours.append(tandem_speeds(args, model))
        print(f"round {number + 1}: llama.cpp {theirs[-1]}, tandem {ours[-1]}", flush=True)
    print(f"\n{model.name}, {model.stat().st_size / 1e6:.1f} MB, {args.threads} threads, {args.rounds} rounds of 3\n")
    print("| test | llama.cpp tok/s | tandem tok/s | ratio |\n| --- | ---: | ---: | ---: |")
    for test, length in (("pp", args.pp), ("tg", args.tg)):
        before = [speeds[test] for speeds in theirs]
        after = [speeds[test] for speeds in ours]
        ratio = statistics.median(after) / statistics.median(before)
        print(f"| {test}{length} | {summary(before)} | {summary(after)} | {ratio:.2f} |")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as prompt:
        json.dump(list(range(args.pp)), prompt)
        prompt.flush()
        run = [args.tandem, "run", "-m", model, "--threads", args.threads, "--ignore-eos", "--json"]
        run += ["--ctx-size", args.pp + args.tg, "--tokens", prompt.name, "-n", args.tg]
        resident = peak_resident_bytes(run)
    bench = [args.llama_cpp / "llama-bench", "-m", model, "-t", args.threads, "-r", 1]
    bench += ["-p", args.pp, "-n", args.tg]
    peer = peak_resident_bytes(bench)
    print(f"| peak resident MB | {peer / 1e6:.0f} | {resident / 1e6:.0f} | {resident / peer:.2f} |\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, action="append", required=True)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder with llama-bench")
    parser.add_argument("--tandem", type=Path, default=ROOT / "target/release/tandem")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pp", type=int, default=512, help="prompt tokens")
    parser.add_argument("--tg", type=int, default=128, help="generated tokens")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for model in args.model:
        compare(args, model)


if __name__ == "__main__":
    main()
