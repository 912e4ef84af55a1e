"""Runs the client programs of this folder, each against sets of its own, one after the other. What a program needs is installed
first, once, below target/; a client that this machine cannot get is skipped, and the reason told.

    python3 harness/run_clients.py                          # all of them
    python3 harness/run_clients.py codex_cli pi_cli         # these
    python3 harness/run_clients.py --binary target/release/tandem

Prints a line for each program as it ends, behind it the end of its log if it failed; whole logs are in target/harness-logs. Ends
with a non-zero status if one failed. A single test is run by its program itself: `harness/pi_cli.py Pi.test_chat`.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import unittest
from dataclasses import dataclass

from install import pip_install
from stack import BINARY, ROOT
from suite import ALL_SKIPPED

HARNESS = ROOT / "harness"
LOGS = ROOT / "target" / "harness-logs"
VENV = ROOT / "target" / "harness-venv"
TAIL_LINES = 40
END_SECONDS = 20


@dataclass(frozen=True)
class Program:
    name: str
    needs: str
    """For people: what has to be there, or is installed."""
    requirements: tuple = ()
    """Files for pip."""
    seconds: int = 900
    """After these it has failed. Where the program installs its client, that is part of them."""


CLIENTS = ("requirements.txt",)
PROGRAMS = (
    Program("openai_client", "pip", CLIENTS),
    Program("openai_responses", "pip", CLIENTS),
    Program("anthropic_client", "pip", CLIENTS),
    Program("langchain_client", "pip", ("requirements-langchain.txt",)),
    Program("node_clients", "npm, Node 20"),
    Program("fuzz_api", "pip", (*CLIENTS, "requirements-schemathesis.txt")),
    Program("web", "pip, chromium", ("web-requirements.txt",)),
    Program("codex_cli", "npm"),
    Program("opencode_cli", "npm"),
    Program("qwen_code_cli", "npm, Node 20"),
    Program("claude_code", "npm"),
    Program("pi_cli", "npm, Node 20"),
    Program("hermes_cli", "pip", seconds=1800),
    Program("openclaw_cli", "npm", seconds=1800),
    Program("open_webui", "pip", seconds=3000),
)


def main():
    options = parse()
    in_venv()
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = 0
    for program in PROGRAMS:
        if not options.names or program.name in options.names:
            start = time.monotonic()
            verdict, words, tail = run(program, options.binary)
            print(f"{verdict:8}{program.name:18}{time.monotonic() - start:5.0f} s  {words}", flush=True)
            for line in tail:
                print(f"    {line}", flush=True)
            failed += verdict == "failed"
    sys.exit(failed > 0)


def parse():
    table = "\n".join(f"  {program.name:18}{program.needs}" for program in PROGRAMS)
    description = f"{__doc__}\nThe programs, and what they need:\n\n{table}"
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=BINARY, help=f"the server, by default {BINARY.relative_to(ROOT)}")
    parser.add_argument("names", nargs="*", metavar="program", help="of the table below; without one all are run")
    options = parser.parse_args()
    if unknown := set(options.names) - {program.name for program in PROGRAMS}:
        parser.error(f"no such program: {', '.join(sorted(unknown))}; --help lists them")
    if not os.access(options.binary, os.X_OK):
        parser.error(f"there is no program {options.binary}: `cargo build --bin tandem` makes one, --binary names another")
    return options


def in_venv():
    """Starts again in target/harness-venv, unless it runs in an environment of its own."""
    if sys.prefix == sys.base_prefix:
        python = VENV / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        os.execv(python, [python, *sys.argv])


def run(program, binary):
    """How it ended, words for that, and the end of its log if somebody has to look at it."""
    try:
        for file in program.requirements:
            pip_install(file, sys.executable, "-r", HARNESS / file)
    except unittest.SkipTest as reason:
        return "skipped", str(reason), []
    log = LOGS / f"{program.name}.log"
    command = [sys.executable, HARNESS / f"{program.name}.py", "--binary", binary]
    with log.open("w") as said:
        # A group of its own, which is ended as a whole.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            status = process.wait(program.seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
    lines = log.read_text(errors="replace").splitlines()
    if status == ALL_SKIPPED:
        return "skipped", "; ".join(line.removeprefix("skipped: ") for line in lines if line.startswith("skipped: ")), []
    if status == 0:
        return "passed", lines[-1], []
    words = f"not within {program.seconds} s" if status is None else f"exit status {status}"
    return "failed", f"{words}; {log.relative_to(ROOT)}", lines[-TAIL_LINES:]


def end(process):
    """Ends what is left of it: its sets clean up after themselves when they are asked to end."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
            # The sets of its group may take a moment longer.
            time.sleep(1)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


if __name__ == "__main__":
    main()
