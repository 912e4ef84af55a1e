"""The official `anthropic` client against a running set, with its checks of every answer switched on. Each test prints
what it proved.

    python harness/anthropic_client.py [--binary target/debug/tandem] [test names]
"""

import unittest

import anthropic

from answers import check_freed, streamed_message
from stack import Stack
from suite import arguments, parser, proved, run

MESSAGES = [{"role": "user", "content": "Write a Python function that returns the n-th Fibonacci number."}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


def client(stack):
    """Without retries: they would hide refusals."""
    return anthropic.Anthropic(
        base_url=stack.url, api_key="not needed", max_retries=0, timeout=120, _strict_response_validation=True
    )


def content(message):
    return [block.model_dump(exclude_none=True) for block in message.content]


def numbers(message):
    """Where the tokens of the prompt came from depends on who asked before."""
    usage = message.usage
    prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return prompt, usage.output_tokens, message.stop_reason, message.stop_sequence


class OneSet(unittest.TestCase):
    """Everything that one set with the default settings answers."""

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        cls.anthropic = cls.enterClassContext(client(cls.stack))

    def options(self, **options):
        # Any name will do: clients have this one compiled in.
        return {"model": "claude-sonnet-4-5", "max_tokens": 2000, "messages": MESSAGES, "extra_body": {"temperature": 0}, **options}

    def create(self, **options):
        return self.anthropic.messages.create(**self.options(**options))

    def stream(self, **options):
        """The message put together by the client, and the events it was made of."""
        options = {"max_tokens": 2000, **options}
        with self.anthropic.messages.stream(**self.options(**options)) as stream:
            events = [event for event in stream if event.type in RAW_EVENTS]
            return stream.get_final_message(), events

    def both(self, **options):
        whole = self.create(**options)
        streamed, events = self.stream(**options)
        self.assertEqual(content(streamed), content(whole))
        self.assertEqual(numbers(streamed), numbers(whole))
        streamed_message([(event.type, event.model_dump()) for event in events])
        return whole, events

    def test_thinking_and_text(self):
        whole, events = self.both(thinking=THINKING)
        self.assertEqual([block.type for block in whole.content], ["thinking", "text"])
        self.assertIn("def fibonacci", whole.content[1].text)
        self.assertTrue(whole.content[0].signature)
        self.assertEqual((whole.type, whole.role, whole.stop_reason), ("message", "assistant", "end_turn"))
        proved(f"messages: {len(events)} events make the whole answer, thinking with its signature, then text")

    def test_thinking_is_off_when_it_is_disabled(self):
        whole, _ = self.both(thinking={"type": "disabled"})
        self.assertEqual([block.type for block in whole.content], ["text"])
        proved("thinking: disabled, there is only text")

    def test_thinking_comes_back(self):
        first = self.create(thinking=THINKING)
        messages = [*MESSAGES, {"role": "assistant", "content": content(first)}, {"role": "user", "content": "Again."}]
        second, _ = self.both(messages=messages)
        self.assertTrue(second.content)
        third = self.create(messages=messages)
        self.assertGreater(third.usage.cache_read_input_tokens, 0)
        proved(f"history: thinking and text are taken back, {third.usage.cache_read_input_tokens} tokens were cached")

    def test_a_stop_sequence(self):
        whole, _ = self.both(stop_sequences=["never said", "return"], thinking={"type": "disabled"})
        self.assertEqual((whole.stop_reason, whole.stop_sequence), ("stop_sequence", "return"))
        self.assertNotIn("return", whole.content[0].text)
        proved("stop: the text ends before `return`, which is told, whole and streamed")

    def test_max_tokens(self):
        whole, _ = self.both(max_tokens=7)
        self.assertEqual((whole.stop_reason, whole.usage.output_tokens), ("max_tokens", 7))
        proved("max_tokens: 7 tokens, and the reason says so")

    def test_tokens_are_counted(self):
        tools = [{"name": "look", "description": "looks", "input_schema": {"type": "object", "properties": {}}}]
        for options in ({}, {"system": "Be brief."}, {"tools": tools}):
            counted = self.anthropic.messages.count_tokens(model="x", messages=MESSAGES, **options).input_tokens
            _, events = self.stream(max_tokens=1, **options)
            usage = events[0].message.usage
            self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, counted)
        proved(f"count_tokens: what message_start says, {counted} tokens with a tool")

    def test_what_agents_send(self):
        whole, _ = self.both(
            max_tokens=20,
            system=[
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "And kind."},
            ],
            thinking={"type": "adaptive"},
            metadata={"user_id": "somebody"},
            tools=[{"type": "web_search_20250305", "name": "web_search"}],
            extra_query={"beta": "true"},
            extra_headers={"anthropic-beta": "some-beta-2026"},
            extra_body={"context_management": {"edits": []}, "output_config": {"effort": "high"}},
        )
        # The close of the reasoning, where it was forced, is not part of the limit.
        self.assertGreaterEqual(whole.usage.output_tokens, 20)
        proved("agents: system blocks, cache_control, adaptive thinking, a server's tool and beta headers are taken")

    def test_models(self):
        (model,) = self.anthropic.models.list()
        self.assertEqual((model.type, model.lifecycle), ("model", "active"))
        self.assertEqual(self.anthropic.models.retrieve(model.id), model)
        proved(f"models: one, {model.id}, with {model.max_input_tokens} tokens of context")

    def test_bad_requests(self):
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
        for said, options in {
            "temperature": {"extra_body": {"temperature": 3}},
            "`messages` is an empty list": {"messages": []},
            "max_tokens": {"max_tokens": 0},
            "messages[0].content[0]": {"messages": [{"role": "user", "content": [picture]}]},
            "tool_choice": {"tool_choice": {"type": "tool", "name": "nobody"}},
        }.items():
            for ask in (self.create, self.stream):
                with self.subTest(said), self.assertRaises(anthropic.BadRequestError) as caught:
                    ask(**options)
                body = caught.exception.body
                self.assertEqual((body["type"], body["error"]["type"]), ("error", "invalid_request_error"))
                self.assertIn(said, body["error"]["message"])
                self.assertEqual(body["request_id"], caught.exception.request_id)
        proved("400: BadRequestError names the field, for five wrong fields, whole and streamed")

    def test_a_prompt_that_is_too_long(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.stream(messages=[{"role": "user", "content": "word " * 20000}])
        self.assertRegex(caught.exception.body["error"]["message"], r"^prompt is too long: \d+ tokens > \d+ maximum$")
        proved(f"400: {caught.exception.body['error']['message']}")

    def test_a_client_that_leaves(self):
        before = self.stack.metrics()
        with self.anthropic.messages.stream(
            **self.options(max_tokens=4000, extra_body={"ignore_eos": True})
        ) as stream:
            for _, _ in zip(range(20), stream):
                pass
            self.assertEqual(self.stack.metrics()["tandem_worker_running_sequences"], 1)
        proved(f"abort: the client leaves, {check_freed(self.stack, before, 1)}")


RAW_EVENTS = {
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
}


class FullSet(unittest.TestCase):
    """A set with one place and room for one more to wait."""

    def test_waiting_and_too_many(self):
        with Stack("--parallel", "1", "--queue-len", "1", binary=arguments.binary) as stack, client(stack) as session:
            long = {"model": "x", "max_tokens": 4000, "messages": MESSAGES, "extra_body": {"ignore_eos": True}}
            with session.messages.create(stream=True, **long) as running:
                while next(running).type != "content_block_delta":
                    pass
                with session.messages.create(stream=True, **long) as waiting:
                    start = next(waiting)
                    self.assertEqual(start.type, "message_start")
                    self.assertGreater(start.message.usage.input_tokens, 0)
                    counted = session.messages.count_tokens(model="x", messages=MESSAGES).input_tokens
                    self.assertEqual(start.message.usage.input_tokens, counted)
                    with self.assertRaises(anthropic.RateLimitError) as caught:
                        session.messages.create(**{**long, "stream": True})
                    self.assertEqual(caught.exception.body["error"]["type"], "rate_limit_error")
                    self.assertGreaterEqual(int(caught.exception.response.headers["retry-after"]), 1)
        proved("queue: one that waits has its message_start at once, tokens are counted, one more is a RateLimitError")


class DyingTarget(unittest.TestCase):
    def test_a_stream_that_breaks_off(self):
        with Stack(binary=arguments.binary) as stack, client(stack) as session:
            options = {"model": "any", "messages": MESSAGES, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
            with self.assertRaises(anthropic.APIStatusError) as caught, session.messages.stream(**options) as stream:
                for number, _ in enumerate(stream):
                    if number == 5:
                        stack.kill("target-worker")
            error = caught.exception.body["error"]
            self.assertEqual(error["type"], "overloaded_error", error)
            stack.wait_until_ready()
            self.assertTrue(session.messages.create(**{**options, "max_tokens": 5}).content)
        proved("a target that dies: the stream tells it as an error, and the next request is answered")


if __name__ == "__main__":
    run(parser(__doc__, "OneSet.test_max_tokens"), f"anthropic {anthropic.__version__}")
