"""Starts `tandem up`, looks at its processes, and stops it. Standard library only; reads /proc, so Linux only."""

import http.client
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED_MEMORY = Path("/dev/shm")
BINARY = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "tandem"

START_SECONDS = 120
DRAFT_SECONDS = 30
STOP_SECONDS = 60
IDLE_SECONDS = 5


class Stack:
    """One running set, with a runtime folder of its own. `with Stack() as stack:` starts it, and checks how it ends."""

    def __init__(self, *flags, binary=BINARY, model=None):
        self.command = [str(binary), "up", "--listen", "127.0.0.1:0", *flags]
        if model:
            self.command += ["--model", str(model)]

    def __enter__(self):
        self.runtime = tempfile.TemporaryDirectory(prefix="tandem-harness-")
        self.log = tempfile.TemporaryFile("a+b")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**clean, "XDG_RUNTIME_DIR": self.runtime.name},
        )
        try:
            self.host, self.port = self._address()
            status, body = self.get("/readyz")
            assert status == 200, f"the set says that it serves, but /readyz answers {status}: {body}"
            self.pids = self._pids()
            # The draft worker may still be on its way.
            assert set(self.pids) - {"draft-worker"} == {"supervisor", "router", "target-worker"}, self.pids
            return self
        except BaseException:
            self.process.terminate()
            self.process.wait(STOP_SECONDS)
            print(self.log_text())
            raise

    def __exit__(self, kind, *_):
        try:
            self._stop()
        except BaseException:
            kind = True
            raise
        finally:
            if kind:
                print("---- end of the set's log ----\n" + self.log_text()[-4000:])
            self.process.stdout.close()
            self.log.close()
            self.runtime.cleanup()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def get(self, path):
        """Status and text."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metrics(self):
        """Every series with its value; labels belong to the name."""
        status, text = self.get("/metrics")
        assert status == 200, status
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def wait_until_idle(self, seconds=IDLE_SECONDS):
        """Waits until nothing runs and nothing waits; how long that took."""
        series = ("tandem_worker_running_sequences", "tandem_worker_queued_requests", "tandem_answers_in_flight")
        return wait_until(lambda: not any(self.metrics()[name] for name in series), seconds, "nothing runs")

    def draft_state(self):
        """`attached`, `waiting`, or None where the set has no draft."""
        status, text = self.get("/props")
        assert status == 200, f"/props answers {status}: {text}"
        return (json.loads(text)["speculative"]["draft"] or {}).get("state")

    def wait_for_draft(self):
        """Waits until the target speculates, if the set has a draft; whether it has one."""
        wait_until(lambda: self.draft_state() != "waiting", DRAFT_SECONDS, "the draft is attached")
        self.pids = self._pids()
        assert ("draft-worker" in self.pids) == (self.draft_state() == "attached"), self.pids
        return "draft-worker" in self.pids

    def kill(self, role):
        """SIGKILL to that process, which the supervisor starts anew."""
        os.kill(self.pids[role], signal.SIGKILL)

    def wait_until_ready(self):
        wait_until(lambda: self.get("/readyz")[0] == 200, START_SECONDS, "the set is ready")
        self.pids = self._pids()

    def segments(self):
        """Names of this set's segments in shared memory. Those that both ends have attached to have none any more."""
        return sorted(path.name for path in SHARED_MEMORY.glob(f"{self.segment_prefix}*"))

    @property
    def segment_prefix(self):
        return f"tandem-{os.getuid()}-set-{self.process.pid}-"

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def _pids(self):
        """Process ids by role."""
        return {"supervisor": self.process.pid, **{role(pid): pid for pid in descendants(self.process.pid)}}

    def _address(self):
        """Reads the line that names the address: printed once requests can be answered."""
        end, text = time.monotonic() + START_SECONDS, ""
        while time.monotonic() < end:
            if select.select([self.process.stdout], [], [], 0.5)[0]:
                piece = os.read(self.process.stdout.fileno(), 4096).decode()
                assert piece, f"`{' '.join(self.command)}` ended before it was ready"
                text += piece
                if found := re.search(r"is served on http://(\S+):(\d+)\n", text):
                    return found[1], int(found[2])
        raise TimeoutError(f"not ready after {START_SECONDS} s")

    def _stop(self):
        """Ctrl-C: exit status 0; no process, no file and no segment left."""
        children = descendants(self.process.pid)
        self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert status == 0, f"exit status {status}"
        left = [pid for pid in children if Path(f"/proc/{pid}").exists()]
        assert not left, f"processes left behind: {left}"
        files = os.listdir(self.runtime.name)
        assert not files, f"files left behind in the runtime folder: {files}"
        assert not self.segments(), f"segments left behind in shared memory: {self.segments()}"


def descendants(pid):
    """Process ids of the children, their children and so on."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; behind it come the state and the parent.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found += children
        todo += children
    return found


def role(pid):
    """The subcommand that a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1]


def wait_until(condition, seconds, what):
    """Asks again and again; how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - start
