"""What a `Recorder` makes of a client's requests, so that a small model does what a test is about.

A client that chooses tools by itself needs a model that chooses, and the demo model is too small for that. So a request is made
to ask for one call, or for one text, by the means of its API. The answer is the set's own: the model writes it, under a
grammar, and the set streams it.

Agents send tens of thousands of tokens of instructions and tools, which take a CPU minutes. So texts are shortened and other
tools left out; that the set reads the request as it came is asked of its counters, see `Recorder.counted`."""

import dialects

# For an answer that ends by itself, should it not.
ENDS_WITHIN = 400
ENDLESS_TOKENS = 4000


def directing(tool, arguments, text):
    """Where the client offers `tool`, and no result of a tool is there yet, the answer is a call of it with these arguments.
    Any other answer is this text: some clients take an answer that was cut off for an error, or ask for more."""
    answer = answering(text)

    def rewrite(path, body):
        dialect = dialects.of(path)
        if dialect is None:
            return None
        body = shortened(body)
        offered = dialect.offered(body).get(tool)
        if offered is None:
            return answer(path, without(body, "tools", "tool_choice"))
        body["tools"] = [it for it in body["tools"] if (it.get("function") or it) is offered]
        if dialect.sent(body)[1]:
            return answer(path, {**body, "tool_choice": dialect.no_tool})
        offered["strict"] = True
        offered[dialect.schema] = {
            "type": "object",
            "properties": {name: {"const": value} for name, value in arguments.items()},
            "required": list(arguments),
            "additionalProperties": False,
        }
        return {**body, "tool_choice": dialect.choice(tool)}

    return rewrite


def answering(text):
    """The answer is this text, behind what reasoning the client asked for."""

    def rewrite(path, body):
        if dialects.of(path) is None:
            return None
        body = shortened(body)
        if "tools" in body:
            body["tool_choice"] = dialects.of(path).no_tool
        return {**limited(path, body, ENDS_WITHIN), "guided_choice": [text]}

    return rewrite


def endless(path, body):
    """The answer is text, and does not end by itself."""
    if dialects.of(path) is None:
        return None
    return {**limited(path, without(shortened(body), "tools", "tool_choice"), ENDLESS_TOKENS), "ignore_eos": True}


def limited(path, body, tokens):
    limits = dialects.of(path).limits
    return {**without(body, *limits), limits[0]: tokens}


def without(body, *names):
    return {name: value for name, value in body.items() if name not in names}


def shortened(value, longest=1500):
    """The same with every text cut, but for what only its maker can read."""
    if isinstance(value, dict):
        whole = ("signature", "encrypted_content", "data")
        return {name: inner if name in whole else shortened(inner, longest) for name, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner, longest) for inner in value]
    return value[:longest] if isinstance(value, str) else value
