"""OpenCode against a running set: `opencode run`, over chat completions. Each test prints what it proved.

    python harness/opencode_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import PASSWORD, Home, answering, example, freed, lasting, npm, refused
from recorder import Recorder, directing
from stack import Stack
from streams import of_chat
from suite import arguments, parser, proved, run

VERSION = "1.18.33"
QUESTION = "What is the password in notes.txt?"
COMMAND = {"command": "cat notes.txt", "description": "Reads the notes"}
# No list of other models from elsewhere, and nothing from npm: the provider's package has to be inside the program.
ENVIRONMENT = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_registry": "http://127.0.0.1:9"}


class OpenCodeHome(Home):
    def configure(self, url):
        (self.project / "opencode.json").write_text(example("opencode.json", url))


def with_tools(recorder):
    """The requests of the conversation; the one for a title offers no tools."""
    return [exchange for exchange in recorder.exchanges if exchange.request.get("tools")]


class OpenCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.opencode = npm("opencode-ai", VERSION) / "opencode"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def test_a_command_is_run_and_its_output_read(self):
        rewrite = answering(directing("bash", COMMAND), PASSWORD)
        with Recorder(self.stack, rewrite) as recorder, OpenCodeHome() as home:
            home.configure(recorder.url)
            said, _ = home.run([self.opencode, "run", "--format", "json", QUESTION], ENVIRONMENT)
            self.assertEqual(refused(recorder), [])
            first, second = with_tools(recorder)
            (title,) = [exchange for exchange in recorder.exchanges if exchange not in (first, second)]
            counts = [recorder.counted(exchange) for exchange in (first, second, title)]
        self.assertGreater(counts[0], 7000, "instructions and ten tools")
        self.assertGreater(counts[1], counts[0])
        content, calls, reason, usage = of_chat(first)
        self.assertEqual((content.strip(), calls, reason), ("", [("bash", COMMAND)], "tool_calls"))
        came_back, output = second.request["messages"][-2:]
        self.assertEqual(came_back["tool_calls"][0]["id"], output["tool_call_id"])
        self.assertIn(PASSWORD, output["content"])
        self.assertEqual(of_chat(second)[:3], (PASSWORD, [], "stop"))
        self.assertEqual(of_chat(title)[0], PASSWORD)
        parts = [json.loads(line) for line in said.splitlines()]
        (ran,) = [event["part"]["state"] for event in parts if event["type"] == "tool_use"]
        self.assertEqual((ran["status"], ran["output"]), ("completed", f"{PASSWORD}\n"))
        self.assertEqual([event["part"]["text"] for event in parts if event["type"] == "text"], [PASSWORD])
        ends = [event["part"] for event in parts if event["type"] == "step_finish"]
        self.assertEqual([end["reason"] for end in ends], ["tool-calls", "stop"])
        self.assertEqual(ends[0]["tokens"]["output"], usage["completion_tokens"])
        proved(f"run: {counts[0]} tokens of request, a call, its output, the answer; beside it a title ({counts[2]} tokens)")

    def test_the_answer_is_shown(self):
        with Recorder(self.stack, answering(directing("none", {}), PASSWORD)) as recorder, OpenCodeHome() as home:
            home.configure(recorder.url)
            said, _ = home.run([self.opencode, "run", QUESTION], ENVIRONMENT)
            self.assertEqual(refused(recorder), [])
        self.assertEqual(said.strip(), PASSWORD)
        proved("run: without a format the answer alone is shown")

    def test_a_user_who_leaves(self):
        before = self.stack.metrics().get("tandem_requests_cancelled_total", 0)
        with Recorder(self.stack, lasting) as recorder, OpenCodeHome() as home:
            home.configure(recorder.url)
            said = lambda: any(exchange.answer.count(b"content") > 5 for exchange in with_tools(recorder))
            home.leave([self.opencode, "run", QUESTION], ENVIRONMENT, said)
            took = freed(self.stack)
            left = [exchange for exchange in recorder.exchanges if exchange.broken_off]
        self.assertTrue(left)
        self.assertEqual(self.stack.metrics()["tandem_requests_cancelled_total"], before + len(left))
        proved(f"leaving: Ctrl-C in the middle of a text; {took} ms after its end nothing runs, {len(left)} requests cancelled")


if __name__ == "__main__":
    run(parser(__doc__, "OpenCode.test_a_user_who_leaves"), f"OpenCode {VERSION}")
