"""Open WebUI's server in front of a running set, driven by what its page calls. Each test prints what it proved.

    python harness/open_webui.py [--binary target/debug/tandem] [test names]
"""

import http.client
import json
import signal
import socket
import subprocess
import unittest
from pathlib import Path

from agents import PASSWORD, QUESTION, Home, check_run, check_statuses, example, variables
from answers import check_freed, read, streamed_chat, talks
from install import pip
from recorder import Recorder
from rewrites import answering, directing, endless
from stack import Stack, wait_until
from suite import arguments, parser, proved, run

VERSION = "0.12.4"
# Its slim variant: without the models that it runs itself, which come with PyTorch and CUDA's libraries, gigabytes of them.
REQUIREMENTS = Path(__file__).with_name("open-webui-requirements.txt")
START_SECONDS = 180
MESSAGES = [{"role": "user", "content": QUESTION}]
AT = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": AT}}
CALL = {"at": "notes.txt"}
TOOL = '''
class Tools:
    def look(self, at: str) -> str:
        """
        Reads a file.
        :param at: which one
        """
        return open(at).read()
'''
# Close to thirty tools.
LEAST_TOKENS = 4000


# What keeps it from calling elsewhere.
ALONE = {"USE_SLIM_DOCKER": "true", "OFFLINE_MODE": "true", "WEBUI_SECRET_KEY": "harness"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class OpenWebUI(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        command = pip("open-webui", VERSION, REQUIREMENTS) / "open-webui"
        cls.stack = cls.enterClassContext(Stack(binary=arguments.binary))
        # Each test sets how requests are rewritten: starting the server for each would take half a minute.
        cls.rewrite = None
        cls.recorder = cls.enterClassContext(Recorder(cls.stack, lambda path, body: cls.rewrite(path, body)))
        home = cls.enterClassContext(Home())
        cls.port = free_port()
        settings = variables(example("open-webui serve", cls.recorder.url))
        environment = home.environment({**settings, **ALONE, "DATA_DIR": str(home.path)})
        cls.log = home.path / "log"
        with cls.log.open("w") as log:
            cls.process = subprocess.Popen(
                [command, "serve", "--host", "127.0.0.1", "--port", str(cls.port)],
                cwd=home.project,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        cls.addClassCleanup(cls.stop)
        cls.token = None
        wait_until(cls.is_up, START_SECONDS, "Open WebUI serves")
        person = {"name": "Somebody", "email": "somebody@example.com", "password": "harness-1"}
        cls.token = cls.call("POST", "/api/v1/auths/signup", person)["token"]
        cls.model = cls.call("GET", "/api/models")["data"][0]["id"]

    @classmethod
    def stop(cls):
        cls.process.send_signal(signal.SIGINT)
        cls.process.wait(60)

    @classmethod
    def is_up(cls):
        assert cls.process.poll() is None, f"Open WebUI ended:\n{cls.log.read_text()[-2000:]}"
        try:
            return cls.call("GET", "/health")["status"]
        except ConnectionError:
            return False

    @classmethod
    def open(cls, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", cls.port, timeout=120)
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {cls.token}"} if cls.token else {})}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        return connection, connection.getresponse()

    @classmethod
    def call(cls, method, path, body=None):
        connection, response = cls.open(method, path, body)
        text = response.read().decode()
        connection.close()
        assert response.status == 200, f"{path} answers {response.status}: {text}"
        return json.loads(text)

    def setUp(self):
        self.recorder.exchanges.clear()

    def set_rewrite(self, rewrite):
        type(self).rewrite = staticmethod(rewrite)

    def ask(self, **options):
        return {"model": self.model, "messages": MESSAGES, **options}

    def stream(self, **options):
        """What the page gets, and what the set has sent for it."""
        connection, response = self.open("POST", "/api/chat/completions", self.ask(stream=True, **options))
        blocks = response.read().decode().replace("\r\n", "\n").split("\n\n")
        connection.close()
        self.assertEqual(response.status, 200, blocks)
        data = [block[len("data: ") :] for block in blocks if block.startswith("data: ")]
        events = [(None, it if it == "[DONE]" else json.loads(it)) for it in data]
        check_statuses(self.recorder)
        (exchange,) = self.recorder.to("/v1/chat/completions")
        return streamed_chat(events), read(exchange), exchange

    def test_models(self):
        listed = self.call("GET", "/api/models")["data"]
        served = json.loads(self.stack.get("/v1/models")[1])["data"]
        self.assertEqual([model["id"] for model in listed], [model["id"] for model in served])
        proved(f"sign-up, and the list of models: {', '.join(model['id'] for model in listed)}")

    def test_a_streamed_chat(self):
        self.set_rewrite(answering(PASSWORD))
        shown, sent, exchange = self.stream()
        self.assertEqual((shown.text, shown.stop), (PASSWORD, "stop"))
        self.assertEqual(shown, sent)
        self.assertGreater(self.recorder.counted(exchange), 10)
        proved("a streamed chat: the page gets what the set sends")

    def test_a_whole_chat(self):
        self.set_rewrite(answering(PASSWORD))
        answer = self.call("POST", "/api/chat/completions", self.ask(stream=False))
        self.assertEqual(answer["choices"][0]["message"]["content"], PASSWORD)
        self.assertGreater(answer["usage"]["prompt_tokens"], 0)
        proved("a chat that is not streamed")

    def test_a_call(self):
        self.set_rewrite(directing("look", CALL, PASSWORD))
        shown, sent, _ = self.stream(tools=[LOOK])
        self.assertEqual((list(shown.calls.values()), shown.stop), ([("look", CALL)], "tool_calls"))
        self.assertEqual(shown, sent)
        proved("a streamed call of a tool comes through whole")

    def test_a_saved_chat(self):
        """As the page asks: the server runs a tool of its own, asks for a title beside the answer, and saves all."""
        tool = {"id": "look", "name": "Look", "content": TOOL, "meta": {"description": "Looks."}}
        self.call("POST", "/api/v1/tools/create", tool)
        def rewrite(path, body):
            text = PASSWORD if body.get("stream") else '{"title": "Passwords", "tags": ["notes"]}'
            return directing("look", CALL, text)(path, body)

        self.set_rewrite(rewrite)
        question = {"id": "question", "parentId": None, "childrenIds": [], "timestamp": 1, "models": [self.model], **MESSAGES[0]}
        page = {"session_id": "page", "parent_id": None, "user_message": question, "tool_ids": ["look"]}
        answers = [{"model_id": self.model, "message_id": "answer"}]
        tasks = {"title_generation": True, "tags_generation": True}
        begun = self.call(
            "POST", "/api/chat/completions", self.ask(stream=True, message_ids=answers, background_tasks=tasks, **page)
        )

        def saved():
            return self.call("GET", f"/api/v1/chats/{begun['chat_id']}")

        # The answer, its title and its tags: the last of them is asked for when the answer is there.
        wait_until(lambda: saved()["meta"].get("tags"), 60, "the chat is saved with its tags")
        check_statuses(self.recorder)
        *_, words = check_run(self.recorder, "/v1/chat/completions", "look", CALL, LEAST_TOKENS)
        chat = saved()
        answer = chat["chat"]["history"]["messages"]["answer"]
        self.assertEqual((chat["title"], answer["content"], answer["done"]), ("Passwords", PASSWORD, True))
        self.assertEqual([item["type"] for item in answer["output"]], ["function_call", "function_call_output", "message"])
        proved(f"a saved chat: {words}; title and tags come beside it")

    def test_a_reader_that_leaves(self):
        self.set_rewrite(endless)
        before = self.stack.metrics()
        connection, response = self.open("POST", "/api/chat/completions", self.ask(stream=True))
        response.read(400)
        wait_until(lambda: talks(self.recorder.exchanges[0]), START_SECONDS, "the answer is on its way")
        response.close()
        connection.close()
        proved(f"a reader leaves, {check_freed(self.stack, before, 1)}")


if __name__ == "__main__":
    run(parser(__doc__, "OpenWebUI.test_a_saved_chat"), f"Open WebUI {VERSION}")
