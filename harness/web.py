"""The page in headless Chromium, against running sets. Each test prints what it proved.

    python harness/web.py [--binary target/debug/tandem] [--chromium /usr/bin/chromium] [--screenshots FOLDER] [test names]
"""

import http.client
import itertools
import json
import re
import shutil
import socket
import threading
import unittest
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from stack import Stack, wait_until
from suite import arguments, parser, proved, run

QUESTION = "Write a Python function that returns the n-th Fibonacci number."
QUESTIONS = [
    QUESTION,
    "Write a class for a stack with push and pop.",
    "Write a function that checks whether a number is prime.",
    "Write a function that reads a CSV file and returns its rows.",
]
# Of a browser that is here to look at one page: it asks nobody else for anything.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 30_000
CHAT = "**/v1/chat/completions"


class Browser:
    """A browser with a profile of its own, and everything on its pages that ought not to happen."""

    def __enter__(self):
        if arguments.chromium is None:
            raise unittest.SkipTest("there is no Chromium: apt-get install chromium")
        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(executable_path=arguments.chromium, args=FLAGS)
        return self

    def __exit__(self, *_):
        self.browser.close()
        self.playwright.stop()

    @contextmanager
    def page(self, stack, path="/", allowed_errors=(), **options):
        """A page with nothing remembered. Requests to anyone else, broken rules of the page and errors of its scripts fail."""
        context = self.browser.new_context(**{"viewport": {"width": 1180, "height": 760}, **options})
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        wrong = []
        page.on("pageerror", lambda error: wrong.append(f"error in a script: {error}"))
        page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(f"{said.type}: {said.text}"))
        page.on("request", lambda asked: asked.url.startswith(stack.url) or wrong.append(f"asked for {asked.url}"))
        page.on("dialog", lambda dialog: (wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        try:
            page.goto(stack.url + path)
            yield page
        finally:
            context.close()
        wrong = [said for said in wrong if not any(words in said for words in allowed_errors)]
        assert not wrong, wrong


def send(page, text=QUESTION):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def endless(page):
    """Has the server go on for longer than anybody waits. The answer and its stream are real."""

    def lengthen(route):
        body = {**route.request.post_data_json, "ignore_eos": True, "max_tokens": 6000}
        route.continue_(post_data=json.dumps(body))

    page.route(CHAT, lengthen)


def answer(page):
    return page.locator(".of-model").last


def wait_for_text(page, length):
    """Waits until the newest answer is longer than that."""
    wait_until(lambda: len(answer(page).inner_text()) > length, PATIENCE_MS / 1000, f"an answer of {length} letters")


def is_running(page):
    return "is-stop" in page.get_attribute("#send", "class")


def wait_for_answer(page):
    expect(answer(page)).to_have_attribute("aria-busy", "false", timeout=PATIENCE_MS)


@contextmanager
def asking(stack, streams=1):
    """Others that have the server busy: streams without end, held until the block is left."""
    held = []
    body = {"stream": True, "ignore_eos": True, "max_tokens": 6000, "messages": [{"role": "user", "content": QUESTION}]}
    try:
        for _ in range(streams):
            connection = http.client.HTTPConnection(stack.host, stack.port, timeout=60)
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            response = connection.getresponse()
            assert response.status == 200, response.read()
            # One that nobody reads would come to a halt.
            reader = threading.Thread(target=drain, args=(response,), daemon=True)
            reader.start()
            held.append((connection, response, reader))
        yield
    finally:
        for connection, response, reader in held:
            if connection.sock:
                connection.sock.shutdown(socket.SHUT_RDWR)
            reader.join(5)
            response.close()
            connection.close()


@contextmanager
def chatting(stack):
    """Two people who have something of theirs answered again and again."""
    ended = threading.Event()

    def ask(seed):
        for turn in itertools.count(seed):
            messages = [{"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]}]
            body = {"temperature": 0.4, "seed": turn, "max_tokens": 140, "messages": messages}
            connection = http.client.HTTPConnection(stack.host, stack.port, timeout=60)
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            connection.getresponse().read()
            connection.close()
            if ended.is_set():
                return

    people = [threading.Thread(target=ask, args=(seed,)) for seed in (0, 2)]
    for person in people:
        person.start()
    try:
        yield
    finally:
        ended.set()
        for person in people:
            person.join()


def drain(response):
    try:
        while response.read1(65536):
            pass
    except (OSError, http.client.HTTPException, ValueError):
        # The block was left.
        return


class OneSet(unittest.TestCase):
    """What one set with a draft shows."""

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack("--status-text", "--thinking", "on", "--speculation", "tree", "--parallel", "4", binary=arguments.binary))
        cls.stack.wait_for_draft()
        cls.browser = cls.enterClassContext(Browser())

    def page(self, path="/", **options):
        return self.browser.page(self.stack, path, **options)

    def test_send_and_figures(self):
        with self.page() as page:
            expect(page.locator("#server-dot")).to_have_attribute("data-state", "ready")
            send(page)
            wait_for_answer(page)
            expect(answer(page).locator(".content .code")).to_contain_text("def ")
            # Thoughts that came with the first words have no time.
            expect(answer(page).locator(".thinking summary")).to_have_text(re.compile("^Thought(s$| for )"))
            figures = answer(page).locator(".figures").inner_text()
            for unit in ("tokens/s", "to the first token", "tokens per round", "of drafts accepted"):
                self.assertIn(unit, figures)
            thoughts = answer(page).locator(".thinking .markdown")
            expect(thoughts).to_be_hidden()
            answer(page).locator("summary").click()
            expect(thoughts).to_be_visible()
            self.assertGreater(len(thoughts.inner_text()), 20)
            asked = page.locator(".of-user .bubble").inner_text()
            self.assertEqual(asked, QUESTION)
        proved("a question is answered, with its thoughts folded, its code as code and its figures")

    def test_streaming_and_stop(self):
        with self.page() as page:
            endless(page)
            cancelled = self.stack.metrics()["tandem_worker_cancelled_requests"]
            send(page)
            lengths = []
            for _ in range(3):
                known = lengths[-1] if lengths else 0
                wait_for_text(page, known + 40)
                self.assertTrue(is_running(page))
                lengths.append(len(answer(page).inner_text()))
            page.press("#prompt", "Escape")
            wait_for_answer(page)
            self.assertFalse(is_running(page))
            expect(answer(page).locator(".figures")).to_contain_text("stopped")
            wait_until(lambda: self.stack.metrics()["tandem_worker_cancelled_requests"] > cancelled, 5, "the answer is given up")
            wait_until(lambda: self.stack.metrics()["tandem_worker_running_sequences"] == 0, 5, "nothing runs")
            # The button stops too, and what was said stays for the next question.
            send(page, "And now?")
            expect(page.locator(".of-model")).to_have_count(2)
            wait_for_text(page, 40)
            page.click("#send")
            wait_for_answer(page)
            self.assertEqual(page.locator(".of-model").count(), 2)
        proved("an answer grows while it is made; Esc and the button stop it, and the worker is free")

    def test_reload(self):
        with self.page() as page:
            send(page)
            wait_for_answer(page)
            whole = answer(page).locator(".content").inner_text()
            page.reload()
            expect(answer(page).locator(".content")).to_have_text(whole, use_inner_text=True)
            expect(answer(page).locator(".figures")).to_contain_text("tokens/s")
            # In the middle of an answer, too.
            endless(page)
            send(page, "Go on.")
            expect(page.locator(".of-model")).to_have_count(2)
            wait_for_text(page, 40)
            page.reload()
            self.assertEqual(page.locator(".of-user").count(), 2)
            expect(answer(page).locator(".figures")).to_contain_text("stopped")
            self.assertFalse(is_running(page))
            self.assertGreater(len(answer(page).inner_text()), 20)
            # A second conversation; both are in the list, and either can be deleted.
            page.click("#new-chat")
            expect(page.locator("#welcome")).to_be_visible()
            page.unroute(CHAT)
            send(page, "Write a function that reverses a string.")
            wait_for_answer(page)
            entries = page.locator(".entry")
            self.assertEqual(entries.count(), 2)
            entries.nth(1).click()
            self.assertEqual(page.locator(".of-user").count(), 2)
            page.locator("#conversations li").nth(1).hover()
            page.locator("#conversations .small").nth(1).click()
            self.assertEqual(entries.count(), 1)
            page.reload()
            self.assertEqual(page.locator(".entry").count(), 1)
        proved("conversations outlive a reload, half an answer among them")

    def test_again_and_edit(self):
        with self.page() as page:
            send(page)
            wait_for_answer(page)
            answer(page).get_by_role("button", name="Answer again").click()
            wait_for_answer(page)
            self.assertEqual(page.locator(".of-model").count(), 1)
            page.locator(".of-user").hover()
            page.get_by_role("button", name="Edit and ask again").click()
            self.assertEqual(page.input_value("#prompt"), QUESTION)
            self.assertEqual(page.locator(".message").count(), 0)
        proved("an answer can be made again, a question edited")

    def test_settings(self):
        with self.page() as page:
            page.get_by_role("button", name="Settings").click()
            page.fill("#set-max-tokens", "12")
            page.fill("#set-temperature", "0.7")
            page.select_option("#set-thinking", "none")
            page.fill("#set-system", "Be brief.")
            page.get_by_role("button", name="Done").click()
            page.reload()
            with page.expect_request(CHAT) as asked:
                send(page)
            body = asked.value.post_data_json
            self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
            self.assertEqual((body["max_tokens"], body["temperature"], body["reasoning_effort"]), (12, 0.7, "none"))
            wait_for_answer(page)
            expect(answer(page).locator(".figures")).to_contain_text("cut off")
            expect(answer(page).locator(".thinking")).to_be_hidden()
        proved("settings are kept and sent")

    def test_key(self):
        def guard(route):
            """Refuses those without the key, as something in front of the server may."""
            if route.request.headers.get("authorization") == "Bearer sk-right":
                route.continue_()
            else:
                route.fulfill(status=401, json={"error": {"message": "no key, or a wrong one", "code": "invalid_api_key"}})

        with self.page(allowed_errors=["401"]) as page:
            page.route(CHAT, guard)
            page.route("**/status/events", guard)
            send(page)
            expect(page.locator("#key-notice")).to_be_visible()
            page.fill("#set-key", "sk-right")
            page.get_by_role("button", name="Done").click()
            expect(answer(page).locator(".content")).to_contain_text("def ")
            self.assertEqual(page.locator(".of-model").count(), 1)
            # Of this tab only, unless somebody says otherwise.
            self.assertEqual(page.evaluate("[localStorage['tandem.key'], sessionStorage['tandem.key']]"), [None, "sk-right"])
            page.get_by_role("link", name="Live", exact=True).click()
            expect(page.locator(".worker.of-target .dot")).to_have_attribute("data-state", "ready")
        proved("where a key is wanted the page asks for it, and goes on")

    def test_markup_of_a_model_is_text(self):
        evil = (
            "<img src=x onerror=alert(1)> <script>alert(2)</script>\n\n"
            "[here](javascript:alert(3)) and ![there](https://example.com/x.png) and [ok](https://example.com/)\n\n"
            "```html\n<b onclick=alert(4)>b</b>\n```\n\n| a | b |\n|---|:-:|\n| 1 | <i>2</i> |\n\n- one\n- **two** `x`\n"
        )
        said = [{"role": "user", "content": "<u>hi</u>"}, {"role": "assistant", "content": evil, "reasoning": evil, "finish": "stop"}]
        kept = json.dumps({"id": "evil", "title": "<b>bold</b>", "updated": 1, "messages": said})
        with self.page() as page:
            page.evaluate("kept => { localStorage['tandem.chat.evil'] = kept; localStorage['tandem.current'] = 'evil'; }", kept)
            page.reload()
            content = answer(page).locator(".content")
            expect(content).to_contain_text("<script>alert(2)</script>")
            expect(content.locator(".code")).to_contain_text("<b onclick=alert(4)>b</b>")
            self.assertEqual(page.locator(".messages :is(img, script, b[onclick], u, i)").count(), 0)
            links = content.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel])")
            self.assertEqual([href for href, _ in links], ["https://example.com/x.png", "https://example.com/"])
            self.assertTrue(all("noopener" in rel for _, rel in links))
            self.assertEqual(content.locator("td").all_inner_texts(), ["1", "<i>2</i>"])
            self.assertEqual(content.locator("li strong").inner_text(), "two")
            expect(page.locator(".entry")).to_have_text("<b>bold</b>")
        proved("what a model writes never becomes more than text, code, lists, tables and links to the web")

    def test_keyboard_and_narrow(self):
        with self.page(viewport={"width": 360, "height": 640}) as page:
            page.focus("#prompt")
            page.keyboard.type("one")
            page.keyboard.press("Shift+Enter")
            page.keyboard.type("two")
            self.assertEqual(page.input_value("#prompt"), "one\ntwo")
            page.keyboard.press("Enter")
            wait_for_answer(page)
            self.assertEqual(page.locator(".bubble").inner_text(), "one\ntwo")
            expect(page.locator("#list")).to_be_hidden()
            page.get_by_role("button", name="Conversations").click()
            expect(page.locator("#list")).to_be_visible()
            page.keyboard.press("Alt+KeyN")
            for path in ("/", "/status"):
                page.goto(self.stack.url + path)
                wide, narrow = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                self.assertLessEqual(wide, narrow, path)
            nameless = page.evaluate(
                "[...document.querySelectorAll('button, a, input, select, textarea')].filter(e => "
                "!(e.ariaLabel || e.innerText || e.labels?.length || e.title)).map(e => e.outerHTML)"
            )
            self.assertEqual(nameless, [])
        proved("the keyboard does it all, nothing is wider than a small phone, and everything has a name")

    def test_live_view(self):
        with self.page("/status") as page, asking(self.stack, streams=2):
            page.locator("svg.tree").wait_for()
            expect(page.locator(".rounds .place")).to_contain_text("sequence")
            # The figures are those of the worker.
            expect(page.locator(".figure").nth(3)).to_contain_text("of 4")
            expect(page.locator(".figure b").first).to_have_text(re.compile("[1-9]"))
            expect(page.locator(".slots .is-taken")).to_have_count(2)
            expect(page.locator(".worker.of-draft .dot")).to_have_attribute("data-state", "ready")
            expect(page.locator(".acceptance .note")).to_contain_text("rounds, by draft tokens accepted")
            page.get_by_role("button", name="Pause").click()
            tree = page.locator("svg.tree")
            self.assertEqual(tree.locator(".node.is-anchor").count(), 1)
            self.assertEqual(tree.locator(".node.is-own").count(), 1)
            nodes, edges = tree.locator(".node").count(), tree.locator(".edge").count()
            self.assertEqual(nodes, edges + 1)
            accepted = tree.locator(".node.is-accepted").count()
            expect(page.locator(".told")).to_contain_text(f"{accepted} of {nodes - 2} proposed tokens accepted")
            self.assertEqual(page.locator(".chips .is-accepted").count(), accepted)
            # A round that was paused stays, and those before it are there.
            before = tree.inner_html()
            page.wait_for_timeout(1200)
            self.assertEqual(tree.inner_html(), before)
            page.get_by_role("button", name="The round before").click()
            expect(page.get_by_role("button", name="The round after")).to_be_enabled()
            page.get_by_role("link", name="Chat", exact=True).click()
            expect(page.locator("#prompt")).to_be_visible()
        proved("the live view draws rounds with the accepted path, and its figures are the worker's")


class Pictures(unittest.TestCase):
    """What the README shows."""

    def test_screenshots(self):
        if not arguments.screenshots:
            return
        arguments.screenshots.mkdir(exist_ok=True)
        # Whole trees, whether they pay or not.
        with Stack("--status-text", "--speculation", "tree", "--parallel", "4", binary=arguments.binary) as stack, Browser() as browser:
            stack.wait_for_draft()
            for scheme in ("light", "dark"):
                options = {"color_scheme": scheme, "viewport": {"width": 1080, "height": 680}}
                with browser.page(stack, **options) as page:
                    send(page)
                    wait_for_answer(page)
                    answer(page).locator("summary").click()
                    page.mouse.move(0, 0)
                    page.wait_for_timeout(500)
                    page.screenshot(path=arguments.screenshots / f"chat-{scheme}.png")
                options["viewport"] = {"width": 1200, "height": 856}
                with browser.page(stack, "/status", **options) as page, chatting(stack):
                    page.wait_for_timeout(20_000)
                    page.get_by_role("button", name="Pause").click()
                    show_a_round_of_both_kinds(page)
                    page.screenshot(path=arguments.screenshots / f"live-{scheme}.png")
        proved(f"pictures are in {arguments.screenshots}")


def show_a_round_of_both_kinds(page):
    """Goes back to one whose path is neither short nor all there is."""
    tree = page.locator("svg.tree")
    for _ in range(60):
        if 4 <= tree.locator(".node.is-accepted").count() <= 9 and tree.locator(".node.is-rejected").count() >= 6:
            break
        page.get_by_role("button", name="The round before").click()
    page.mouse.move(0, 0)
    # The path is drawn node by node.
    page.wait_for_timeout(1500)


class Refusals(unittest.TestCase):
    """What a set that cannot answer looks like."""

    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(Stack("--max-in-flight", "1", binary=arguments.binary))
        cls.browser = cls.enterClassContext(Browser())

    def test_busy(self):
        with self.browser.page(self.stack, allowed_errors=["429"]) as page:
            with asking(self.stack):
                send(page)
                trouble = answer(page).locator(".trouble")
                expect(trouble).to_contain_text("The server is busy")
                expect(trouble).to_contain_text("1 s of patience")
            wait_until(lambda: self.stack.metrics()["tandem_answers_in_flight"] == 0, 5, "the place is free")
            trouble.get_by_role("button", name="Try again").click()
            expect(answer(page).locator(".content")).to_contain_text("def ")
            expect(answer(page).locator(".trouble")).to_be_hidden()
        proved("429 is told, and the next try is answered")

    def test_no_network(self):
        with self.browser.page(self.stack, allowed_errors=["ERR_INTERNET_DISCONNECTED"]) as page:
            page.context.set_offline(True)
            send(page)
            expect(answer(page).locator(".trouble")).to_contain_text("cannot be reached")
            page.context.set_offline(False)
            answer(page).get_by_role("button", name="Try again").click()
            expect(answer(page).locator(".content")).to_contain_text("def ")
        proved("a server that cannot be reached is told of, and the next try is answered")

    def test_the_target_dies(self):
        with self.browser.page(self.stack, allowed_errors=["503"]) as page:
            endless(page)
            send(page)
            wait_for_text(page, 40)
            self.stack.kill("target-worker")
            expect(answer(page).locator(".trouble")).to_be_visible()
            self.assertGreater(len(answer(page).inner_text()), 40)
            page.unroute(CHAT)
            self.stack.wait_until_ready()
            answer(page).get_by_role("button", name="Try again").click()
            expect(answer(page).locator(".content")).to_contain_text("def ")
        proved("a target that dies in the middle of an answer is told of, and what it said stays")


if __name__ == "__main__":
    options = parser(__doc__, "Chat.test_stop")
    options.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options.add_argument("--screenshots", type=Path, help="folder for pictures of both views, light and dark")
    run(options, f"playwright {version('playwright')}")
