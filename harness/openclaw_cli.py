"""OpenClaw against a running set: `openclaw agent exec`, over chat completions and the Responses API. Each test prints what it
proved.

    python harness/openclaw_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import os
import unittest

from agents import PASSWORD, QUESTION, Home, check_leaving, check_run, check_statuses, example
from install import npm
from recorder import Recorder
from rewrites import directing, endless
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "2026.9.6"
# It needs a newer one than Debian's and Node 22's. This package has the program itself.
NODE_VERSION = "26.10.0"
SETTINGS = "~/.openclaw/openclaw.json"
COMMAND = {"command": "cat notes.txt"}
# Its instructions and eleven tools.
LEAST_TOKENS = 6000


class OpenClaw(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        node = npm("node", NODE_VERSION)
        cls.environment = {"PATH": f"{node}{os.pathsep}{os.environ['PATH']}"}
        cls.command = [npm("openclaw", VERSION, node) / "openclaw", "agent", "exec", "--json", QUESTION]
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def check(self, api, path):
        with Recorder(self.stack, directing("exec", COMMAND, PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url).replace("openai-completions", api))
            told = json.loads(home.run(self.command, self.environment)[0])
            check_statuses(recorder)
            *_, words = check_run(recorder, path, "exec", COMMAND, LEAST_TOKENS)
        self.assertEqual(len(recorder.exchanges), 2)
        self.assertEqual((told["ok"], told["status"], told["final"]), (True, "ok", PASSWORD))
        self.assertEqual(told["toolSummary"], {"calls": 1, "tools": ["exec"], "failures": 0})
        self.assertGreater(told["usage"]["input"], 0)
        proved(f"{api}: {words}")

    def test_chat(self):
        self.check("openai-completions", "/v1/chat/completions")

    def test_responses(self):
        self.check("openai-responses", "/v1/responses")

    def test_a_user_who_leaves(self):
        with Recorder(self.stack, endless) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            proved(check_leaving(self.stack, recorder, home, self.command, self.environment))


if __name__ == "__main__":
    run(parser(__doc__, "OpenClaw.test_chat"), f"OpenClaw {VERSION}")
