"""Codex CLI against a running set: `codex exec`, over the Responses API. Each test prints what it proved.

    python harness/codex_cli.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

from agents import PASSWORD, Home, answering, example, freed, lasting, npm, refused
from recorder import Recorder, directing
from stack import Stack
from streams import of_responses
from suite import arguments, parser, proved, run

VERSION = "0.169.0"
QUESTION = "What is the password in notes.txt?"
# Codex asks a provider for its models only where a command tells the key.
KEY_BY_COMMAND = """
[model_providers.tandem.auth]
command = "echo"
args = ["any key"]
"""


class CodexHome(Home):
    def configure(self, url, provider=""):
        (self.path / ".codex").mkdir()
        (self.path / ".codex" / "config.toml").write_text(example("~/.codex/config.toml", url) + provider)


# Codex's own sandbox needs rights that a container may not give; the project folder is a fresh one.
EXEC = ["exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", QUESTION]


class Codex(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.codex = npm("@openai/codex", VERSION) / "codex"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))

    def test_a_command_is_run_and_its_output_read(self):
        rewrite = answering(directing("exec_command", {"cmd": "cat notes.txt"}), PASSWORD)
        with Recorder(self.stack, rewrite) as recorder, CodexHome() as home:
            home.configure(recorder.url)
            said, _ = home.run([self.codex, *EXEC], {})
            self.assertEqual(refused(recorder), [])
            first, second = recorder.exchanges
            counts = [recorder.counted(exchange) for exchange in (first, second)]
        self.assertGreater(counts[0], 8000, "instructions and tools, namespaces among them")
        self.assertGreater(counts[1], counts[0])
        (call,), _ = of_responses(first)
        self.assertEqual((call["type"], call["name"]), ("function_call", "exec_command"))
        self.assertEqual(json.loads(call["arguments"]), {"cmd": "cat notes.txt"})
        came_back, output = second.request["input"][-2:]
        self.assertEqual([came_back["call_id"], output["call_id"]], [call["call_id"]] * 2)
        self.assertIn(PASSWORD, output["output"])
        (message,), _ = of_responses(second)
        self.assertEqual(message["content"][0]["text"], json.dumps(PASSWORD))
        events = [json.loads(line) for line in said.splitlines()]
        done = [event["item"] for event in events if event["type"] == "item.completed"]
        (ran,) = [item for item in done if item["type"] == "command_execution"]
        self.assertEqual((ran["exit_code"], ran["aggregated_output"]), (0, f"{PASSWORD}\n"))
        self.assertEqual([item["text"] for item in done if item["type"] == "agent_message"], [json.dumps(PASSWORD)])
        self.assertEqual(events[-1]["type"], "turn.completed")
        proved(f"exec: {counts[0]} tokens of request, a call, `{ran['command']}` and its output, the answer")

    def test_the_catalogue_from_a_file(self):
        status, catalogue = self.stack.get(f"/v1/models?client_version={VERSION}")
        self.assertEqual(status, 200)
        with CodexHome() as home:
            home.configure(self.stack.url)
            (home.path / "tandem.json").write_text(catalogue)
            from_file = ["-c", f"model_catalog_json={home.path / 'tandem.json'}"]
            said, _ = home.run([self.codex, "debug", "models", *from_file], {})
        (model,) = json.loads(said)["models"]
        (entry,) = json.loads(catalogue)["models"]
        self.assertEqual(model["slug"], entry["slug"])
        levels = [level["effort"] for level in model["supported_reasoning_levels"]]
        self.assertEqual(levels, ["low", "medium", "high", "xhigh", "max"], "as Codex spells them")
        self.assertEqual(model["input_modalities"], ["text"], "Codex supposes images too, and the set refuses them")
        proved(f"catalogue: loaded from a file, {entry['slug']!r} with {model['context_window']} tokens")

    def test_the_catalogue_from_the_set(self):
        with Recorder(self.stack) as recorder, CodexHome() as home:
            home.configure(recorder.url, KEY_BY_COMMAND)
            said, _ = home.run([self.codex, "debug", "models"], {})
        (asked,) = recorder.exchanges
        self.assertEqual((asked.path, asked.status), (f"/v1/models?client_version={VERSION}", 200))
        self.assertIn(asked.json["data"][0]["id"], [model["slug"] for model in json.loads(said)["models"]])
        proved("catalogue: asked for, and taken")

    def test_a_context_that_is_too_small(self):
        with Recorder(self.stack) as recorder, CodexHome() as home:
            home.configure(recorder.url)
            said, _ = home.run([self.codex, *EXEC], {}, status=1)
        (asked,) = recorder.exchanges
        self.assertEqual((asked.status, asked.json["error"]["code"]), (400, "context_length_exceeded"))
        self.assertIn("ran out of room in the model's context window", said)
        proved("overflow: Codex knows the error for what it is, and does not try again")

    def test_a_user_who_leaves(self):
        before = self.stack.metrics().get("tandem_requests_cancelled_total", 0)
        with Recorder(self.stack, lasting) as recorder, CodexHome() as home:
            home.configure(recorder.url)
            said = lambda: any(b"output_text.delta" in exchange.answer for exchange in recorder.exchanges)
            home.leave([self.codex, *EXEC], {}, said)
            took = freed(self.stack)
            self.assertEqual([exchange.broken_off for exchange in recorder.exchanges], [True])
        self.assertEqual(self.stack.metrics()["tandem_requests_cancelled_total"], before + 1)
        proved(f"leaving: Ctrl-C in the middle of a text; {took} ms after its end nothing runs")


if __name__ == "__main__":
    run(parser(__doc__, "Codex.test_a_user_who_leaves"), f"Codex CLI {VERSION}")
