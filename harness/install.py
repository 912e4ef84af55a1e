"""Puts clients below target/, once: from the npm registry, and from PyPI into environments of their own. A client that this
machine cannot get is skipped, with the reason: that says nothing about the set."""

import json
import os
import shutil
import subprocess
import sys
import unittest

from stack import ROOT

NPM = ROOT / "target" / "harness-npm"
ENVIRONMENTS = ROOT / "target" / "harness-pypi"
INSTALL_SECONDS = 1200


def npm(package, version, node=None):
    """Tells the folder with the package's commands. `node` is a folder with the Node that it needs, where the system's is too
    old."""
    name = f"{package.replace('/', '-').lstrip('@')}-{version}"
    return npm_together(name, {package: version}, node) / "node_modules" / ".bin"


def npm_together(name, versions, node=None):
    """Packages beside each other, in these versions; tells the folder."""
    folder = NPM / name
    if any(installed(folder, package) != version for package, version in versions.items()):
        path = os.environ["PATH"] if node is None else f"{node}{os.pathsep}{os.environ['PATH']}"
        if shutil.which("npm", path=path) is None:
            raise unittest.SkipTest(f"{name} cannot be installed: there is no npm")
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--prefix", folder, "--no-audit", "--no-fund", "--no-package-lock", "--save-exact", "--loglevel", "error"]
        wanted = [f"{package}@{version}" for package, version in versions.items()]
        get(name, ["npm", "install", *options, *wanted], {**os.environ, "PATH": path})
    return folder


def installed(folder, package):
    """Its version, or None."""
    try:
        return json.loads((folder / "node_modules" / package / "package.json").read_text())["version"]
    except FileNotFoundError:
        return None


def pip(package, version, requirements=None):
    """Tells the folder with the package's commands. `requirements` is a file with what it needs, where that is less than it
    says."""
    name = f"{package}-{version}"
    folder = ENVIRONMENTS / name
    commands, done = folder / "bin", folder / "installed"
    # The commands name their folder: in an environment that was moved they do not work.
    if not done.exists() or done.read_text() != str(folder):
        get(name, [sys.executable, "-m", "venv", "--clear", folder])
        alone = []
        if requirements is not None:
            pip_install(name, commands / "python", "-r", requirements)
            alone = ["--no-deps"]
        pip_install(name, commands / "python", *alone, f"{package}=={version}")
        done.write_text(str(folder))
    return commands


def pip_install(name, python, *what):
    """Into the environment that `python` belongs to."""
    get(name, [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what])


def get(name, command, environment=None):
    """Runs a command of an installation. The first errors that it tells are the reason for what is skipped."""
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise unittest.SkipTest(f"{name} cannot be installed within {INSTALL_SECONDS} s") from None
    if ran.returncode:
        said = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
        # pip tells all versions that there are.
        errors = [line for line in said if "error" in line.lower() and "from versions:" not in line]
        raise unittest.SkipTest(f"{name} cannot be installed: {' / '.join(errors[:2] or said[-1:])[:300]}")
