"""Claude Code against a running set: `claude -p`, with a tool that it runs. Each test prints what it proved.

    python harness/claude_code.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import Home, npm
from exchanges import check_idle_after, check_round_trip, check_statuses, put_together, rambling, saying, talks
from recorder import Recorder, directing
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "2.1.330"
QUESTION = "Write a Python function that reads the password in notes.txt."
ANSWER = "The password is tandem-7."
CALL = {"command": "cat notes.txt", "description": "Reads the notes"}
# Its instructions and a dozen tools; the letters of 40 KB and more.
LEAST_TOKENS = 8000
# `<|im_end|>` of the demo model.
END = "8188"


def settings(url):
    """What a user sets."""
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "not needed",
        "ANTHROPIC_MODEL": "tandem",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


class ClaudeCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.claude = npm("@anthropic-ai/claude-code", VERSION) / "claude"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        cls.stack.wait_for_draft()

    def command(self, *flags):
        return [self.claude, "-p", QUESTION, "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash", *flags]

    def ask(self, recorder, *flags):
        """Runs it; what it printed, event by event."""
        with Home() as home:
            said, _ = home.run(self.command(*flags), settings(recorder.url))
        return [json.loads(line) for line in said.splitlines()]

    def test_a_command_is_run(self):
        rewrite = saying(directing("Bash", CALL, max_tokens=400), ANSWER)
        with Recorder(self.stack, rewrite) as recorder:
            told = self.ask(recorder)
            check_statuses(self, recorder)
            counted, exchanges = check_round_trip(
                self, recorder, "/v1/messages", "Bash", CALL, "The password is tandem-7.", ANSWER, LEAST_TOKENS
            )
        self.assertEqual({exchange.path for exchange in recorder.exchanges}, {"/v1/messages?beta=true"})
        end = told[-1]
        self.assertEqual((end["type"], end["is_error"], end["result"]), ("result", False, ANSWER))
        self.assertEqual(end["num_turns"], 2)
        self.assertEqual(end["permission_denials"], [])
        names = [tool["name"] for tool in exchanges[0].request["tools"]]
        proved(f"{len(names)} tools and instructions of {counted} tokens are read; Bash is called, run, and its output answered")

    def test_thinking_comes_back_as_it_was(self):
        rewrite = saying(directing("Bash", CALL, max_tokens=400), ANSWER)
        with Recorder(self.stack, rewrite) as recorder:
            self.ask(recorder)
        first, second = recorder.to("/v1/messages")
        reasoning = put_together(self, first).reasoning
        self.assertTrue(reasoning)
        sent = [message for message in second.request["messages"] if message["role"] == "assistant"][0]["content"]
        self.assertEqual([block["type"] for block in sent], ["thinking", "tool_use"])
        self.assertEqual(sent[0]["thinking"], reasoning)
        self.assertTrue(sent[0]["signature"])
        proved("the reasoning before the call comes back with its signature")

    def test_a_call_comes_whatever_the_reasoning(self):
        """The model wants to end at once, in its reasoning: an answer that has to call does not end without a call."""
        forced = directing("Bash", CALL, max_tokens=400)

        def rewrite(path, body):
            body = saying(forced, ANSWER)(path, body)
            return {**body, "logit_bias": {END: 100}} if "tool_choice" in body else body

        with Recorder(self.stack, rewrite) as recorder:
            self.ask(recorder)
            check_round_trip(self, recorder, "/v1/messages", "Bash", CALL, "The password is tandem-7.", ANSWER, LEAST_TOKENS)
        proved("a call comes though the model would end inside its reasoning")

    def test_it_leaves(self):
        before = self.stack.metrics()
        with Recorder(self.stack, rambling) as recorder, Home() as home:
            ended = home.leave(self.command(), settings(recorder.url), lambda: talks(recorder))
            took = check_idle_after(self, self.stack, before)
            self.assertTrue(recorder.to("/v1/messages")[0].broken_off)
        proved(f"Ctrl-C in the middle of an answer: it ends after {ended:.1f} s, {took * 1000:.0f} ms later nothing runs")


if __name__ == "__main__":
    run(parser(__doc__, "ClaudeCode.test_it_leaves"), f"Claude Code {VERSION}")
