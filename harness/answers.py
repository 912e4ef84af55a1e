"""What the answers in recorded exchanges say, the order in which each API's events have to come, and what tests of clients hold
whole exchanges against: the way of a tool's call and its result, and what a client that leaves leaves behind."""

import json
from dataclasses import dataclass, field

import dialects

# More than an answer opens with, whatever its API.
OPENING_EVENTS = 20


@dataclass
class Said:
    """What an answer consists of."""

    text: str = ""
    reasoning: str = ""
    calls: dict = field(default_factory=dict)
    """Name and arguments (JSON, read) by the call's id."""
    stop: str = None
    """In the API's own words."""
    usage: dict = None


def read(exchange):
    """The answer, whole or streamed; the events of a streamed one are checked."""
    assert exchange.status == 200, f"{exchange.method} {exchange.path}: {exchange.status} {exchange.answer[:500]}"
    whole, streamed = READERS[dialects.of(exchange.path)]
    return streamed(exchange.events) if exchange.streams else whole(exchange.json)


def check_round_trip(first, second):
    """The first answer is calls; the second request has the same calls, and a result for each; its answer is text.
    Both answers, and the results."""
    called, final = read(first), read(second)
    assert called.calls, f"no call: {first.answer}"
    sent, results = dialects.of(second.path).sent(second.request)
    assert by_plain_id(sent) == by_plain_id(called.calls), f"the answer was {called.calls}, what came back is {sent}"
    assert list(results) == list(sent) and all(results.values()), results
    assert final.text and not final.calls, final
    return called, final, list(results.values())


def by_plain_id(calls):
    """Some clients (OpenClaw) send ids back without what is no letter and no digit."""
    return {"".join(filter(str.isalnum, id)): call for id, call in calls.items()}


def check_freed(stack, before, requests):
    """Nothing runs any more, and both sides have counted so many cancelled requests since `before`. Words for how long it took."""
    took = stack.wait_until_idle()
    after = stack.metrics()
    for name in ("tandem_requests_cancelled_total", "tandem_worker_cancelled_requests"):
        cancelled = after[name] - before.get(name, 0)
        assert cancelled == requests, f"{name} counts {cancelled} of {requests}"
    return f"{took * 1000:.0f} ms later nothing runs, and both sides count {requests} cancelled"


def talks(exchange):
    """Whether its answer has begun to say something, and goes on."""
    return exchange.answer.count(b"data: ") > OPENING_EVENTS


def whole_chat(answer):
    (choice,) = answer["choices"]
    message = choice["message"]
    reasoning = message.get("reasoning_content") or ""
    return Said(message["content"] or "", reasoning, dialects.Chat.calls(message), choice["finish_reason"], answer["usage"])


def streamed_chat(events):
    assert events[-1] == (None, "[DONE]"), events[-1]
    chunks = [data for _, data in events[:-1]]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    said, calls = Said(), []
    if not chunks[-1]["choices"]:
        said.usage = chunks.pop()["usage"]
    assert chunks[0]["choices"][0]["delta"].get("role") == "assistant", chunks[0]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        assert not said.stop, f"something behind the end: {chunk}"
        assert not ((said.text or calls) and delta.get("reasoning_content")), f"reasoning comes first: {chunk}"
        said.text += delta.get("content") or ""
        said.reasoning += delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls") or []:
            if piece["index"] == len(calls):
                assert piece["id"] and piece["type"] == "function" and piece["function"]["name"], piece
                calls.append({"id": piece["id"], "function": {"arguments": "", **piece["function"]}})
            else:
                assert piece["index"] == len(calls) - 1, f"one call after the other: {piece}"
                calls[-1]["function"]["arguments"] += piece["function"].get("arguments") or ""
        said.stop = choice.get("finish_reason")
    said.calls = dialects.Chat.calls({"tool_calls": calls})
    assert said.stop and (said.stop == "tool_calls") == bool(calls), said
    return said


