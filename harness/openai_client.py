"""The official `openai` client against a running set. Each test prints what it proved.

    python harness/openai_client.py [--binary target/debug/tandem] [test names]
"""

import asyncio
import contextlib
import unittest

import openai

from answers import check_freed
from stack import Stack
from suite import arguments, parser, proved, run

MESSAGES = [{"role": "user", "content": "Write a Python function that returns the n-th Fibonacci number."}]
PROMPT = "def fibonacci(n):\n"
LONG = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}


def client(stack, kind=openai.OpenAI):
    """Without retries: they would hide refusals."""
    return kind(base_url=f"{stack.url}/v1", api_key="not needed", max_retries=0, timeout=120)


def spoken(part):
    """Reasoning and content of a message or of a stream's delta."""
    return (getattr(part, "reasoning_content", None) or "", part.content or "")


def joined(chunks, index=0):
    """Reasoning and content of choice `index`, put together from a chat stream."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return tuple("".join(parts) for parts in zip(*(spoken(choice.delta) for choice in choices)))


class OneSet(unittest.TestCase):
    """Everything that one set with the default settings answers."""

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack("--strict-model-names", binary=arguments.binary))
        cls.openai = cls.enterClassContext(client(cls.stack))
        cls.model = cls.openai.models.list().data[0].id

    def chat(self, **options):
        return self.openai.chat.completions.create(model=self.model, messages=MESSAGES, **options)

    def complete(self, **options):
        return self.openai.completions.create(model=self.model, prompt=PROMPT, **options)

    def test_models(self):
        (entry,) = self.openai.models.list().data
        one = self.openai.models.retrieve(entry.id)
        self.assertEqual((one.id, one.object, one.owned_by), (entry.id, "model", "tandem"))
        with self.assertRaises(openai.NotFoundError):
            self.openai.models.retrieve("no-such-model")
        proved(f"models: the list holds `{entry.id}`, retrieve finds it and no other")

    def test_chat_streamed_equals_whole(self):
        thinks = {"extra_body": {"enable_thinking": True}}
        whole = self.chat(**thinks)
        chunks = list(self.chat(stream=True, **thinks))
        self.assertEqual(joined(chunks), spoken(whole.choices[0].message))
        reasoning, content = joined(chunks)
        self.assertIn("def fibonacci", content)
        self.assertTrue(reasoning)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        self.assertEqual(reasons, [whole.choices[0].finish_reason], "one finish reason, the same as of the whole")
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        proved(f"chat: {len(chunks)} chunks make the whole answer, {len(reasoning)} + {len(content)} characters")

    def test_completions_streamed_equals_whole(self):
        whole = self.complete(max_tokens=60)
        chunks = list(self.complete(max_tokens=60, stream=True))
        text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
        self.assertEqual(text, whole.choices[0].text)
        self.assertIn("return", text)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        several = self.openai.completions.create(model=self.model, prompt=[PROMPT, "class Stack:\n"], max_tokens=60)
        self.assertEqual([choice.index for choice in several.choices], [0, 1])
        self.assertEqual(several.choices[0].text, text)
        proved("completions: the streamed text equals the whole; of two prompts the first is answered as alone")

    def test_stop_strings(self):
        free = self.complete(max_tokens=60).choices[0].text
        stop = "return"
        stopped = self.complete(max_tokens=60, stop=["never said", stop]).choices[0]
        self.assertEqual(stopped.text, free.partition(stop)[0])
        self.assertEqual(stopped.finish_reason, "stop")
        chunks = list(self.complete(max_tokens=60, stop=stop, stream=True))
        self.assertEqual("".join(choice.text for chunk in chunks for choice in chunk.choices), stopped.text)
        proved(f"stop: the text ends before {stop!r}, whole and streamed, with the reason `stop`")

    def test_seed(self):
        def draw(seed):
            return self.complete(max_tokens=40, temperature=1.2, seed=seed).choices[0].text

        one, again, other = draw(1), draw(1), draw(2)
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)
        proved("seed: at temperature 1.2 the same seed gives the same text and another one another")

    def test_two_answers(self):
        options = {"n": 2, "temperature": 2, "seed": 5, "max_tokens": 40}
        whole = self.chat(**options)
        self.assertEqual([choice.index for choice in whole.choices], [0, 1])
        chunks = list(self.chat(stream=True, **options))
        self.assertEqual({choice.index for chunk in chunks for choice in chunk.choices}, {0, 1})
        for choice in whole.choices:
            self.assertEqual(joined(chunks, choice.index), spoken(choice.message))
        self.assertNotEqual(joined(chunks, 0), joined(chunks, 1))
        proved("n=2: two different choices; the stream's indexes lead to the same two texts")

    def test_logprobs(self):
        options = {"logprobs": True, "top_logprobs": 3, "reasoning_effort": "none"}
        whole = self.chat(max_tokens=20, **options).choices[0]
        entries = whole.logprobs.content
        self.assertEqual("".join(entry.token for entry in entries), whole.message.content)
        for entry in entries:
            self.assertLessEqual(entry.logprob, 0)
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.top_logprobs[0].token, entry.token, "greedy takes the likeliest")
            tops = [top.logprob for top in entry.top_logprobs]
            self.assertEqual(tops, sorted(tops, reverse=True))
        streamed = [
            entry
            for chunk in self.chat(max_tokens=20, stream=True, **options)
            for choice in chunk.choices
            if choice.logprobs
            for entry in choice.logprobs.content
        ]
        self.assertEqual(streamed, entries)
        plain = self.complete(max_tokens=5, logprobs=2).choices[0]
        self.assertEqual("".join(plain.logprobs.tokens), plain.text)
        self.assertEqual([len(top) for top in plain.logprobs.top_logprobs], [2] * 5)
        proved(f"logprobs: {len(entries)} tokens with 3 alternatives each, the same whole and streamed")

    def test_usage_in_the_stream(self):
        whole = self.chat(max_tokens=30).usage
        *chunks, last = self.chat(max_tokens=30, stream=True, stream_options={"include_usage": True})
        self.assertEqual(last.choices, [])
        self.assertEqual(last.usage, whole)
        self.assertTrue(all(chunk.usage is None for chunk in chunks))
        self.assertTrue(all(chunk.usage is None for chunk in self.chat(max_tokens=30, stream=True)))
        self.assertEqual(whole.completion_tokens, 30)
        proved(f"usage: if asked, the last chunk says {whole.prompt_tokens} + {whole.completion_tokens} tokens")

    def test_a_client_that_leaves(self):
        before = self.stack.metrics()
        stream = self.chat(stream=True, **LONG)
        for _, _ in zip(range(20), stream):
            pass
        running = self.stack.metrics()
        self.assertEqual(running["tandem_worker_running_sequences"], 1)
        stream.close()
        proved(f"abort: the client leaves, {check_freed(self.stack, before, 1)}")

    def test_bad_requests(self):
        for param, options in {
            "temperature": {"temperature": 3},
            "messages": {"messages": []},
            "max_tokens": {"max_tokens": 0},
            "n": {"n": 1000},
        }.items():
            with self.subTest(param), self.assertRaises(openai.BadRequestError) as caught:
                self.openai.chat.completions.create(**{"model": self.model, "messages": MESSAGES, **options})
            self.assertEqual(caught.exception.param, param)
            self.assertEqual(caught.exception.type, "invalid_request_error")
        proved("400: BadRequestError names the field, for four wrong fields")

    def test_a_prompt_that_is_too_long(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.completions.create(model=self.model, prompt="word " * 20000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        proved(f"400: {caught.exception.body['message']}")

    def test_an_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.chat.completions.create(model="gpt-99", messages=MESSAGES)
        self.assertEqual((caught.exception.param, caught.exception.code), ("model", "model_not_found"))
        proved(f"404: NotFoundError, {caught.exception.body['message']}")

    def test_eight_at_once(self):
        prompts = [f"def f{i}(a, b):\n    return a " for i in range(8)]

        async def ask(asynchronous, prompt):
            stream = await asynchronous.completions.create(model=self.model, prompt=prompt, max_tokens=40, stream=True)
            return "".join([choice.text async for chunk in stream for choice in chunk.choices])

        async def all_at_once():
            async with client(self.stack, openai.AsyncOpenAI) as asynchronous:
                return await asyncio.gather(*(ask(asynchronous, prompt) for prompt in prompts))

        together = asyncio.run(all_at_once())
        alone = [
            self.openai.completions.create(model=self.model, prompt=prompt, max_tokens=40).choices[0].text
            for prompt in prompts
        ]
        self.assertEqual(together, alone)
        proved("async: 8 streams at once, each with the text that its prompt gets alone")


class FullSet(unittest.TestCase):
    """A set with one place and room for one more to wait."""

    def test_too_many(self):
        with Stack("--parallel", "1", "--queue-len", "1", binary=arguments.binary) as stack, client(stack) as session:
            model = session.models.list().data[0].id

            def stream():
                return session.completions.create(model=model, prompt=PROMPT, stream=True, **LONG)

            with contextlib.ExitStack() as held:
                running = held.enter_context(stream())
                next(iter(running))
                waiting = held.enter_context(stream())
                with self.assertRaises(openai.RateLimitError) as caught:
                    stream()
                error = caught.exception
                self.assertEqual((error.code, error.type), ("queue_full", "rate_limit_error"))
                self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
                running.close()
                self.assertTrue(next(iter(waiting)).choices, "the one that waited gets the place")
            short = session.completions.create(model=model, prompt=PROMPT, max_tokens=5)
            self.assertEqual(short.usage.completion_tokens, 5)
            self.assertEqual(stack.metrics()["tandem_requests_rejected_total"], 1)
        pause = error.response.headers["retry-after"]
        proved(f"429: RateLimitError, Retry-After {pause} s; a place that gets free is used")


class DyingTarget(unittest.TestCase):
    def test_a_stream_that_breaks_off(self):
        with Stack(binary=arguments.binary) as stack, client(stack) as session:
            model = session.models.list().data[0].id
            for api in ("chat", "completions"):
                with self.subTest(api), self.assertRaises(openai.APIError) as caught:
                    options = {"model": model, "stream": True, **LONG}
                    if api == "chat":
                        stream = session.chat.completions.create(messages=MESSAGES, **options)
                    else:
                        stream = session.completions.create(prompt=PROMPT, **options)
                    for number, _ in enumerate(stream):
                        if number == 5:
                            stack.kill("target-worker")
                # Not a connection that broke, but an error that the stream itself told.
                self.assertEqual((type(caught.exception), caught.exception.code), (openai.APIError, "worker_unavailable"))
                stack.wait_until_ready()
            self.assertTrue(session.completions.create(model=model, prompt=PROMPT, max_tokens=5).choices[0].text)
        proved("a target that dies: both streams tell it as an error, and the next request is answered")


if __name__ == "__main__":
    run(parser(__doc__, "OneSet.test_seed"), f"openai {openai.__version__}")
