"""Qwen Code against a running set: `qwen -p`, over chat completions. Each test prints what it proved.

    python harness/qwen_code_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import PASSWORD, QUESTION, Home, check_leaving, check_run, check_statuses, example
from install import npm
from recorder import Recorder
from rewrites import answering, directing, endless
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "0.24.4"
SETTINGS = "~/.qwen/settings.json"
TOOL = "run_shell_command"
# Not texts alone: behind the colon of a boolean the model likes to write blanks.
COMMAND = {"command": "cat notes.txt", "is_background": False}
# Instructions and fourteen tools.
LEAST_TOKENS = 15000
# Nobody is there to be asked whether a command may run.
ASK = ["--approval-mode", "yolo", "-p", QUESTION]


class QwenCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.qwen = npm("@qwen-code/qwen-code", VERSION) / "qwen"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def test_a_command_is_run_and_its_output_read(self):
        with Recorder(self.stack, directing(TOOL, COMMAND, PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            said, _ = home.run([self.qwen, "-o", "json", *ASK])
            check_statuses(recorder)
            _, answers, words = check_run(recorder, "/v1/chat/completions", TOOL, COMMAND, LEAST_TOKENS)
        self.assertEqual(len(recorder.exchanges), 2)
        *_, result = json.loads(said)
        self.assertEqual((result["subtype"], result["result"]), ("success", PASSWORD))
        self.assertEqual(result["stats"]["tools"]["byName"][TOOL]["success"], 1)
        self.assertEqual(result["usage"]["total_tokens"], sum(answer.usage["total_tokens"] for answer in answers))
        proved(f"-p: {words}; tokens are summed up as the set says")

    def test_the_answer_is_shown(self):
        with Recorder(self.stack, answering(PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            said, _ = home.run([self.qwen, *ASK])
            check_statuses(recorder)
        self.assertEqual(said.strip(), PASSWORD)
        proved("-p: without a format the answer alone is shown")

    def test_a_context_that_is_too_small(self):
        with Recorder(self.stack) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            _, complaint = home.run([self.qwen, *ASK], status=1)
        answers = {(exchange.status, exchange.json["error"]["code"]) for exchange in recorder.exchanges}
        self.assertEqual(answers, {(400, "context_length_exceeded")})
        self.assertIn(recorder.exchanges[0].json["error"]["message"], complaint)
        proved(f"overflow: {recorder.exchanges[0].json['error']['message']!r} is shown after {len(recorder.exchanges)} requests")

    def test_a_user_who_leaves(self):
        with Recorder(self.stack, endless) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            proved(check_leaving(self.stack, recorder, home, [self.qwen, *ASK]))


if __name__ == "__main__":
    run(parser(__doc__, "QwenCode.test_a_user_who_leaves"), f"Qwen Code {VERSION}")
