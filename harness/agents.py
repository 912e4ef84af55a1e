"""Agents: how they are run, away from the user's own settings, and what each of them is asked to do."""

import os
import re
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path

import dialects
from answers import check_freed, check_round_trip, talks
from stack import ROOT, wait_until

QUESTION = "What is the password in notes.txt?"
PASSWORD = "The password is tandem-7."
END_SECONDS = 30


def example(name, url):
    """The settings that README.md shows to users below the first mention of this file or command, for the set at `url`."""
    text = (ROOT / "harness" / "README.md").read_text().partition(f"`{name}`")[2]
    return text.split("```")[1].partition("\n")[2].replace("http://127.0.0.1:8000", url)


def variables(command):
    """Those of the environment that a command of the shell begins with."""
    return dict(re.findall(r"([A-Z_]+)=(.*)", "\n".join(shlex.split(command))))


class Home:
    """A home folder of its own and a project folder with a file in it: `with Home() as home: home.run([...])`."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-agent-", ignore_cleanup_errors=True)
        self.path = Path(self.folder.name) / "home"
        self.project = Path(self.folder.name) / "project"
        self.path.mkdir()
        self.project.mkdir()
        (self.project / "notes.txt").write_text(f"{PASSWORD}\n")
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def write(self, name, text):
        """A file of settings, as a user names it: below `~`, or else in the project."""
        path = self.path / name[2:] if name.startswith("~/") else self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, command, environment={}, seconds=180, status=0):
        """What it said, standard output and standard error; another exit status than this or no end in time fails."""
        command = [str(word) for word in command]
        clean = self.environment(environment)
        try:
            ran = subprocess.run(
                command, cwd=self.project, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            said = [(it or b"").decode(errors="replace")[-2000:] for it in (error.stdout, error.stderr)]
            raise AssertionError(f"{command[0]} did not end within {seconds} s:\n" + "\n".join(said)) from None
        assert ran.returncode == status, f"{command[0]} ended with {ran.returncode}:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
        return ran.stdout, ran.stderr

    def leave(self, command, environment, when, seconds=120):
        """Starts it, and presses Ctrl-C once `when()` holds; how long it took to end."""
        command = [str(word) for word in command]
        with tempfile.TemporaryFile("w+") as said:
            # A session of its own: Ctrl-C reaches all processes of a terminal, not only the one that was started.
            agent = subprocess.Popen(
                command,
                cwd=self.project,
                env=self.environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                # What a shell starts in the background ignores Ctrl-C, and so would all that is started from there.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            try:
                wait_until(lambda: when() or agent.poll() is not None, seconds, f"what {command[0]} is to be left at")
                assert agent.poll() is None, f"{command[0]} ended with {agent.returncode} before that"
                os.killpg(agent.pid, signal.SIGINT)
                return wait_until(lambda: agent.poll() is not None, END_SECONDS, f"{command[0]} ends after Ctrl-C")
            except BaseException:
                said.seek(0)
                print(said.read()[-2000:])
                raise
            finally:
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
                    agent.wait()

    def environment(self, more):
        """Nothing of the caller's but where programs are: a key or an address in it would go elsewhere."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.path), "LANG": "C.UTF-8", "TERM": "dumb", **more}


def check_statuses(recorder, probed=()):
    """Nothing was refused, but for what a client merely probes: `probed` has those paths."""
    refused = [it for it in recorder.exchanges if not 200 <= it.status < 300 and it.path.partition("?")[0] not in probed]
    assert not refused, [(it.method, it.path, it.status, it.answer[:500]) for it in refused]


def conversation(recorder, path):
    """Its requests; those beside it, such as for a title, offer no tools."""
    return [exchange for exchange in recorder.to(path) if exchange.request.get("tools")]


def check_run(recorder, path, tool, arguments, least):
    """An agent was told to call `tool`, as `rewrites.directing` does: the set reads what the agent sends (`least` tokens or more),
    the agent runs the call and sends the password back, and is answered with it. Both exchanges, their answers, and words."""
    first, second = conversation(recorder, path)
    assert first.streams and second.streams
    called, final, results = check_round_trip(first, second)
    assert list(called.calls.values()) == [(tool, arguments)], called
    assert not called.text.strip(), called
    assert PASSWORD in results[0], results
    assert final.text == PASSWORD, final
    tokens, more = recorder.counted(first), recorder.counted(second)
    assert least <= tokens < more, (least, tokens, more)
    offered = len(dialects.of(path).offered(first.request))
    words = f"{offered} tools in {tokens} tokens are read; {tool} is called and run, its output is answered"
    return (first, second), (called, final), words


def check_leaving(stack, recorder, home, command, environment={}):
    """Ctrl-C in the middle of an answer that `rewrites.endless` made of it: what is cut off is cancelled, and nothing else. Words
    for it."""
    before = stack.metrics()
    said = lambda: any(talks(exchange) for exchange in recorder.exchanges if exchange.request and exchange.request.get("tools"))
    ended = home.leave(command, environment, said)
    stack.wait_until_idle()
    left = [exchange for exchange in recorder.exchanges if exchange.broken_off]
    assert left, "no answer was broken off"
    return f"Ctrl-C in the middle of an answer: it ends after {ended:.1f} s, {check_freed(stack, before, len(left))}"
