"""What tests of clients check beyond what the client sees: the way of a tool's call and its result, read out of recorded
exchanges in each API's words, and that a client which leaves leaves nothing behind."""

import json
from dataclasses import dataclass, field

from recorder import DIALECTS as FIELDS
from stack import wait_until

FREED_WITHIN_SECONDS = 5
ENDLESS_TOKENS = 4000


@dataclass
class Said:
    """What an answer consists of, but for its reasoning."""

    text: str = ""
    calls: dict = field(default_factory=dict)
    """Name and arguments by the call's id."""


def check_round_trip(first, second):
    """The first answer is calls; the second request has the same calls, and a result for each; its answer is text.
    The calls."""
    for exchange in (first, second):
        assert exchange.status == 200, exchange.answer
    dialect = DIALECTS[first.path.partition("?")[0]]
    calls = dialect.answered(first).calls
    assert calls, f"no call: {first.answer}"
    sent, results = dialect.sent(second.request)
    assert sent == calls, f"the answer was {calls}, what came back is {sent}"
    assert list(results) == list(calls) and all(results.values()), results
    final = dialect.answered(second)
    assert final.text and not final.calls, final
    return list(calls.values())


def endless(path, body):
    """A `rewrite` for a recorder: answers do not end by themselves."""
    return {**body, "ignore_eos": True, FIELDS[path].limit: ENDLESS_TOKENS}


def check_freed(stack, before, requests):
    """Nothing runs any more, and both sides have counted so many cancelled requests since `before`."""
    series = ("tandem_worker_running_sequences", "tandem_worker_queued_requests", "tandem_answers_in_flight")
    wait_until(lambda: not any(stack.metrics()[name] for name in series), FREED_WITHIN_SECONDS, "nothing runs")
    after = stack.metrics()
    for name in ("tandem_requests_cancelled_total", "tandem_worker_cancelled_requests"):
        cancelled = after[name] - before.get(name, 0)
        assert cancelled == requests, f"{name} counts {cancelled} of {requests}"


class Chat:
    @staticmethod
    def answered(exchange):
        if not exchange.streams:
            message = exchange.json["choices"][0]["message"]
            return Said(message["content"] or "", Chat.calls(message))
        said, calls = Said(), {}
        for _, chunk in exchange.events[:-1]:
            for choice in chunk["choices"]:
                delta = choice["delta"]
                said.text += delta.get("content") or ""
                for piece in delta.get("tool_calls") or []:
                    # A call's first piece has its id and name, the others arguments only.
                    if "id" in piece:
                        calls[piece["index"]] = piece
                    else:
                        calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        said.calls = Chat.calls({"tool_calls": list(calls.values())})
        return said

    @staticmethod
    def calls(message):
        functions = {call["id"]: call["function"] for call in message.get("tool_calls") or []}
        return {id: (function["name"], json.loads(function["arguments"])) for id, function in functions.items()}

    @staticmethod
    def sent(request):
        calls, results = {}, {}
        for message in request["messages"]:
            calls |= Chat.calls(message)
            if message["role"] == "tool":
                results[message["tool_call_id"]] = message["content"]
        return calls, results


class Responses:
    @staticmethod
    def answered(exchange):
        response = exchange.events[-1][1]["response"] if exchange.streams else exchange.json
        messages = [item for item in response["output"] if item["type"] == "message"]
        text = "".join(part["text"] for message in messages for part in message["content"])
        return Said(text, Responses.calls(response["output"]))

    @staticmethod
    def calls(items):
        calls = [item for item in items if item.get("type") == "function_call"]
        return {call["call_id"]: (call["name"], json.loads(call["arguments"])) for call in calls}

    @staticmethod
    def sent(request):
        outputs = [item for item in request["input"] if item.get("type") == "function_call_output"]
        return Responses.calls(request["input"]), {item["call_id"]: item["output"] for item in outputs}


class Messages:
    @staticmethod
    def answered(exchange):
        blocks = Messages.put_together(exchange.events) if exchange.streams else exchange.json["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        return Said(text, Messages.calls(blocks))

    @staticmethod
    def put_together(events):
        blocks, inputs = {}, {}
        for _, event in events:
            if event["type"] == "content_block_start":
                blocks[event["index"]] = event["content_block"]
            elif event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
                blocks[event["index"]]["text"] += event["delta"]["text"]
            elif event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + event["delta"]["partial_json"]
        for index, text in inputs.items():
            blocks[index]["input"] = json.loads(text)
        return list(blocks.values())

    @staticmethod
    def calls(blocks):
        return {block["id"]: (block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"}

    @staticmethod
    def sent(request):
        calls, results = {}, {}
        for message in request["messages"]:
            if isinstance(message["content"], list):
                calls |= Messages.calls(message["content"])
                results |= {it["tool_use_id"]: it["content"] for it in message["content"] if it["type"] == "tool_result"}
        return calls, results


DIALECTS = {"/v1/chat/completions": Chat, "/v1/responses": Responses, "/v1/messages": Messages}
