"""Brings the demo up with deploy/compose.yaml, harms it, and takes it down: four containers that keep their word.

    deploy/test-compose.sh [PROGRAM]

starts an engine of its own and then this, which expects DOCKER_HOST and an image to build upon. Standard library only.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from soak import Failure, connect, events, send, take
from stack import ROOT, Stack, wait_until

PORT = 18000
ROLES = ("router", "target", "draft", "prefill")
STAGES = (*ROLES, "stage")
# A target over two processors, as that of two-gpus.toml is over two GPUs.
SPLIT = """
[target-worker]
devices = ["cpu", "cpu"]
layer-split = [0.5, 0.5]
stages = ["unix:/run/tandem/stage-1.sock"]
[draft-worker]
[prefill-worker]
[router]
"""
USER = "10001:10001"
UP_SECONDS = 90
BACK_SECONDS = 40
# A stream whose target died is told so within this.
ERROR_SECONDS = 5
PROMPT = "class Stack:\n    def __init__(self):\n"
COMPLETION = ("/v1/completions", {"prompt": PROMPT, "max_tokens": 96})
CHAT = (
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "Write a function that sorts a list with bubble sort."}], "max_tokens": 160},
)
# Goes on past the end of the text, so that there is time for harm.
LONG = ("/v1/completions", {"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True})
# Enough words for the prefill worker to leave some out.
WORDY = {
    "messages": [{"role": "user", "content": "Read this.\n\n" + "the quick brown fox jumps over the lazy dog. " * 200 + "\n\nWhat jumps?"}],
    "max_tokens": 4,
    "prefill_compression": {"mode": "always", "keep_ratio": 0.3},
}


class Containers:
    """A project, as `docker compose` sees it."""

    host, port = "127.0.0.1", PORT

    def __init__(self, work, file="compose.yaml", roles=ROLES, **variables):
        self.work, self.roles = work, roles
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")},
            "DOCKER_BUILDKIT": "1",
            "TANDEM_PORT": str(PORT),
            # With `auto` the demo model seldom finds that its draft pays.
            "TANDEM_SPECULATION": "tree",
            **variables,
        }
        self.files = [ROOT / "deploy" / file, self.prebuilt()]

    def prebuilt(self):
        """What makes compose build the image from the program that is there, upon the base image that is there."""
        build = {
            "context": str(self.work / "context"),
            "dockerfile": str(ROOT / "deploy/Dockerfile"),
            "args": {"PROGRAM": "from-binary", "RUNTIME": os.environ["BASE_IMAGE"]},
        }
        # Written as text for what is no JSON: none of the devices that a service asks for.
        services = [f"  {role}: {{image: 'tandem:test', deploy: !reset null, build: {json.dumps(build)}}}" for role in self.roles]
        path = self.work / "prebuilt.yaml"
        path.write_text("\n".join(["services:", *services]))
        return path

    def docker(self, *command):
        ended = subprocess.run(
            ["docker", *command], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=UP_SECONDS + 60
        )
        assert ended.returncode == 0, f"docker {' '.join(command)}:\n{ended.stdout}{ended.stderr}"
        return ended.stdout.strip()

    def compose(self, *command):
        files = [word for path in self.files for word in ("-f", str(path))]
        return self.docker("compose", "--ansi", "never", "--profile", "*", *files, *command)

    def up(self):
        """Starts all; the seconds that it takes until they are healthy."""
        start = time.monotonic()
        self.compose("up", "--detach", "--wait", "--wait-timeout", str(UP_SECONDS))
        states = {role: self.health(role) for role in self.roles}
        assert set(states.values()) == {"healthy"}, states
        return time.monotonic() - start

    def print_logs(self):
        print("---- end of the containers' logs ----")
        print(self.compose("logs", "--no-color", "--tail", "30"))

    def inspect(self, role):
        return json.loads(self.docker("inspect", f"tandem-{role}-1"))[0]

    def health(self, role):
        return self.inspect(role)["State"]["Health"]["Status"]

    def kill(self, role):
        """As a crash would: docker's own kill counts as a wish, after which nothing is started again."""
        os.kill(self.inspect(role)["State"]["Pid"], signal.SIGKILL)

    def restarts(self, role):
        return self.inspect(role)["RestartCount"]

    def wait_until_back(self, role, restarts):
        def is_back():
            return self.restarts(role) > restarts and self.health(role) == "healthy"

        return wait_until(is_back, BACK_SECONDS, f"{role} is back and healthy")

    def ask(self, method, path, body=None):
        """Status, headers and JSON or text."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = answer.headers.get("content-type", "").startswith("application/json")
            return answer.status, answer.headers, json.loads(text) if is_json else text
        finally:
            connection.close()

    def metric(self, name):
        _, _, text = self.ask("GET", "/metrics")
        values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
        return sum(map(float, values))

    def draft(self):
        return self.ask("GET", "/props")[2]["speculative"]["draft"]

    def wait_for_draft(self):
        return wait_until(lambda: self.draft()["state"] == "attached", BACK_SECONDS, "the draft is attached")

    def segments(self):
        """Names in the workers' shared memory. Those that both ends have attached to have none any more."""
        volume = json.loads(self.docker("volume", "inspect", "tandem_channels"))[0]
        return sorted(os.listdir(volume["Mountpoint"]))


