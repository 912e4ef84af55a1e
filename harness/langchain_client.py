"""LangChain against a running set: `langchain-openai` by both of its APIs, and `langchain-anthropic`. A recorder in between
holds what LangChain saw against what was sent. Each test prints what it proved.

    python harness/langchain_client.py [--binary target/debug/tandem] [test names]
"""

import asyncio
import json
import unittest
from importlib.metadata import version
from typing import Literal

import anthropic
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from answers import check_freed, check_round_trip
from recorder import Recorder
from rewrites import endless
from stack import Stack
from suite import arguments, parser, proved, run

QUESTION = "Write a Python function that returns the n-th Fibonacci number."
PACKAGES = ("langchain-core", "langchain-openai", "langchain-anthropic")
PARTS_BEFORE_LEAVING = 20


@tool
def get_weather(city: Literal["Oslo", "Lima"]) -> str:
    """The weather of a city."""
    return f"Sunny in {city}, 21 degrees."


class Level(BaseModel):
    """How much."""

    level: Literal["low", "high"]


class Client:
    """What each of LangChain's models is asked, on a set of its own."""

    error = openai.BadRequestError

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        cls.recorder = cls.enterClassContext(Recorder(cls.stack, lambda path, body: cls.rewrite(path, body)))
        cls.name = json.loads(cls.stack.get("/v1/models")[1])["data"][0]["id"]

    def setUp(self):
        self.rewritten(lambda path, body: None)
        self.recorder.exchanges.clear()

    def rewritten(self, rewrite):
        type(self).rewrite = staticmethod(rewrite)

    def proved(self, text):
        proved(f"{type(self).__name__}: {text}")

    def with_tool(self, **options):
        return self.model(temperature=0, max_tokens=60).bind_tools([get_weather], strict=True, **options)

    def test_whole_and_streamed(self):
        model = self.model(temperature=0)
        whole = model.invoke(QUESTION)
        self.assertIn("def fibonacci", whole.text)
        streamed = added(model.stream(QUESTION))

        async def asynchronous():
            return added([chunk async for chunk in model.astream(QUESTION)])

        for message in (streamed, asyncio.run(asynchronous())):
            self.assertEqual(message.text, whole.text)
            self.assertEqual(numbers(message), numbers(whole))
        self.assertTrue(all(exchange.status == 200 for exchange in self.recorder.exchanges))
        self.assertEqual([exchange.streams for exchange in self.recorder.exchanges], [False, True, True])
        self.proved("invoke, stream and astream give one answer, {} + {} tokens".format(*numbers(whole)))

    def test_reasoning(self):
        model = self.thinking()
        whole = model.invoke(QUESTION)
        thoughts = reasoning(whole)
        self.assertTrue(thoughts)
        streamed = added(model.stream(QUESTION))
        self.assertEqual((reasoning(streamed), streamed.text), (thoughts, whole.text))
        again = self.model(max_tokens=8).invoke([HumanMessage(QUESTION), whole, HumanMessage("Again.")])
        self.assertTrue(again.text)
        self.proved(f"{len(thoughts)} characters of reasoning before {len(whole.text)}, whole and streamed, and taken back")

    def test_a_tool_is_called_and_its_result_is_read(self):
        for stream in (False, True):
            self.recorder.exchanges.clear()
            forced = self.with_tool(tool_choice="get_weather")
            asked = HumanMessage("How is the weather in Oslo?")
            message = added(forced.stream([asked])) if stream else forced.invoke([asked])
            (call,) = message.tool_calls
            self.assertFalse(message.invalid_tool_calls)
            result = get_weather.invoke(call)
            self.assertIsInstance(result, ToolMessage)
            history = [asked, message, result]
            free = self.with_tool()
            final = added(free.stream(history)) if stream else free.invoke(history)
            self.assertTrue(final.text)
            first, second = self.recorder.exchanges
            self.assertEqual([first.streams, second.streams], [stream, stream])
            called, *_ = check_round_trip(first, second)
            self.assertEqual(list(called.calls.values()), [("get_weather", call["args"])])
        self.proved(f"get_weather({call['args']}) and the answer after its result, whole and streamed")

    def test_schema(self):
        structured = self.model(temperature=0, max_tokens=100).with_structured_output(Level, method="json_schema")
        answer = structured.invoke("How much?")
        self.assertIsInstance(answer, Level)
        *_, streamed = structured.stream("How much?")
        self.assertEqual(streamed, answer)
        self.proved(f"with_structured_output gives {answer!r}, whole and streamed")

    def test_error(self):
        model = self.model(temperature=0)
        for ask in (model.invoke, lambda text: list(model.stream(text))):
            with self.assertRaises(self.error) as caught:
                ask("word " * 20000)
            self.assertEqual(caught.exception.status_code, 400)
            self.assertIsInstance(caught.exception, ContextOverflowError)
        self.proved(f"{type(caught.exception).__name__}, whole and streamed")

    def test_a_client_that_leaves(self):
        self.rewritten(endless)
        before = self.stack.metrics()
        stream = self.model(temperature=0).stream(QUESTION)
        for _, _ in zip(range(PARTS_BEFORE_LEAVING), stream):
            pass
        stream.close()

        async def leave():
            async for _ in self.model(temperature=0).astream(QUESTION):
                asyncio.current_task().cancel()

        with self.assertRaises(asyncio.CancelledError):
            asyncio.run(leave())
        freed = check_freed(self.stack, before, 2)
        self.proved(f"a stream is closed and a task is cancelled, {freed}")


