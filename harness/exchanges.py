"""What the tests of agents hold a recorded exchange against: the order of the events of its answer, what these say put
together, and the round trip of a call."""

import json
from dataclasses import dataclass, field

from recorder import shortened
from stack import wait_until

FREED_WITHIN_SECONDS = 5


@dataclass
class Said:
    """A streamed answer, put together."""

    text: str = ""
    reasoning: str = ""
    calls: list = field(default_factory=list)
    """Name and arguments (JSON, read) of each."""
    stop: str = None


def saying(rewrite, text):
    """As `rewrite`, but an answer that calls nothing is this text: the model writes it under a grammar, and so comes to an
    end. Agents ask again after an answer that was cut."""

    def say(path, body):
        body = rewrite(path, body)
        if body is None or "tool_choice" in body and body["tool_choice"] not in ("auto", {"type": "auto"}):
            return body
        said = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
        if path == "/v1/responses":
            return {**said, "text": {"format": {"type": "json_schema", "name": "said", "schema": {"const": text}}}}
        return {**said, "structured_outputs": {"choice": [text]}}

    return say


def as_said(path, text):
    """What `saying` has the model write by that API: the Responses API knows no choice of texts, but constants in JSON."""
    return json.dumps(text) if path == "/v1/responses" else text


def rambling(path, body):
    """A `rewrite` after which an answer goes on until its client leaves."""
    said = {name: value for name, value in shortened(body).items() if name not in ("tools", "tool_choice", "max_completion_tokens")}
    limit = "max_output_tokens" if path.endswith("/responses") else "max_tokens"
    return {**said, limit: 6000, "ignore_eos": True}


def talks(recorder):
    """Whether an answer has begun, and is more than its opening events."""
    return any(exchange.answer.count(b"\ndata: ") + exchange.answer.count(b"\n\ndata: ") > 20 for exchange in recorder.exchanges)


def check_idle_after(test, stack, before):
    """Once its client has left, nothing runs, and both sides have counted a cancellation; how long that took. `before` is
    what the counters said earlier."""
    series = ("tandem_worker_running_sequences", "tandem_worker_queued_requests", "tandem_answers_in_flight")
    took = wait_until(lambda: not any(stack.metrics()[name] for name in series), FREED_WITHIN_SECONDS, "nothing runs")
    after = stack.metrics()
    for name in ("tandem_requests_cancelled_total", "tandem_worker_cancelled_requests"):
        test.assertGreater(after[name], before.get(name, 0), name)
    return took


def check_statuses(test, recorder, probed=()):
    """Nothing was refused, but for what a client merely probes: `probed` has those paths."""
    for exchange in recorder.exchanges:
        if exchange.path.partition("?")[0] not in probed:
            test.assertEqual(exchange.status, 200, f"{exchange.method} {exchange.path}: {exchange.answer[:500]}")


def check_round_trip(test, recorder, path, name, arguments, output, text, least):
    """The whole of it: the set reads what the client sent (`least` tokens or more), each answer that has to call calls once,
    the client's next request has `output` in the result of one, and the answer to that is `text`. Tells the tokens
    counted and the exchanges of the conversation."""
    exchanges = recorder.to(path)
    asked = [exchange for exchange in exchanges if "tool_choice" in (exchange.forwarded or {})]
    test.assertTrue(asked, f"{name} was never offered")
    counted = recorder.counted(asked[0])
    test.assertGreaterEqual(counted, least, "the set does not read all of the request")
    for exchange in asked:
        said = put_together(test, exchange)
        test.assertEqual(said.calls, [(name, arguments)], exchange.answer.decode())
    answered = [exchange for exchange in exchanges if any(output in result for result in results(exchange.request))]
    test.assertTrue(answered, "the client never sends the result of the call")
    test.assertGreater(recorder.counted(answered[0]), counted)
    test.assertEqual(put_together(test, answered[0]).text, as_said(path, text))
    return counted, exchanges


