"""Claude Code against a running set: `claude -p`, over Messages. Each test prints what it proved.

    python harness/claude_code.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import PASSWORD, QUESTION, Home, check_leaving, check_run, check_statuses, example
from install import npm
from recorder import Recorder
from rewrites import directing, endless
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "2.1.330"
SETTINGS = "~/.claude/settings.json"
COMMAND = {"command": "cat notes.txt", "description": "Reads the notes"}
# Its instructions and a dozen tools; the letters of 40 KB and more.
LEAST_TOKENS = 8000
# `<|im_end|>` of the demo model.
END = "8188"
ASK = ["-p", QUESTION, "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash"]


class ClaudeCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.claude = npm("@anthropic-ai/claude-code", VERSION) / "claude"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def check(self, rewrite):
        """What it printed, and what `check_run` tells."""
        with Recorder(self.stack, rewrite) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            said, _ = home.run([self.claude, *ASK])
            check_statuses(recorder)
            checked = check_run(recorder, "/v1/messages", "Bash", COMMAND, LEAST_TOKENS)
        self.assertEqual({exchange.path for exchange in recorder.exchanges}, {"/v1/messages?beta=true"})
        return [json.loads(line) for line in said.splitlines()], *checked

    def test_a_command_is_run_and_its_output_read(self):
        told, (_, second), (called, _), words = self.check(directing("Bash", COMMAND, PASSWORD))
        end = told[-1]
        self.assertEqual((end["type"], end["is_error"], end["result"]), ("result", False, PASSWORD))
        self.assertEqual((end["num_turns"], end["permission_denials"]), (2, []))
        self.assertTrue(called.reasoning)
        sent = next(message["content"] for message in second.request["messages"] if message["role"] == "assistant")
        self.assertEqual([block["type"] for block in sent], ["thinking", "tool_use"])
        self.assertEqual(sent[0]["thinking"], called.reasoning)
        self.assertTrue(sent[0]["signature"])
        proved(f"-p: {words}; the reasoning before the call comes back with its signature")

    def test_a_call_comes_whatever_the_reasoning(self):
        """The model wants to end at once, in its reasoning: an answer that has to call does not end without a call."""
        directed = directing("Bash", COMMAND, PASSWORD)

        def rewrite(path, body):
            body = directed(path, body)
            return {**body, "logit_bias": {END: 100}} if body.get("tool_choice", {}).get("type") == "tool" else body

        self.check(rewrite)
        proved("-p: a call comes though the model would end inside its reasoning")

    def test_a_user_who_leaves(self):
        with Recorder(self.stack, endless) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            proved(check_leaving(self.stack, recorder, home, [self.claude, *ASK]))


if __name__ == "__main__":
    run(parser(__doc__, "ClaudeCode.test_a_user_who_leaves"), f"Claude Code {VERSION}")
