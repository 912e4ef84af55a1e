"""Agents on the command line: where they are installed to, and how they are run, away from the user's own settings."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from stack import ROOT

INSTALLED = ROOT / "target" / "harness-npm"


def npm(package, version):
    """Installs a package from the npm registry, once, and tells the folder with its commands."""
    name = f"{package.replace('/', '-').lstrip('@')}-{version}"
    return npm_together(name, {package: version}) / "node_modules" / ".bin"


def npm_together(name, versions):
    """Installs packages beside each other, unless they are there in these versions, and tells the folder."""
    folder = INSTALLED / name
    if any(installed(folder, package) != version for package, version in versions.items()):
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--prefix", folder, "--no-audit", "--no-fund", "--no-package-lock", "--save-exact", "--loglevel", "error"]
        wanted = [f"{package}@{version}" for package, version in versions.items()]
        subprocess.run(["npm", "install", *options, *wanted], check=True, timeout=600)
    return folder


def installed(folder, package):
    """Its version, or None."""
    try:
        return json.loads((folder / "node_modules" / package / "package.json").read_text())["version"]
    except FileNotFoundError:
        return None


class Home:
    """A home folder of its own and a project folder with a file in it: `with Home() as home: home.run([...])`."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-agent-", ignore_cleanup_errors=True)
        self.path = Path(self.folder.name) / "home"
        self.project = Path(self.folder.name) / "project"
        self.path.mkdir()
        self.project.mkdir()
        (self.project / "notes.txt").write_text("The password is tandem-7.\n")
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def run(self, command, environment, seconds=180):
        """What it said, standard output and standard error; an exit status other than 0 or no end in time fails."""
        # Nothing of the caller's environment but where programs are: a key or an address in it would go elsewhere.
        clean = {"PATH": os.environ["PATH"], "HOME": str(self.path), "LANG": "C.UTF-8", "TERM": "dumb", **environment}
        command = [str(word) for word in command]
        try:
            ran = subprocess.run(
                command, cwd=self.project, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            said = [(it or b"").decode(errors="replace")[-2000:] for it in (error.stdout, error.stderr)]
            raise AssertionError(f"{command[0]} did not end within {seconds} s:\n" + "\n".join(said)) from None
        assert ran.returncode == 0, f"{command[0]} ended with {ran.returncode}:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
        return ran.stdout, ran.stderr
