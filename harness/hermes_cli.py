"""Hermes Agent against a running set: `hermes chat`, over chat completions. Each test prints what it proved.

    python harness/hermes_cli.py [--binary target/debug/tandem] [test names]
"""

import unittest

from agents import PASSWORD, QUESTION, Home, check_leaving, check_run, check_statuses, example
from install import pip
from recorder import Recorder
from rewrites import directing, endless
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "0.19.0"
SETTINGS = "~/.hermes/config.yaml"
COMMAND = {"command": "cat notes.txt"}
# Its instructions and close to thirty tools.
LEAST_TOKENS = 10000
# It tries whether it speaks to LM Studio, Ollama or an old llama.cpp.
PROBED = {"/api/v1/models", "/api/tags", "/v1/props"}
# It works with no less. The demo model has 8192 tokens, and the requests that it gets here are shortened.
CONTEXT = "  context_length: 65536\n"
# The scanner would be downloaded.
NO_SCANNER = "security:\n  tirith_enabled: false\n"


class Hermes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.command = [pip("hermes-agent", VERSION) / "hermes", "chat", "--quiet", "--yolo", "--query", QUESTION]
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def test_a_command_is_run_and_its_output_read(self):
        with Recorder(self.stack, directing("terminal", COMMAND, PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url) + CONTEXT + NO_SCANNER)
            said, _ = home.run(self.command)
            check_statuses(recorder, PROBED)
            *_, words = check_run(recorder, "/v1/chat/completions", "terminal", COMMAND, LEAST_TOKENS)
        self.assertEqual(said.strip(), PASSWORD)
        proved(f"chat: {words}")

    def test_it_reads_how_long_a_context_is(self):
        """From what the set says of itself: it refuses to work with less than it needs, and names the number."""
        with Recorder(self.stack) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url) + NO_SCANNER)
            said = home.run(self.command, status=1)
        self.assertEqual(recorder.to("/v1/chat/completions"), [])
        self.assertIn("context window of 8,192 tokens", " ".join("".join(said).split()))
        asked = sorted({exchange.path for exchange in recorder.exchanges if exchange.status == 200})
        proved(f"chat: the length of the context, 8,192 tokens, is found by {', '.join(asked)}")

    def test_a_user_who_leaves(self):
        with Recorder(self.stack, endless) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url) + CONTEXT + NO_SCANNER)
            proved(check_leaving(self.stack, recorder, home, self.command))


if __name__ == "__main__":
    run(parser(__doc__, "Hermes.test_a_user_who_leaves"), f"Hermes Agent {VERSION}")
