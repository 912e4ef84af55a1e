"""Pi against a running set, by each of the three APIs: `pi -p`, with a command that it runs. Each test prints what it proved.

    python harness/pi_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import Home, npm
from exchanges import as_said, check_idle_after, check_round_trip, check_statuses, put_together, rambling, saying, talks
from recorder import Recorder, directing
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "0.73.1"
QUESTION = "Write a Python function that reads the password in notes.txt."
ANSWER = "The password is tandem-7."
CALL = {"command": "cat notes.txt"}
# Its instructions and four tools.
LEAST_TOKENS = 1200
PATHS = {
    "openai-completions": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
}


def settings(home, url, api):
    """What a user writes into `~/.pi/agent/models.json`."""
    folder = home.path / ".pi" / "agent"
    folder.mkdir(parents=True)
    provider = {
        # Anthropic's client adds `/v1` itself.
        "baseUrl": url if api == "anthropic-messages" else f"{url}/v1",
        "api": api,
        "apiKey": "not-needed",
        "models": [{"id": "tandem", "reasoning": True, "contextWindow": 65536, "maxTokens": 8192}],
    }
    (folder / "models.json").write_text(json.dumps({"providers": {"tandem": provider}}))


class Pi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pi = npm("@mariozechner/pi-coding-agent", VERSION) / "pi"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        cls.stack.wait_for_draft()

    def command(self, mode):
        return [self.pi, "--offline", "--model", "tandem/tandem", "--mode", mode, "-p", QUESTION]

    def check(self, api):
        with Recorder(self.stack, saying(directing("bash", CALL, max_tokens=400), ANSWER)) as recorder, Home() as home:
            settings(home, recorder.url, api)
            told = [json.loads(line) for line in home.run(self.command("json"), {})[0].splitlines()]
            check_statuses(self, recorder)
            counted, exchanges = check_round_trip(
                self, recorder, PATHS[api], "bash", CALL, "The password is tandem-7.", ANSWER, LEAST_TOKENS
            )
        self.assertEqual(len(exchanges), 2)
        end = [event for event in told if event["type"] == "agent_end"][0]["messages"]
        self.assertEqual([message["role"] for message in end], ["user", "assistant", "toolResult", "assistant"])
        self.assertEqual([message["stopReason"] for message in end if message["role"] == "assistant"], ["toolUse", "stop"])
        thought, called = end[1]["content"]
        self.assertEqual((thought["type"], called["type"]), ("thinking", "toolCall"))
        self.assertEqual(end[-1]["content"][-1]["text"], as_said(PATHS[api], ANSWER))
        # What it takes the request to be in tokens is what the set says.
        self.assertGreater(end[1]["usage"]["input"], 0)
        self.assertGreater(end[1]["usage"]["output"], 0)
        reasoning = put_together(self, exchanges[0]).reasoning
        if reasoning:
            self.assertEqual(thought["thinking"], reasoning)
        self.assertIn(thought["thinking"], json.dumps(exchanges[1].request))
        proved(f"{api}: a request of {counted} tokens is read; bash is called, run, and its output answered; reasoning comes back")

    def test_chat(self):
        self.check("openai-completions")

    def test_responses(self):
        self.check("openai-responses")

    def test_messages(self):
        self.check("anthropic-messages")

    def test_the_text_alone(self):
        with Recorder(self.stack, saying(directing("bash", CALL, max_tokens=400), ANSWER)) as recorder, Home() as home:
            settings(home, recorder.url, "openai-completions")
            said, _ = home.run(self.command("text"), {})
        self.assertEqual(said.strip(), ANSWER)
        proved("as text, it prints the answer and nothing else")

    def test_it_leaves(self):
        for api in PATHS:
            before = self.stack.metrics()
            with self.subTest(api), Recorder(self.stack, rambling) as recorder, Home() as home:
                settings(home, recorder.url, api)
                ended = home.leave(self.command("json"), {}, lambda: talks(recorder))
                took = check_idle_after(self, self.stack, before)
                self.assertTrue(recorder.exchanges[0].broken_off)
                proved(f"{api}, Ctrl-C in an answer: it ends after {ended:.1f} s, {took * 1000:.0f} ms later nothing runs")


if __name__ == "__main__":
    run(parser(__doc__, "Pi.test_chat"), f"Pi {VERSION}")
