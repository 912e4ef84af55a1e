"""The three APIs' words for the same things in a request: tools, the choice of one, calls and their results."""

import json


def of(path):
    """The API of a path, or None."""
    return DIALECTS.get(path.partition("?")[0])


def plain(content):
    """A text, or the text of its parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


class Chat:
    limits, schema, counter = ("max_tokens", "max_completion_tokens"), "parameters", "/v1/chat/completions/input_tokens"
    no_tool = "none"

    @staticmethod
    def offered(body):
        """The functions, by name."""
        return {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or []}

    @staticmethod
    def choice(tool):
        return {"type": "function", "function": {"name": tool}}

    @staticmethod
    def calls(message):
        """Name and arguments (JSON, read) by the call's id."""
        functions = {call["id"]: call["function"] for call in message.get("tool_calls") or []}
        return {id: (function["name"], json.loads(function["arguments"])) for id, function in functions.items()}

    @staticmethod
    def sent(body):
        """The calls of a conversation, and the text of each one's result."""
        calls, results = {}, {}
        for message in body["messages"]:
            calls |= Chat.calls(message)
            if message["role"] == "tool":
                results[message["tool_call_id"]] = plain(message["content"])
        return calls, results


class Responses:
    limits, schema, counter = ("max_output_tokens",), "parameters", "/v1/responses/input_tokens"
    no_tool = "none"

    @staticmethod
    def offered(body):
        return {tool["name"]: tool for tool in body.get("tools") or [] if tool["type"] == "function"}

    @staticmethod
    def choice(tool):
        return {"type": "function", "name": tool}

    @staticmethod
    def calls(items):
        calls = [item for item in items if item.get("type") == "function_call"]
        return {call["call_id"]: (call["name"], json.loads(call["arguments"])) for call in calls}

    @staticmethod
    def sent(body):
        items = body["input"] if isinstance(body["input"], list) else []
        outputs = [item for item in items if item.get("type") == "function_call_output"]
        return Responses.calls(items), {item["call_id"]: plain(item["output"]) for item in outputs}


class Messages:
    limits, schema, counter = ("max_tokens",), "input_schema", "/v1/messages/count_tokens"
    no_tool = {"type": "none"}

    @staticmethod
    def offered(body):
        return {tool["name"]: tool for tool in body.get("tools") or [] if "input_schema" in tool}

    @staticmethod
    def choice(tool):
        return {"type": "tool", "name": tool}

    @staticmethod
    def calls(blocks):
        return {block["id"]: (block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"}

    @staticmethod
    def sent(body):
        calls, results = {}, {}
        for message in body["messages"]:
            if isinstance(message["content"], list):
                calls |= Messages.calls(message["content"])
                found = [block for block in message["content"] if block["type"] == "tool_result"]
                results |= {block["tool_use_id"]: plain(block.get("content")) for block in found}
        return calls, results


DIALECTS = {"/v1/chat/completions": Chat, "/v1/responses": Responses, "/v1/messages": Messages}
