"""The official `openai` client against the Responses API of a running set. Each test prints what it proved.

    python harness/openai_responses.py [--binary target/debug/tandem] [test names]
"""

import json
import unittest

import openai
from openai.types.responses import Response

from answers import check_freed, streamed_response
from openai_client import client
from stack import Stack
from suite import arguments, parser, proved, run

INPUT = "Write a Python function that returns the n-th Fibonacci number."
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Lima"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
NOTE = {"type": "custom", "name": "note", "description": "Takes a note."}


def essence(response):
    """What both forms of an answer have in common."""
    output = [item.model_dump(exclude={"id", "call_id"}) for item in response.output]
    return output, response.status, response.incomplete_details, response.usage


def as_sent(value):
    """Without what the client adds to what it got."""
    if isinstance(value, dict):
        return {name: as_sent(inner) for name, inner in value.items() if name not in ("parsed", "parsed_arguments")}
    return [as_sent(inner) for inner in value] if isinstance(value, list) else value


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        cls.openai = cls.enterClassContext(client(cls.stack))
        cls.model = cls.openai.models.list().data[0].id

    def create(self, **options):
        return self.openai.responses.create(**{"model": self.model, "input": INPUT, **options})

    def stream(self, **options):
        """All events and the answer, put together by the client."""
        with self.openai.responses.stream(**{"model": self.model, "input": INPUT, **options}) as stream:
            events = list(stream)
            return events, stream.get_final_response()

    def check_events(self, events):
        streamed_response([(event.type, as_sent(event.model_dump())) for event in events])

    def test_streamed_equals_whole(self):
        thinking = {"reasoning": {"effort": "medium"}}
        whole = self.create(**thinking)
        self.assertIsInstance(whole, Response)
        self.assertIn("def fibonacci", whole.output_text)
        self.assertEqual([item.type for item in whole.output], ["reasoning", "message"])
        events = list(self.create(stream=True, **thinking))
        self.check_events(events)
        self.assertEqual(essence(events[-1].response), essence(whole))
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(deltas, whole.output_text)
        _, put_together = self.stream(**thinking)
        self.assertEqual(put_together.output_text, whole.output_text)
        proved(f"responses: {len(events)} events make the whole answer, {len(deltas)} characters, by both of the client's readers")

    def test_reasoning_is_sent_back(self):
        first = self.create(include=["reasoning.encrypted_content"], reasoning={"summary": "auto", "effort": "medium"})
        reasoning = first.output[0]
        self.assertTrue(reasoning.encrypted_content and reasoning.summary[0].text)
        history = [{"role": "user", "content": INPUT}, *[item.to_dict() for item in first.output]]
        more = {"role": "user", "content": "And the factorial?"}
        for _ in range(2):
            second = self.create(input=[*history, more], max_output_tokens=8)
        cached = second.usage.input_tokens_details.cached_tokens
        self.assertGreater(cached, 0)
        proved(f"reasoning: sent back with what it was sealed in; {cached} of {second.usage.input_tokens} tokens were cached")

    def test_a_function_is_called_and_its_result_is_read(self):
        for stream in (False, True):
            options = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
            options |= {"input": "How is the weather in Oslo?", "reasoning": {"effort": "none"}}
            if stream:
                events, answer = self.stream(**options)
                self.check_events(events)
            else:
                answer = self.create(**options)
            (call,) = [item for item in answer.output if item.type == "function_call"]
            self.assertEqual((call.name, call.status), ("get_weather", "completed"))
            self.assertIn(json.loads(call.arguments)["city"], ["Oslo", "Lima"])
            history = [{"role": "user", "content": options["input"]}, *as_sent([item.to_dict() for item in answer.output])]
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."})
            result = self.create(input=history, tools=[WEATHER], max_output_tokens=60)
            self.assertIn(result.status, ("completed", "incomplete"))
            self.assertTrue(result.output)
        proved(f"functions: {call.name}({call.arguments}), streamed and whole, and the answer after its result")

    def test_a_tool_that_takes_text(self):
        options = {"tools": [NOTE], "tool_choice": {"type": "custom", "name": "note"}, "max_output_tokens": 200}
        events = list(self.create(stream=True, reasoning={"effort": "none"}, **options))
        self.check_events(events)
        (call,) = [item for item in events[-1].response.output if item.type == "custom_tool_call"]
        deltas = "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta")
        self.assertEqual((call.name, deltas), ("note", call.input))
        proved(f"custom tools: a call with {len(call.input)} characters of plain text")

    def test_json_of_a_schema(self):
        schema = {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["n"],
            "additionalProperties": False,
        }
        text = {"format": {"type": "json_schema", "name": "number", "schema": schema, "strict": True}}
        answer = self.create(input="A digit, please.", text=text, reasoning={"effort": "none"}, max_output_tokens=100)
        self.assertEqual(answer.status, "completed")
        self.assertIn(json.loads(answer.output_text)["n"], range(10))
        proved(f"text.format: {answer.output_text}")

    def test_the_end_is_told(self):
        cut = self.create(max_output_tokens=5)
        self.assertEqual((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual(cut.usage.output_tokens, 5)
        *_, last = self.create(max_output_tokens=5, stream=True)
        self.assertEqual((last.type, last.response.status), ("response.incomplete", "incomplete"))
        proved("incomplete: told with its reason, streamed and whole")

    def test_tokens_are_counted(self):
        count = self.openai.responses.input_tokens.count(model=self.model, input=INPUT).input_tokens
        self.assertEqual(count, self.create(max_output_tokens=1).usage.input_tokens)
        proved(f"input_tokens: {count}, as many as the answer's usage says")

    def test_a_client_that_leaves(self):
        before = self.stack.metrics()
        stream = self.create(stream=True, max_output_tokens=4000, extra_body={"ignore_eos": True})
        for _, event in zip(range(20), stream):
            self.assertNotEqual(event.type, "response.completed")
        stream.close()
        proved(f"abort: the client leaves, {check_freed(self.stack, before, 1)}")

    def test_errors(self):
        for param, options in {
            "temperature": {"temperature": 3},
            "input": {"input": []},
            "previous_response_id": {"previous_response_id": "resp_1"},
            "input[0].content[0]": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "tools[0].name": {"tools": [{"type": "function"}]},
        }.items():
            with self.subTest(param), self.assertRaises(openai.BadRequestError) as caught:
                self.create(**options)
            self.assertEqual(caught.exception.param, param)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(input="word " * 20000, stream=True)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.responses.retrieve("resp_1")
        self.assertEqual(caught.exception.code, "response_not_found")
        proved("400: names the field, for five wrong ones and a prompt that is too long; 404: nothing is stored")


class DyingTarget(unittest.TestCase):
    def test_a_stream_that_breaks_off(self):
        with Stack(binary=arguments.binary) as stack, client(stack) as session:
            options = {"model": "any", "input": INPUT, "extra_body": {"ignore_eos": True}}
            events = []
            for event in session.responses.create(stream=True, **options):
                events.append(event)
                if len(events) == 10:
                    stack.kill("target-worker")
            last = events[-1]
            self.assertEqual((last.type, last.response.status), ("response.failed", "failed"))
            self.assertEqual(last.response.error.code, "server_error")
            stack.wait_until_ready()
            again = session.responses.create(**{**options, "max_output_tokens": 5})
            self.assertEqual(again.status, "incomplete")
        proved("a target that dies: the stream ends with response.failed, and the next request is answered")


if __name__ == "__main__":
    run(parser(__doc__, "Responses.test_errors"), f"openai {openai.__version__}")
