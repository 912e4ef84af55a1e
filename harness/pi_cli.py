"""Pi against a running set, by each of the three APIs: `pi -p`. Each test prints what it proved.

    python harness/pi_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import PASSWORD, QUESTION, Home, check_leaving, check_run, check_statuses, example
from install import npm
from recorder import Recorder
from rewrites import answering, directing, endless
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "0.73.1"
SETTINGS = "~/.pi/agent/models.json"
COMMAND = {"command": "cat notes.txt"}
# Its instructions and four tools.
LEAST_TOKENS = 1200
PATHS = {
    "openai-completions": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
}


def settings(url, api):
    """As they are shown to users, for this API."""
    shown = json.loads(example(SETTINGS, url))
    provider = shown["providers"]["tandem"]
    provider["api"] = api
    if api == "anthropic-messages":
        # Anthropic's client adds `/v1` itself.
        provider["baseUrl"] = url
    return json.dumps(shown)


class Pi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pi = npm("@mariozechner/pi-coding-agent", VERSION) / "pi"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def command(self, mode):
        return [self.pi, "--offline", "--model", "tandem/tandem", "--mode", mode, "-p", QUESTION]

    def check(self, api):
        with Recorder(self.stack, directing("bash", COMMAND, PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, settings(recorder.url, api))
            told = [json.loads(line) for line in home.run(self.command("json"))[0].splitlines()]
            check_statuses(recorder)
            (_, second), (called, _), words = check_run(recorder, PATHS[api], "bash", COMMAND, LEAST_TOKENS)
        self.assertEqual(len(recorder.exchanges), 2)
        end = next(event for event in told if event["type"] == "agent_end")["messages"]
        self.assertEqual([message["role"] for message in end], ["user", "assistant", "toolResult", "assistant"])
        self.assertEqual([message["stopReason"] for message in end if message["role"] == "assistant"], ["toolUse", "stop"])
        thought, call = end[1]["content"]
        self.assertEqual((thought["type"], call["type"]), ("thinking", "toolCall"))
        self.assertEqual(thought["thinking"], called.reasoning)
        self.assertIn(json.dumps(called.reasoning), json.dumps(second.request))
        self.assertEqual(end[-1]["content"][-1]["text"], PASSWORD)
        self.assertGreater(end[1]["usage"]["input"], 0)
        self.assertGreater(end[1]["usage"]["output"], 0)
        proved(f"{api}: {words}; the reasoning before the call comes back")

    def test_chat(self):
        self.check("openai-completions")

    def test_responses(self):
        self.check("openai-responses")

    def test_messages(self):
        self.check("anthropic-messages")

    def test_the_answer_is_shown(self):
        with Recorder(self.stack, answering(PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, settings(recorder.url, "openai-completions"))
            said, _ = home.run(self.command("text"))
        self.assertEqual(said.strip(), PASSWORD)
        proved("-p: as text, the answer alone is shown")

    def test_a_user_who_leaves(self):
        for api in PATHS:
            with self.subTest(api), Recorder(self.stack, endless) as recorder, Home() as home:
                home.write(SETTINGS, settings(recorder.url, api))
                proved(f"{api}: {check_leaving(self.stack, recorder, home, self.command('json'))}")


if __name__ == "__main__":
    run(parser(__doc__, "Pi.test_chat"), f"Pi {VERSION}")
