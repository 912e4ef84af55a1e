"""Hermes Agent against a running set: `hermes chat -q`, with a command that it runs. Each test prints what it proved.

    python harness/hermes_cli.py [--binary target/debug/tandem] [test names]
"""

import subprocess
import unittest

from agents import Home, pip
from exchanges import check_idle_after, check_round_trip, check_statuses, rambling, saying, talks
from recorder import Recorder, directing
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "0.19.0"
QUESTION = "Write a Python function that reads the password in notes.txt."
ANSWER = "The password is tandem-7."
CALL = {"command": "cat notes.txt"}
# Its instructions and close to thirty tools.
LEAST_TOKENS = 10000
# It tries whether it speaks to LM Studio, Ollama or an old llama.cpp.
PROBED = {"/api/v1/models", "/api/tags", "/v1/props"}
# It has no less. The demo model has 8192 tokens, and the requests that it gets here are shortened.
CONTEXT = 65536


def settings(home, url, context=None):
    """What a user writes into `~/.hermes/config.yaml`."""
    folder = home.path / ".hermes"
    folder.mkdir()
    lines = ["provider: custom", "default: tandem", f"base_url: {url}/v1", "api_key: not-needed"]
    lines += [f"context_length: {context}"] if context else []
    # The scanner would be downloaded.
    text = "model:\n" + "".join(f"  {line}\n" for line in lines) + "security:\n  tirith_enabled: false\n"
    (folder / "config.yaml").write_text(text)


class Hermes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hermes = pip("hermes-agent", VERSION) / "hermes"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        cls.stack.wait_for_draft()

    def command(self):
        return [self.hermes, "chat", "--quiet", "--yolo", "--query", QUESTION]

    def test_a_command_is_run(self):
        with Recorder(self.stack, saying(directing("terminal", CALL), ANSWER)) as recorder, Home() as home:
            settings(home, recorder.url, CONTEXT)
            said, _ = home.run(self.command(), {})
            check_statuses(self, recorder, PROBED)
            counted, exchanges = check_round_trip(
                self, recorder, "/v1/chat/completions", "terminal", CALL, "The password is tandem-7.", ANSWER, LEAST_TOKENS
            )
        self.assertEqual(len(exchanges), 2)
        self.assertEqual(said.strip(), ANSWER)
        tools = len(exchanges[0].request["tools"])
        proved(f"{tools} tools and instructions of {counted} tokens are read; terminal is called, run, and its output answered")

    def test_it_reads_how_long_a_context_is(self):
        """From what the set says of itself: it refuses to work with less than it needs, and names the number."""
        with Recorder(self.stack) as recorder, Home() as home:
            settings(home, recorder.url)
            ran = subprocess.run(
                self.command(), cwd=home.project, env=home.environment({}), stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
        self.assertEqual(recorder.to("/v1/chat/completions"), [])
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("context window of 8,192 tokens", " ".join((ran.stdout + ran.stderr).split()))
        asked = sorted({exchange.path for exchange in recorder.exchanges if exchange.status == 200})
        proved(f"the length of the context, 8,192 tokens, is found by {', '.join(asked)}")

    def test_it_leaves(self):
        before = self.stack.metrics()
        with Recorder(self.stack, rambling) as recorder, Home() as home:
            settings(home, recorder.url, CONTEXT)
            ended = home.leave(self.command(), {}, lambda: talks(recorder))
            took = check_idle_after(self, self.stack, before)
            self.assertTrue(recorder.to("/v1/chat/completions")[0].broken_off)
        proved(f"Ctrl-C in the middle of an answer: it ends after {ended:.1f} s, {took * 1000:.0f} ms later nothing runs")


if __name__ == "__main__":
    run(parser(__doc__, "Hermes.test_it_leaves"), f"Hermes Agent {VERSION}")