class Reader(threading.Thread):
    """Reads a stream to its end; calls for harm may come in between."""

    def __init__(self, stack, case):
        super().__init__(daemon=True)
        self.stack, self.case = stack, case
        self.said, self.spoke, self.failure, self.ended = ["", ""], 0, None, None
        self.start()

    def run(self):
        connection = connect(self.stack)
        try:
            send(connection, self.case)
            for event in events(connection.getresponse()):
                self.spoke += take(event, self.said)
        except (Failure, OSError, http.client.HTTPException) as failure:
            self.failure = failure
        self.ended = time.monotonic()
        connection.close()

    def wait_for_text(self):
        wait_until(lambda: self.spoke >= 5 or self.ended, 30, "a stream begins")
        assert not self.ended, f"the stream ended before any harm: {self.failure or self.said}"

    def text(self):
        self.join(120)
        assert self.ended and not self.failure, f"the stream failed: {self.failure}"
        return self.said


def told(what):
    print(f"  {what}", flush=True)


def check_isolation(stack):
    """No privilege, no writable root, and a network for the router alone."""
    for role in ROLES:
        found = stack.inspect(role)
        host, config = found["HostConfig"], found["Config"]
        assert config["User"] == USER and host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], (role, config["User"], host)
        assert "no-new-privileges:true" in host["SecurityOpt"] and not host["Privileged"], role
        assert (host["NetworkMode"] == "none") == (role != "router"), (role, host["NetworkMode"])
        processes = stack.docker("top", f"tandem-{role}-1", "-o", "pid,uid,args").splitlines()[1:]
        assert len(processes) == 1 and processes[0].split()[1] == "10001", (role, processes)


def check_answers(stack, expected):
    """What containers say is what one process says, and what comes over the tensor channel has a part in it."""
    before = stack.metric("tandem_speculation_rounds")
    for case, text in expected.items():
        assert (said := Reader(stack, CASES[case]).text()) == text, f"{case}: {said} instead of {text}"
    draft, rounds = stack.draft(), stack.metric("tandem_speculation_rounds") - before
    assert draft["transport"] == "shm", draft
    accepted = stack.metric("tandem_speculation_accepted_tokens")
    assert rounds > 0 and accepted > 0, (rounds, accepted)
    assert not (left := stack.segments()), f"segments with names: {left}"
    told(f"streams equal the answers of one process; {rounds:.0f} rounds over {draft['transport']}, {accepted:.0f} drafted tokens accepted")


def check_compression(stack):
    status, _, answer = stack.ask("POST", "/v1/chat/completions", WORDY)
    assert status == 200 and "compression" in answer["usage"], (status, answer)
    told(f"a prompt made shorter by the prefill container: {answer['usage']['compression']}")


def check_loss_of_helper(stack, role, expected):
    """Answers go on without it, not a token different, and it comes back."""
    restarts, lost, stream = stack.restarts(role), stack.metric("tandem_drafts_lost"), Reader(stack, LONG)
    stream.wait_for_text()
    stack.kill(role)
    assert Reader(stack, CASES["completion"]).text() == expected["completion"], f"another answer without the {role}"
    assert stream.text() == expected["long"], f"another answer where the {role} died in the middle"
    stack.wait_until_back(role, restarts)
    stack.wait_for_draft()
    lost = stack.metric("tandem_drafts_lost") - lost
    assert lost == (role == "draft"), f"the target lost {lost:.0f} drafts"
    before = stack.metric("tandem_speculation_rounds")
    assert Reader(stack, CASES["completion"]).text() == expected["completion"]
    assert stack.metric("tandem_speculation_rounds") > before, "no rounds any more"
    told(f"{role} killed in the middle of a stream: the same text, and it is back")


