"""Codex CLI against a running set: `codex exec`, over the Responses API. Each test prints what it proved.

    python harness/codex_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import PASSWORD, QUESTION, Home, check_leaving, check_run, check_statuses, example
from install import npm
from recorder import Recorder
from rewrites import directing, endless
from stack import Stack
from suite import arguments, parser, proved, run

VERSION = "0.169.0"
SETTINGS = "~/.codex/config.toml"
COMMAND = {"cmd": "cat notes.txt"}
# Instructions and tools, namespaces among them.
LEAST_TOKENS = 8000
# Codex asks a provider for its models only where a command tells the key.
KEY_BY_COMMAND = """
[model_providers.tandem.auth]
command = "echo"
args = ["any key"]
"""
# Codex's own sandbox needs rights that a container may not give; the project folder is a fresh one.
EXEC = ["exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", QUESTION]


class Codex(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.codex = npm("@openai/codex", VERSION) / "codex"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def test_a_command_is_run_and_its_output_read(self):
        with Recorder(self.stack, directing("exec_command", COMMAND, PASSWORD)) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            said, _ = home.run([self.codex, *EXEC])
            check_statuses(recorder)
            *_, words = check_run(recorder, "/v1/responses", "exec_command", COMMAND, LEAST_TOKENS)
        self.assertEqual(len(recorder.exchanges), 2)
        events = [json.loads(line) for line in said.splitlines()]
        done = [event["item"] for event in events if event["type"] == "item.completed"]
        (ran,) = [item for item in done if item["type"] == "command_execution"]
        self.assertEqual((ran["exit_code"], ran["aggregated_output"]), (0, f"{PASSWORD}\n"))
        self.assertEqual([item["text"] for item in done if item["type"] == "agent_message"], [PASSWORD])
        self.assertEqual(events[-1]["type"], "turn.completed")
        proved(f"exec: {words}")

    def test_the_catalogue_from_a_file(self):
        status, catalogue = self.stack.get(f"/v1/models?client_version={VERSION}")
        self.assertEqual(status, 200)
        with Home() as home:
            home.write(SETTINGS, example(SETTINGS, self.stack.url))
            home.write("~/tandem.json", catalogue)
            from_file = ["-c", f"model_catalog_json={home.path / 'tandem.json'}"]
            said, _ = home.run([self.codex, "debug", "models", *from_file])
        (model,) = json.loads(said)["models"]
        (entry,) = json.loads(catalogue)["models"]
        self.assertEqual(model["slug"], entry["slug"])
        levels = [level["effort"] for level in model["supported_reasoning_levels"]]
        self.assertEqual(levels, ["low", "medium", "high", "xhigh", "max"], "as Codex spells them")
        self.assertEqual(model["input_modalities"], ["text"], "Codex supposes images too, and the set refuses them")
        proved(f"catalogue: loaded from a file, {entry['slug']!r} with {model['context_window']} tokens")

    def test_the_catalogue_from_the_set(self):
        with Recorder(self.stack) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url) + KEY_BY_COMMAND)
            said, _ = home.run([self.codex, "debug", "models"])
        (asked,) = recorder.exchanges
        self.assertEqual((asked.path, asked.status), (f"/v1/models?client_version={VERSION}", 200))
        self.assertIn(asked.json["data"][0]["id"], [model["slug"] for model in json.loads(said)["models"]])
        proved("catalogue: asked for, and taken")

    def test_a_context_that_is_too_small(self):
        with Recorder(self.stack) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            said, _ = home.run([self.codex, *EXEC], status=1)
        (asked,) = recorder.exchanges
        self.assertEqual((asked.status, asked.json["error"]["code"]), (400, "context_length_exceeded"))
        self.assertIn("ran out of room in the model's context window", said)
        proved("overflow: Codex knows the error for what it is, and does not try again")

    def test_a_user_who_leaves(self):
        with Recorder(self.stack, endless) as recorder, Home() as home:
            home.write(SETTINGS, example(SETTINGS, recorder.url))
            proved(check_leaving(self.stack, recorder, home, [self.codex, *EXEC]))


if __name__ == "__main__":
    run(parser(__doc__, "Codex.test_a_user_who_leaves"), f"Codex CLI {VERSION}")
