"""What a stream of events has to be, by its API, and the answer put together from it. Takes what a `Recorder` wrote down."""

import json


def of_responses(exchange):
    """The Responses API's: the items that the answer consists of, and its usage."""
    assert exchange.streams, exchange.answer_headers
    names, events = zip(*exchange.events)
    kinds = [event["type"] for event in events]
    assert list(names) == kinds, "each event has its type as its name"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    # The second one again and again is a sign of life.
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds[:2]
    assert kinds[-1] == "response.completed", events[-1]
    assert not {"response.completed", "response.incomplete", "response.failed", "error"} & set(kinds[:-1])
    items = []
    for event in events[2:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items), event
            items.append(event["item"])
        elif kind == "response.output_item.done":
            assert event["item"]["id"] == items[-1]["id"] and event["output_index"] == len(items) - 1, event
            items[-1] = event["item"]
        elif kind != "response.in_progress":
            # All that is said between an item's begin and its end is said of it.
            assert event["item_id"] == items[-1]["id"] and event["output_index"] == len(items) - 1, event
    whole = events[-1]["response"]
    assert items == whole["output"], (items, whole["output"])
    for index, item in enumerate(items):
        said, full = {"function_call": ("function_call_arguments", "arguments")}.get(item["type"], ("output_text", None))
        deltas = "".join(it["delta"] for it in events if it["type"] == f"response.{said}.delta" and it["output_index"] == index)
        if item["type"] in ("function_call", "message"):
            assert deltas == (item[full] if full else item["content"][0]["text"]), (deltas, item)
    return items, whole["usage"]


def of_chat(exchange):
    """That of chat completions: content, calls (name and arguments), the reason of the end, and usage."""
    assert exchange.streams, exchange.answer_headers
    events = [data for _, data in exchange.events]
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert usage["choices"] == [] and usage["usage"], "asked for by each of these agents, and the last"
    assert len({event["id"] for event in events}) == 1
    assert all(len(event["choices"]) == 1 for event in events)
    choices = [event["choices"][0] for event in events]
    assert choices[0]["delta"].get("role") == "assistant", choices[0]
    assert [bool(choice["finish_reason"]) for choice in choices] == [False] * (len(choices) - 1) + [True], "one end, the last"
    content, calls = "", []
    for choice in choices:
        content += choice["delta"].get("content") or ""
        for piece in choice["delta"].get("tool_calls", []):
            if piece["index"] == len(calls):
                assert piece["id"] and piece["type"] == "function" and piece["function"]["name"], piece
                calls.append([piece["function"]["name"], ""])
            assert piece["index"] == len(calls) - 1, "one call after the other"
            calls[-1][1] += piece["function"].get("arguments", "")
    return content, [(name, json.loads(text)) for name, text in calls], choices[-1]["finish_reason"], usage["usage"]
