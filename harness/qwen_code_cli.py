"""Qwen Code against a running set: `qwen -p`, over chat completions. Each test prints what it proved.

    python harness/qwen_code_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import PASSWORD, Home, answering, example, freed, lasting, npm, refused
from recorder import Recorder, directing
from stack import Stack
from streams import of_chat
from suite import arguments, parser, proved, run

VERSION = "0.24.4"
QUESTION = "What is the password in notes.txt?"
TOOL = "run_shell_command"
# Nobody is there to be asked whether a command may run.
ASK = ["--approval-mode", "yolo", "-p", QUESTION]


class QwenHome(Home):
    def configure(self, url):
        (self.path / ".qwen").mkdir()
        (self.path / ".qwen" / "settings.json").write_text(example("~/.qwen/settings.json", url))


class QwenCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.qwen = npm("@qwen-code/qwen-code", VERSION) / "qwen"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def test_a_command_is_run_and_its_output_read(self):
        command = {"command": "cat notes.txt"}
        with Recorder(self.stack, answering(directing(TOOL, command), PASSWORD)) as recorder, QwenHome() as home:
            home.configure(recorder.url)
            said, _ = home.run([self.qwen, "-o", "json", *ASK], {})
            self.assertEqual(refused(recorder), [])
            first, second = recorder.exchanges
            counts = [recorder.counted(exchange) for exchange in (first, second)]
        self.assertGreater(counts[0], 15000, "instructions and fourteen tools")
        self.assertGreater(counts[1], counts[0])
        content, calls, reason, _ = of_chat(first)
        self.assertEqual((content.strip(), calls, reason), ("", [(TOOL, command)], "tool_calls"))
        came_back, output = second.request["messages"][-2:]
        self.assertEqual(came_back["tool_calls"][0]["id"], output["tool_call_id"])
        self.assertIn(PASSWORD, json.dumps(output["content"]))
        self.assertEqual(of_chat(second)[:3], (PASSWORD, [], "stop"))
        *_, result = json.loads(said)
        self.assertEqual((result["subtype"], result["result"]), ("success", PASSWORD))
        self.assertEqual(result["stats"]["tools"]["byName"][TOOL]["success"], 1)
        usages = [of_chat(exchange)[3]["total_tokens"] for exchange in (first, second)]
        self.assertEqual(result["usage"]["total_tokens"], sum(usages))
        proved(f"-p: {counts[0]} tokens of request, a call, its output, the answer; tokens summed up as the set says")

    def test_a_call_with_a_boolean(self):
        command = {"command": "cat notes.txt", "is_background": False}
        directed = answering(directing(TOOL, command), PASSWORD)

        def short(path, body):
            """With an end, should the model write blanks for ever; Qwen Code asks for 32 000 tokens."""
            body = directed(path, body)
            return body and {**body, "max_tokens": 300}

        with Recorder(self.stack, short) as recorder, QwenHome() as home:
            home.configure(recorder.url)
            # Cut off, the call would be asked for again, with more tokens.
            home.leave([self.qwen, *ASK], {}, lambda: recorder.exchanges and b"[DONE]" in recorder.exchanges[0].answer)
            reason = recorder.exchanges[0].events[-3][1]["choices"][0]["finish_reason"]
            self.assertEqual(reason, "tool_calls", "the model fills the room between `:` and the value with blanks")
            self.assertEqual(of_chat(recorder.exchanges[0])[1], [(TOOL, command)])
        proved("-p: a call whose arguments are not texts alone")

    def test_the_answer_is_shown(self):
        with Recorder(self.stack, answering(directing("none", {}), PASSWORD)) as recorder, QwenHome() as home:
            home.configure(recorder.url)
            said, _ = home.run([self.qwen, *ASK], {})
            self.assertEqual(refused(recorder), [])
        self.assertEqual(said.strip(), PASSWORD)
        proved("-p: without a format the answer alone is shown")

    def test_a_context_that_is_too_small(self):
        with Recorder(self.stack) as recorder, QwenHome() as home:
            home.configure(recorder.url)
            _, complaint = home.run([self.qwen, *ASK], {}, status=1)
        answers = {(exchange.status, exchange.json["error"]["code"]) for exchange in recorder.exchanges}
        self.assertEqual(answers, {(400, "context_length_exceeded")})
        self.assertIn(recorder.exchanges[0].json["error"]["message"], complaint)
        proved(f"overflow: {recorder.exchanges[0].json['error']['message']!r} is shown after {len(recorder.exchanges)} requests")

    def test_a_user_who_leaves(self):
        before = self.stack.metrics().get("tandem_requests_cancelled_total", 0)
        with Recorder(self.stack, lasting) as recorder, QwenHome() as home:
            home.configure(recorder.url)
            said = lambda: any(exchange.answer.count(b"content") > 5 for exchange in recorder.exchanges)
            home.leave([self.qwen, *ASK], {}, said)
            took = freed(self.stack)
            left = [exchange for exchange in recorder.exchanges if exchange.broken_off]
        self.assertEqual(left, recorder.exchanges)
        self.assertEqual(self.stack.metrics()["tandem_requests_cancelled_total"], before + len(left))
        proved(f"leaving: Ctrl-C in the middle of a text; {took} ms after its end nothing runs")


if __name__ == "__main__":
    run(parser(__doc__, "QwenCode.test_a_user_who_leaves"), f"Qwen Code {VERSION}")