def whole_response(response):
    said = Said(calls=dialects.Responses.calls(response["output"]), stop=response["status"], usage=response["usage"])
    for item in response["output"]:
        if item["type"] == "message":
            said.text += dialects.plain(item["content"])
        if item["type"] == "reasoning":
            said.reasoning += dialects.plain(item["summary"] or item.get("content"))
    return said


# The events with pieces of a text, and where an item has the whole of it.
PIECES = {
    "response.output_text.delta": lambda item, event: item["content"][event["content_index"]]["text"],
    "response.reasoning_text.delta": lambda item, event: item["content"][event["content_index"]]["text"],
    "response.reasoning_summary_text.delta": lambda item, event: item["summary"][event["summary_index"]]["text"],
    "response.function_call_arguments.delta": lambda item, _: item["arguments"],
    "response.custom_tool_call_input.delta": lambda item, _: item["input"],
}
PART_OPENED = {
    "response.output_text.delta": "response.content_part.added",
    "response.reasoning_text.delta": "response.content_part.added",
    "response.reasoning_summary_text.delta": "response.reasoning_summary_part.added",
}


def streamed_response(events):
    assert all(name == event["type"] for name, event in events), "each event has its type as its name"
    events = [event for _, event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds[:2]
    whole = events[-1]["response"]
    assert kinds[-1] == f"response.{whole['status']}", events[-1]
    assert not {"response.completed", "response.incomplete", "response.failed", "error"} & set(kinds[:-1]), kinds
    items, is_open, opened, texts = [], False, set(), {}
    for event in events[2:-1]:
        kind = event["type"]
        if kind == "response.in_progress":
            # Again and again: a sign of life.
            continue
        if kind == "response.output_item.added":
            assert not is_open, event
            items.append(event["item"])
            is_open = True
        # All that is said between an item's begin and its end is said of it.
        item_id = event["item"]["id"] if "item" in event else event["item_id"]
        assert is_open and (item_id, event["output_index"]) == (items[-1]["id"], len(items) - 1), event
        if kind == "response.output_item.done":
            items[-1], is_open = event["item"], False
        if kind.endswith("part.added"):
            opened.add((kind, *place(event)))
        if kind in PIECES:
            assert kind not in PART_OPENED or (PART_OPENED[kind], *place(event)) in opened, f"a piece of no part: {event}"
            texts.setdefault((kind, *place(event)), [event, ""])[1] += event["delta"]
    assert not is_open and items == whole["output"], (items, whole["output"])
    for (kind, index, _), (event, text) in texts.items():
        assert text == PIECES[kind](items[index], event), (text, items[index])
    return whole_response(whole)


def place(event):
    """The item, and the part of it."""
    return event["output_index"], event.get("content_index", event.get("summary_index"))


def whole_message(message):
    said = Said(calls=dialects.Messages.calls(message["content"]), stop=message["stop_reason"], usage=message["usage"])
    for block in message["content"]:
        said.text += block.get("text") or ""
        said.reasoning += block.get("thinking") or ""
    return said


def streamed_message(events):
    assert all(name == event["type"] for name, event in events), "each event has its type as its name"
    events = [event for _, event in events if event["type"] != "ping"]
    assert events[0]["type"] == "message_start" and events[0]["message"]["content"] == [], events[0]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"], events[-2:]
    blocks, is_open, text = [], False, ""
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open, event
            blocks.append(dict(event["content_block"]))
            is_open, text = True, ""
        assert is_open and event["index"] == len(blocks) - 1, event
        delta = event.get("delta", {})
        for name in ("text", "thinking"):
            if delta.get("type") == f"{name}_delta":
                blocks[-1][name] += delta[name]
        text += delta.get("partial_json", "")
        if event["type"] == "content_block_stop":
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(text or "{}")
    assert not is_open
    end = events[-2]
    usage = {**events[0]["message"]["usage"], **end["usage"]}
    said = whole_message({"content": blocks, "stop_reason": end["delta"]["stop_reason"], "usage": usage})
    assert (said.stop == "tool_use") == bool(said.calls), said
    return said


READERS = {
    dialects.Chat: (whole_chat, streamed_chat),
    dialects.Responses: (whole_response, streamed_response),
    dialects.Messages: (whole_message, streamed_message),
}
