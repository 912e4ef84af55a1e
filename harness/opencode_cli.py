"""OpenCode against a running set: `opencode run`, over chat completions. Each test prints what it proved.

    python harness/opencode_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import PASSWORD, QUESTION, Home, check_leaving, check_run, check_statuses, example
from answers import read
from install import npm
from recorder import Recorder
from rewrites import answering, directing, endless
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "1.18.33"
SETTINGS = "opencode.json"
COMMAND = {"command": "cat notes.txt", "description": "Reads the notes"}
# Instructions and ten tools.
LEAST_TOKENS = 7000
# No list of other models from elsewhere, and nothing from npm: the provider's package has to be inside the program.
ENVIRONMENT = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_registry": "http://127.0.0.1:9"}


class OpenCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.opencode = npm("opencode-ai", VERSION) / "opencode"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def test_a_command_is_run_and_its_output_read(self):
        with Recorder(self.stack, directing("bash", COMMAND, PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            said, _ = home.run([self.opencode, "run", "--format", "json", QUESTION], ENVIRONMENT)
            check_statuses(recorder)
            exchanges, (called, _), words = check_run(recorder, "/v1/chat/completions", "bash", COMMAND, LEAST_TOKENS)
            (title,) = [exchange for exchange in recorder.exchanges if exchange not in exchanges]
            title_tokens = recorder.counted(title)
        self.assertEqual(read(title).text, PASSWORD)
        parts = [json.loads(line) for line in said.splitlines()]
        (ran,) = [event["part"]["state"] for event in parts if event["type"] == "tool_use"]
        self.assertEqual((ran["status"], ran["output"]), ("completed", f"{PASSWORD}\n"))
        self.assertEqual([event["part"]["text"] for event in parts if event["type"] == "text"], [PASSWORD])
        ends = [event["part"] for event in parts if event["type"] == "step_finish"]
        self.assertEqual([end["reason"] for end in ends], ["tool-calls", "stop"])
        self.assertEqual(ends[0]["tokens"]["output"], called.usage["completion_tokens"])
        proved(f"run: {words}; beside it a title ({title_tokens} tokens)")

    def test_the_answer_is_shown(self):
        with Recorder(self.stack, answering(PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            said, _ = home.run([self.opencode, "run", QUESTION], ENVIRONMENT)
            check_statuses(recorder)
        self.assertEqual(said.strip(), PASSWORD)
        proved("run: without a format the answer alone is shown")

    def test_a_user_who_leaves(self):
        with Recorder(self.stack, endless) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            proved(check_leaving(self.stack, recorder, home, [self.opencode, "run", QUESTION], ENVIRONMENT))


if __name__ == "__main__":
    run(parser(__doc__, "OpenCode.test_a_user_who_leaves"), f"OpenCode {VERSION}")