def results(request):
    """The text of each result of a tool in a request."""
    items = request.get("messages") or request.get("input")
    found = []
    for item in items if isinstance(items, list) else []:
        if item.get("role") == "tool":
            found.append(plain(item["content"]))
        if item.get("type") == "function_call_output":
            found.append(plain(item["output"]))
        if isinstance(item.get("content"), list):
            found += [plain(part.get("content")) for part in item["content"] if part.get("type") == "tool_result"]
    return found


def plain(content):
    """A text, or its parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def put_together(test, exchange):
    """What a streamed answer says; its events have to come in the order of their API."""
    test.assertTrue(exchange.streams, f"{exchange.path} does not stream")
    path = exchange.path.partition("?")[0]
    read = {"/v1/chat/completions": of_chat, "/v1/responses": of_responses, "/v1/messages": of_messages}[path]
    return read(test, exchange.events)


def of_chat(test, events):
    test.assertEqual(events[-1], (None, "[DONE]"))
    chunks = [data for _, data in events[:-1]]
    said, calls, ends = Said(), [], 0
    test.assertEqual(chunks[0]["choices"][0]["delta"].get("role"), "assistant")
    test.assertEqual(len({chunk["id"] for chunk in chunks}), 1)
    for chunk in chunks:
        test.assertEqual(chunk["object"], "chat.completion.chunk")
        for choice in chunk["choices"]:
            delta = choice["delta"]
            test.assertFalse(ends and any(delta.values()), f"something behind the end: {chunk}")
            test.assertFalse((said.text or calls) and delta.get("reasoning_content"), "reasoning comes first")
            said.text += delta.get("content") or ""
            said.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(calls):
                    test.assertTrue(call["id"] and call["type"] == "function" and call["function"]["name"], call)
                    calls.append([call["function"]["name"], ""])
                test.assertEqual(call["index"], len(calls) - 1)
                calls[-1][1] += call["function"].get("arguments") or ""
            if choice.get("finish_reason"):
                ends, said.stop = ends + 1, choice["finish_reason"]
    test.assertEqual(ends, 1)
    said.calls = [(name, json.loads(arguments)) for name, arguments in calls]
    test.assertEqual(said.stop == "tool_calls", bool(calls))
    return said


def of_messages(test, events):
    said, block, index = Said(), None, -1
    for name, data in events:
        test.assertEqual(name, data["type"])
    events = [data for _, data in events if data["type"] != "ping"]
    test.assertEqual(events[0]["type"], "message_start")
    test.assertEqual([event["type"] for event in events[-2:]], ["message_delta", "message_stop"])
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            test.assertIsNone(block)
            block, index, arguments = event["content_block"], index + 1, ""
        test.assertEqual(event["index"], index)
        delta = event.get("delta", {})
        said.text += delta.get("text", "")
        said.reasoning += delta.get("thinking", "")
        arguments += delta.get("partial_json", "")
        if event["type"] == "content_block_stop":
            if block["type"] == "tool_use":
                said.calls.append((block["name"], json.loads(arguments or "{}")))
            block = None
    test.assertIsNone(block)
    said.stop = events[-2]["delta"]["stop_reason"]
    test.assertEqual(said.stop == "tool_use", bool(said.calls))
    return said


def of_responses(test, events):
    said, is_open = Said(), False
    for name, data in events:
        test.assertEqual(name, data["type"])
    test.assertEqual([data["sequence_number"] for _, data in events], list(range(len(events))))
    test.assertEqual([name for name, _ in events[:2]], ["response.created", "response.in_progress"])
    last, response = events[-1]
    said.stop = response["response"]["status"]
    test.assertEqual(last, f"response.{said.stop}")
    for name, data in events:
        if name == "response.output_item.added":
            test.assertFalse(is_open)
        is_open = name == "response.output_item.added" or is_open and name != "response.output_item.done"
        if name == "response.output_text.delta":
            said.text += data["delta"]
        if name == "response.output_item.done" and data["item"]["type"] == "function_call":
            said.calls.append((data["item"]["name"], json.loads(data["item"]["arguments"])))
    test.assertFalse(is_open)
    return said
