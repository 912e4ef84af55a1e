"""Schemathesis against a running set: requests that the OpenAPI document allows, and requests that it does not.

    python harness/fuzz_api.py [--seconds 60] [--seed 1] [--binary target/debug/tandem]

Ends with status 0 if every answer was what the document says of it, none had a status of 500 or more, and the set is idle and
whole afterwards.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stack import BINARY, Stack

# A context in which the longest answer takes a moment.
FLAGS = ("--ctx-size", "512")
# What is right but refused, such as a choice among tools that names none of them, is beyond a schema. And what it does not allow may be
# understood all the same: clients send fields in more forms than the document names.
EXCLUDED = "positive_data_acceptance,negative_data_rejection"
IDLE_WITHIN_SECONDS = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--seconds", type=int, default=60, help="for the whole run")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    program = shutil.which("st", path=Path(sys.executable).parent) or shutil.which("st")
    if not program:
        sys.exit("schemathesis is not there: pip install -r harness/requirements-schemathesis.txt")
    with Stack(*FLAGS, binary=options.binary) as stack, tempfile.TemporaryDirectory() as reports:
        before = stack.metrics()
        command = [program, "run", f"{stack.url}/openapi.json"]
        command += ["--max-time", str(options.seconds), "--seed", str(options.seed)]
        command += ["--exclude-checks", EXCLUDED, "--request-timeout", "120", "--warnings", "off"]
        command += ["--exclude-path", "/status/events"]  # It has no end.
        command += ["--continue-on-failure", "--report-dir", reports]
        start = time.monotonic()
        # Twice the time, and not for ever.
        status = subprocess.run(command, cwd=reports, timeout=2 * options.seconds + 300).returncode
        took = time.monotonic() - start
        stack.wait_until_idle(IDLE_WITHIN_SECONDS)
        after = stack.metrics()
        requests = {name: after[name] - before.get(name, 0) for name in after if name.startswith("tandem_requests_total{")}
        for name, count in sorted(requests.items(), key=lambda item: -item[1]):
            print(f"  {count:7.0f}  {name.partition('{')[2][:-1]}")
        failed = [name for name, count in requests.items() if 'status="5' in name and count]
        panics = stack.log_text().count("panicked")
        print(f"{sum(requests.values()):.0f} requests in {took:.0f} s with seed {options.seed}, {panics} panics")
        assert stack.get("/readyz")[0] == 200, "the set is not ready any more"
        assert not failed, failed
        assert not panics, "something panicked"
    sys.exit(status)


if __name__ == "__main__":
    main()
