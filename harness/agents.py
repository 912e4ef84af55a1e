"""Agents on the command line: where they are installed to, and how they are run, away from the user's own settings."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from recorder import DIALECTS, shortened
from stack import ROOT, wait_until

INSTALLED = ROOT / "target" / "harness-npm"
INSTALLED_PYTHON = ROOT / "target" / "harness-pypi"
PASSWORD = "The password is tandem-7."
FREED_WITHIN_SECONDS = 5


def npm(package, version, node=None):
    """Installs a package from the npm registry, once, and tells the folder with its commands. `node` is a folder with the
    Node that its installation needs, where the system's is too old."""
    name = f"{package.replace('/', '-').lstrip('@')}-{version}"
    return npm_together(name, {package: version}, node) / "node_modules" / ".bin"


def npm_together(name, versions, node=None):
    """Installs packages beside each other, unless they are there in these versions, and tells the folder."""
    folder = INSTALLED / name
    if any(installed(folder, package) != version for package, version in versions.items()):
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--prefix", folder, "--no-audit", "--no-fund", "--no-package-lock", "--save-exact", "--loglevel", "error"]
        wanted = [f"{package}@{version}" for package, version in versions.items()]
        path = os.environ["PATH"] if node is None else f"{node}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(["npm", "install", *options, *wanted], check=True, timeout=600, env={**os.environ, "PATH": path})
    return folder


def installed(folder, package):
    """Its version, or None."""
    try:
        return json.loads((folder / "node_modules" / package / "package.json").read_text())["version"]
    except FileNotFoundError:
        return None


def pip(package, version, requirements=None):
    """Installs a package from PyPI into an environment of its own, once, and tells the folder with its commands.
    `requirements` is a file with what it needs, where that is less than it says."""
    folder = INSTALLED_PYTHON / f"{package}-{version}"
    commands, done = folder / "bin", folder / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        options = ["--quiet", "--disable-pip-version-check"]
        if requirements is not None:
            subprocess.run([commands / "pip", "install", *options, "-r", requirements], check=True, timeout=1200)
            options.append("--no-deps")
        subprocess.run([commands / "pip", "install", *options, f"{package}=={version}"], check=True, timeout=1200)
        done.touch()
    return commands


def example(path, url):
    """The settings that README.md shows to users for the file `path`, for the set at `url`."""
    text = (ROOT / "harness" / "README.md").read_text().partition(f"`{path}`")[2]
    return text.split("```")[1].partition("\n")[2].replace("http://127.0.0.1:8000", url)


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

    def run(self, command, environment, seconds=180, status=0):
        """What it said, standard output and standard error; another exit status than this or no end in time fails."""
        clean = self.environment(environment)
        command = [str(word) for word in command]
        try:
            ran = subprocess.run(
                command, cwd=self.project, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            said = [(it or b"").decode(errors="replace")[-2000:] for it in (error.stdout, error.stderr)]
            raise AssertionError(f"{command[0]} did not end within {seconds} s:\n" + "\n".join(said)) from None
        assert ran.returncode == status, f"{command[0]} ended with {ran.returncode}:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
        return ran.stdout, ran.stderr

    def leave(self, command, environment, when, seconds=60):
        """Starts it, presses Ctrl-C once `when()` holds, and waits for its end; how long that took."""
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
            )
            try:
                wait_until(lambda: when() or agent.poll() is not None, seconds, f"what {command[0]} is to be left at")
                assert agent.poll() is None, f"{command[0]} ended with {agent.returncode} before that"
                os.killpg(agent.pid, signal.SIGINT)
                return wait_until(lambda: agent.poll() is not None, seconds, f"{command[0]} ends after Ctrl-C")
            except BaseException:
                said.seek(0)
                print(said.read()[-2000:])
                raise
            finally:
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
                    agent.wait()

    def environment(self, more):
        """Nothing of the caller's environment but where programs are: a key or an address in it would go elsewhere."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.path), "LANG": "C.UTF-8", "TERM": "dumb", **more}


def answering(rewrite, text):
    """The same, but where no call is asked for the model says `text`: some agents take an answer that was cut off for an error,
    or ask for more. It writes under a grammar; in the Responses API, which has one for JSON only, with quotation marks."""

    def answered(path, body):
        body = rewrite(path, body)
        if body is None or isinstance(body.get("tool_choice"), dict):
            return body
        if "tools" in body:
            body["tool_choice"] = {"type": "none"} if path == "/v1/messages" else "none"
        if path == "/v1/responses":
            schema = {"type": "json_schema", "name": "answer", "schema": {"const": text}}
            return {**body, "text": {"format": schema}}
        return {**body, "guided_choice": [text]}

    return answered


def lasting(path, body):
    """A `rewrite` for an answer that is text and does not end by itself."""
    if path not in DIALECTS:
        return None
    body = {**shortened(body), "ignore_eos": True, DIALECTS[path].limit: 4000}
    return {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}


def refused(recorder):
    """Method, path and status of each request that was not answered with success."""
    return [(it.method, it.path, it.status) for it in recorder.exchanges if not 200 <= it.status < 300]


def freed(stack):
    """Waits until nothing runs any more; how many milliseconds that took."""
    series = ("tandem_worker_running_sequences", "tandem_worker_queued_requests", "tandem_answers_in_flight")
    took = wait_until(lambda: not any(stack.metrics()[name] for name in series), FREED_WITHIN_SECONDS, "nothing runs")
    return round(took * 1000)