def check_loss_of_target(stack, expected):
    """Running streams are told, new requests get a clean 503, and the target comes back."""
    restarts, stream = stack.restarts("target"), Reader(stack, LONG)
    stream.wait_for_text()
    killed = time.monotonic()
    stack.kill("target")
    statuses = set()

    def answered():
        status, headers, body = stack.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
        if status == 200:
            return True
        # One that was let in before the loss was known is told of a failed worker.
        assert status in (500, 503) and body["error"]["message"], (status, body)
        assert status != 503 or headers["Retry-After"], headers
        statuses.add(status)
        return False

    seconds = wait_until(answered, BACK_SECONDS, "the target answers again")
    stream.join(ERROR_SECONDS)
    assert isinstance(stream.failure, Failure), f"the stream was not told: {stream.failure}"
    assert stream.ended - killed < ERROR_SECONDS, f"told after {stream.ended - killed:.1f} s"
    assert 503 in statuses, f"never 503: {statuses}"
    stack.wait_until_back("target", restarts)
    wait_until(lambda: stack.health("router") == "healthy", BACK_SECONDS, "the router is healthy")
    stack.wait_for_draft()
    assert Reader(stack, CASES["completion"]).text() == expected["completion"]
    told(f"target killed: the stream was told \"{stream.failure}\" after {stream.ended - killed:.1f} s, answers again after {seconds:.1f} s")


def check_loss_of_router(stack, expected):
    restarts = stack.restarts("router")
    stack.kill("router")
    seconds = stack.wait_until_back("router", restarts)
    stack.wait_for_draft()
    assert Reader(stack, CASES["completion"]).text() == expected["completion"]
    told(f"router killed: back after {seconds:.1f} s")


def check_end(stack):
    """All end by themselves within their grace; then nothing is left."""
    assert not (left := stack.segments()), f"segments with names: {left}"
    start = time.monotonic()
    stack.compose("stop")
    codes = {role: stack.inspect(role)["State"]["ExitCode"] for role in ROLES}
    assert set(codes.values()) == {0}, f"exit status: {codes}"
    told(f"stopped in {time.monotonic() - start:.1f} s, exit status 0")
    stack.compose("down", "--volumes")
    left = {
        "containers": stack.docker("ps", "-aq"),
        "volumes": stack.docker("volume", "ls", "-q"),
        "networks": stack.docker("network", "ls", "-q", "--filter", "type=custom"),
        "mounts": "\n".join(line for line in Path("/proc/mounts").read_text().splitlines() if "tandem_" in line),
        "shared memory": " ".join(path.name for path in Path("/dev/shm").glob("tandem-10001-*")),
    }
    assert not any(left.values()), f"left behind: {left}"
    told("down: no container, volume, network, mount or shared memory is left")


CASES = {"completion": COMPLETION, "chat": CHAT, "long": LONG}


def answers(program):
    """What one process without a draft says; `tandem run` says the same without a server."""
    with Stack("--speculation", "off", binary=program) as plain:
        expected = {name: Reader(plain, case).text() for name, case in CASES.items()}
    command = [str(program), "run", "--json", "-p", PROMPT, "-n", str(COMPLETION[1]["max_tokens"])]
    run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)
    assert run["text"] == expected["completion"][1], f"`tandem run` says {run['text']!r}"
    return expected


def check_split(work, expected):
    """compose.cuda.yaml with its stage, but for the GPUs."""
    settings = work / "split.toml"
    settings.write_text(SPLIT)
    stack = Containers(work, "compose.cuda.yaml", STAGES, TANDEM_SETTINGS=str(settings))
    try:
        stack.up()
        stack.wait_for_draft()
        assert Reader(stack, CASES["completion"]).text() == expected["completion"], "another answer of a split target"
        stack.compose("down", "--volumes")
    except BaseException:
        stack.print_logs()
        raise
    told("compose.cuda.yaml without its GPUs: five healthy containers, and the same text from a split target")


def check_files(stack):
    """All compose files are ones, with all that they refer to."""
    stack.environment |= {"TANDEM_SETTINGS": "./config/h200.toml", "RENDER_GID": "992"}
    files = sorted((ROOT / "deploy").glob("compose*.yaml"))
    for path in files:
        stack.docker("compose", "-f", str(path), "--profile", "*", "config", "--quiet")
    told(f"{len(files)} compose files are valid")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--program", type=Path, required=True, help="tandem, as it is in the image")
    arguments.add_argument("--work", type=Path, required=True, help="folder with the build context in `context`")
    arguments = arguments.parse_args()
    check_files(Containers(arguments.work))
    expected = answers(arguments.program)
    stack = Containers(arguments.work)
    try:
        stack.compose("build")
        told(f"up: four healthy containers after {stack.up():.1f} s")
        status, _, body = stack.ask("GET", "/health")
        assert (status, body) == (200, {"status": "ok"}), (status, body)
        check_isolation(stack)
        stack.wait_for_draft()
        check_answers(stack, {name: expected[name] for name in ("completion", "chat")})
        check_compression(stack)
        check_loss_of_helper(stack, "draft", expected)
        check_loss_of_helper(stack, "prefill", expected)
        check_loss_of_target(stack, expected)
        check_loss_of_router(stack, expected)
        check_end(stack)
    except BaseException:
        stack.print_logs()
        raise
    check_split(arguments.work, expected)


if __name__ == "__main__":
    main()
