"""A proxy between a client and a running set. It writes down what both say, so that a test can hold the whole exchange
against what should have been said. Standard library only."""

import http.client
import json
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import dialects

# Headers that belong to one connection (RFC 9110, section 7.6.1), and the length, which a rewritten body changes.
OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length", "host"}
REQUEST_SECONDS = 300


@dataclass
class Exchange:
    """One request and its answer."""

    method: str
    path: str
    headers: dict
    request: object
    """What the client sent: JSON, read, or else bytes."""
    forwarded: object = None
    """What the set got, where that is not what the client sent."""
    status: int = 0
    answer_headers: dict = field(default_factory=dict)
    answer: bytes = b""
    broken_off: bool = False
    """Whether the client left before the answer's end."""

    @property
    def streams(self):
        return self.answer_headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self):
        return json.loads(self.answer)

    @property
    def events(self):
        """Name (or None) and data of each server-sent event; data is JSON, read, but for `[DONE]`."""
        found = []
        for block in self.answer.decode().split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            fields = [line.split(": ", 1) for line in lines]
            data = "\n".join(value for name, value in fields if name == "data")
            if data:
                name = next((value for name, value in fields if name == "event"), None)
                found.append((name, data if data == "[DONE]" else json.loads(data)))
        return found


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        # Clients drop connections that they do not need any more.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Recorder:
    """`with Recorder(stack, rewrite) as recorder:` serves on `recorder.url`. `rewrite(path, body)` gets each POST's JSON
    and returns what the set gets instead, or None to leave it; `rewrites.py` has some."""

    def __init__(self, stack, rewrite=None):
        self.stack = stack
        self.exchanges = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def forward(self):
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                exchange = Exchange(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                recorder.exchanges.append(exchange)
                try:
                    exchange.request = json.loads(body) if body else None
                except ValueError:
                    pass
                if rewrite and self.command == "POST" and isinstance(exchange.request, dict):
                    # It works on a copy: what the client sent stays on record.
                    exchange.forwarded = rewrite(self.path.partition("?")[0], json.loads(body))
                    body = body if exchange.forwarded is None else json.dumps(exchange.forwarded).encode()
                connection = http.client.HTTPConnection(stack.host, stack.port, timeout=REQUEST_SECONDS)
                try:
                    headers = {k: v for k, v in exchange.headers.items() if k not in OF_A_CONNECTION}
                    connection.request(self.command, self.path, body or None, headers)
                    self.give_back(exchange, connection.getresponse())
                except (BrokenPipeError, ConnectionResetError):
                    exchange.broken_off = True
                    self.close_connection = True
                finally:
                    connection.close()

            def give_back(self, exchange, response):
                exchange.status = response.status
                exchange.answer_headers = {k.lower(): v for k, v in response.getheaders()}
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in OF_A_CONNECTION:
                        self.send_header(name, value)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                while piece := response.read1(65536):
                    exchange.answer += piece
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do_OPTIONS = forward

        self.server = Server(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def counted(self, exchange):
        """Tokens of the request as the client sent it, as the set counts them."""
        connection = http.client.HTTPConnection(self.stack.host, self.stack.port, timeout=REQUEST_SECONDS)
        try:
            path = dialects.of(exchange.path).counter
            connection.request("POST", path, json.dumps(exchange.request), {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200, f"{path} answers {response.status} to what the client sent: {text}"
            return json.loads(text)["input_tokens"]
        finally:
            connection.close()

    def to(self, path):
        """The exchanges with this path, in the order in which they began."""
        return [exchange for exchange in self.exchanges if exchange.path.partition("?")[0] == path]
