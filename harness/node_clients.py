"""Clients for Node against a running set: each has a script under `node/`, whose cases are the tests. A recorder in between
holds what the scripts saw against what was sent. Each test prints what it proved.

    python harness/node_clients.py [--binary target/debug/tandem] [test names]
"""

import json
import shutil
import subprocess
import unittest
from pathlib import Path

from answers import check_freed, check_round_trip
from install import npm_together
from recorder import Recorder
from rewrites import directing, endless
from stack import Stack
from suite import arguments, parser, proved, run

VERSIONS = {
    "openai": "7.57.0",
    "@anthropic-ai/sdk": "1.12.0",
    "ai": "7.0.173",
    "@ai-sdk/openai-compatible": "3.0.92",
    "@ai-sdk/openai": "4.0.118",
    "@ai-sdk/anthropic": "4.0.105",
    "@langchain/openai": "1.6.0",
    "@langchain/core": "1.4.0",
    "zod": "4.6.7",
}
CASE_SECONDS = 60
OSLO = ("get_weather", {"city": "Oslo"})


class Script:
    """A Node program that runs cases of one client as they are asked for."""

    def __init__(self, name, *argument):
        folder = npm_together("node-clients", VERSIONS)
        # Modules are looked for beside the script that imports them.
        scripts = shutil.copytree(Path(__file__).parent / "node", folder / "scripts", dirs_exist_ok=True)
        command = ["node", str(scripts / "run.mjs"), name, *argument]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(CASE_SECONDS)
        self.process.stdout.close()

    def case(self, name, url, model):
        """What it proved; fails as the case does."""
        print(json.dumps({"case": name, "url": url, "model": model}), file=self.process.stdin)
        line = self.process.stdout.readline()
        assert line, f"the script ended in the case {name}"
        answer = json.loads(line)
        assert "proved" in answer, answer.get("failed")
        return answer["proved"]


class Client:
    """What each client is asked, on a set of its own."""

    script = ()
    """Name of the script, and its argument."""

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        cls.recorder = cls.enterClassContext(Recorder(cls.stack, lambda path, body: cls.rewrite(path, body)))
        cls.node = cls.enterClassContext(Script(*cls.script))
        cls.model = json.loads(cls.stack.get("/v1/models")[1])["data"][0]["id"]

    def case(self, name, rewrite=lambda path, body: None):
        """Runs it; the exchanges that it consisted of."""
        type(self).rewrite = staticmethod(rewrite)
        before = len(self.recorder.exchanges)
        self.run_case(name, self.recorder)
        return self.recorder.exchanges[before:]

    def run_case(self, name, where):
        text = self.node.case(name, where.url, self.model)
        proved(f"{' '.join(self.script)}, {name}: {text}")

    def answered(self, name):
        for exchange in self.case(name):
            self.assertEqual(exchange.status, 200)

    def test_whole_and_streamed(self):
        self.answered("whole_and_streamed")

    def test_reasoning(self):
        self.answered("reasoning")

    def test_schema(self):
        self.answered("schema")

    def test_tools(self):
        first, second = self.case("tools")
        self.assertTrue(first.streams and second.streams)
        check_round_trip(first, second)

    def test_error(self):
        for exchange in self.case("error"):
            self.assertEqual(exchange.status, 400)

    def test_abort(self):
        before = self.stack.metrics()
        check_freed(self.stack, before, len(self.case("abort", endless)))


class Loop:
    """Of clients that call tools by themselves, whole and streamed."""

    def test_loop(self):
        self.check_loop(self.case("loop", directing(*OSLO, "It is sunny in Oslo.")))

    def check_loop(self, exchanges):
        self.assertEqual([exchange.streams for exchange in exchanges], [False, False, True, True])
        for first, second in (exchanges[:2], exchanges[2:]):
            called, *_ = check_round_trip(first, second)
            self.assertEqual(list(called.calls.values()), [OSLO])


class LeavesWhole:
    """Of clients that let a request say that its answer does not end by itself. No recorder is in between: it would not see
    that the client leaves before there is something to give to it."""

    def test_abort_whole(self):
        before = self.stack.metrics()
        self.run_case("abort_whole", self.stack)
        check_freed(self.stack, before, 1)


class OpenaiChat(Client, Loop, LeavesWhole, unittest.TestCase):
    script = ("openai_chat",)


class OpenaiResponses(Client, Loop, unittest.TestCase):
    script = ("openai_responses",)


class AnthropicMessages(Client, Loop, LeavesWhole, unittest.TestCase):
    script = ("anthropic",)

    def check_loop(self, exchanges):
        """The client asks for a thread, which the server keeps, and sends whole conversations once it is told of none."""
        threaded = [exchange for exchange in exchanges if "thread" in exchange.request]
        for exchange in threaded:
            self.assertEqual(exchange.status, 400, f"`thread` is passed over: {exchange.request['thread']}")
            self.assertEqual(exchange.json["error"]["details"]["error_code"], "thread_unsupported_request")
        super().check_loop([exchange for exchange in exchanges if exchange not in threaded])


class Ai(Client, Loop):
    def test_no_reasoning(self):
        self.answered("no_reasoning")


class AiCompatible(Ai, unittest.TestCase):
    script = ("ai_sdk", "compatible")


class AiResponses(Ai, unittest.TestCase):
    script = ("ai_sdk", "responses")


class AiAnthropic(Ai, unittest.TestCase):
    script = ("ai_sdk", "anthropic")


class LangchainChat(Client, unittest.TestCase):
    script = ("langchain", "chat")


class LangchainResponses(Client, unittest.TestCase):
    script = ("langchain", "responses")


if __name__ == "__main__":
    run(parser(__doc__, "OpenaiChat.test_tools"), ", ".join(f"{name} {version}" for name, version in VERSIONS.items()))