class OpenaiChat(Client, unittest.TestCase):
    def model(self, **options):
        # Without retries: they would hide refusals.
        here = {"model": self.name, "base_url": f"{self.recorder.url}/v1", "api_key": "not needed", "max_retries": 0}
        # From any server but its maker's this class asks for no usage in streams.
        return ChatOpenAI(**here, stream_usage=True, **options)

    def test_reasoning(self):
        """This class leaves fields of other makers out; what the answer has is there all the same."""
        model = self.model(reasoning_effort="medium")
        whole = model.invoke(QUESTION)
        self.assertIn("def fibonacci", whole.text)
        streamed = added(model.stream(QUESTION))
        self.assertEqual(streamed.text, whole.text)
        thought = whole.usage_metadata["output_token_details"]["reasoning"]
        self.assertEqual(streamed.usage_metadata["output_token_details"]["reasoning"], thought)
        self.assertGreater(thought, 0)
        self.proved(f"{thought} tokens of reasoning are told, whole and streamed")


class OpenaiResponses(OpenaiChat):
    def model(self, **options):
        return super().model(use_responses_api=True, **options)

    def thinking(self):
        # Of a reasoning this class shows the summary.
        return self.model(reasoning={"effort": "medium", "summary": "auto"}, include=["reasoning.encrypted_content"])

    test_reasoning = Client.test_reasoning


class AnthropicMessages(Client, unittest.TestCase):
    error = anthropic.BadRequestError

    def model(self, **options):
        options = {"max_tokens": 2000, **options}
        # Any name of a model will do: clients have this one compiled in.
        here = {"model": "claude-sonnet-4-5", "base_url": self.recorder.url, "api_key": "not needed", "max_retries": 0}
        return ChatAnthropic(**here, **options)

    def thinking(self):
        return self.model(thinking={"type": "enabled", "budget_tokens": 1024})


def added(chunks):
    """The message that the chunks make."""
    first, *more = chunks
    for chunk in more:
        first += chunk
    return first


def numbers(message):
    usage = message.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], usage
    return usage["input_tokens"], usage["output_tokens"]


def reasoning(message):
    return "".join(block.get("reasoning", "") for block in message.content_blocks if block["type"] == "reasoning")


if __name__ == "__main__":
    run(parser(__doc__, "OpenaiChat.test_schema"), ", ".join(f"{name} {version(name)}" for name in PACKAGES))
