"""OpenClaw against a running set: `openclaw agent exec`, with a command that it runs. Each test prints what it proved.

    python harness/openclaw_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import os
import unittest

from agents import Home, npm
from exchanges import as_said, check_idle_after, check_round_trip, check_statuses, rambling, saying, talks
from recorder import Recorder, directing
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "2026.9.6"
# It needs a newer one than Debian's and Node 22's. This package has the program itself.
NODE_VERSION = "26.10.0"
QUESTION = "Write a Python function that reads the password in notes.txt."
ANSWER = "The password is tandem-7."
CALL = {"command": "cat notes.txt"}
# Its instructions and eleven tools.
LEAST_TOKENS = 6000
PATHS = {"openai-completions": "/v1/chat/completions", "openai-responses": "/v1/responses"}


def settings(home, url, api):
    """What a user writes into `~/.openclaw/openclaw.json`."""
    folder = home.path / ".openclaw"
    folder.mkdir()
    model = {
        "id": "tandem",
        "name": "Tandem",
        "reasoning": True,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": 204800,
        "maxTokens": 8192,
    }
    provider = {"baseUrl": f"{url}/v1", "apiKey": "not-needed", "api": api, "models": [model]}
    config = {
        "agents": {"defaults": {"model": {"primary": "tandem/tandem"}}},
        "models": {"mode": "merge", "providers": {"tandem": provider}},
    }
    (folder / "openclaw.json").write_text(json.dumps(config))


class OpenClaw(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        node = npm("node", NODE_VERSION)
        cls.environment = {"PATH": f"{node}{os.pathsep}{os.environ['PATH']}"}
        cls.openclaw = npm("openclaw", VERSION, node) / "openclaw"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        cls.stack.wait_for_draft()

    def command(self):
        return [self.openclaw, "agent", "exec", "--json", QUESTION]

    def check(self, api):
        with Recorder(self.stack, saying(directing("exec", CALL, max_tokens=400), ANSWER)) as recorder, Home() as home:
            settings(home, recorder.url, api)
            told = json.loads(home.run(self.command(), self.environment)[0])
            check_statuses(self, recorder)
            counted, exchanges = check_round_trip(
                self, recorder, PATHS[api], "exec", CALL, "The password is tandem-7.", ANSWER, LEAST_TOKENS
            )
        self.assertEqual(len(exchanges), 2)
        self.assertEqual((told["ok"], told["status"], told["final"]), (True, "ok", as_said(PATHS[api], ANSWER)))
        self.assertEqual(told["toolSummary"], {"calls": 1, "tools": ["exec"], "failures": 0})
        self.assertGreater(told["usage"]["input"], 0)
        tools = len(exchanges[0].request["tools"])
        proved(f"{api}: {tools} tools and instructions of {counted} tokens are read; exec is called, run, and its output answered")

    def test_chat(self):
        self.check("openai-completions")

    def test_responses(self):
        self.check("openai-responses")

    def test_it_leaves(self):
        before = self.stack.metrics()
        with Recorder(self.stack, rambling) as recorder, Home() as home:
            settings(home, recorder.url, "openai-completions")
            ended = home.leave(self.command(), self.environment, lambda: talks(recorder))
            took = check_idle_after(self, self.stack, before)
            self.assertTrue(recorder.to("/v1/chat/completions")[0].broken_off)
        proved(f"Ctrl-C in the middle of an answer: it ends after {ended:.1f} s, {took * 1000:.0f} ms later nothing runs")


if __name__ == "__main__":
    run(parser(__doc__, "OpenClaw.test_chat"), f"OpenClaw {VERSION}")
