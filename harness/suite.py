"""What the tests of clients share: their command line, and how they tell what they proved."""

import argparse
import sys
import unittest

from stack import BINARY

# As `run` reads them from the command line.
arguments = argparse.Namespace(binary=BINARY)
# The exit status where nothing failed and nothing ran, because it could not: what other test programs say with it, too.
ALL_SKIPPED = 77


def proved(text):
    print(f"  ok  {text}", flush=True)


def parser(description, example):
    """With the options that each has; `example` is a test's name."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("names", nargs="*", help=f"as unittest takes them, such as {example}")
    return parser


class Result(unittest.TextTestResult):
    """Counts what passed: a class whose set does not start is an error, but no test that ran."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def run(parser, version):
    """Runs the tests of the program that was started, and ends it: with a non-zero status if one failed."""
    parser.parse_args(namespace=arguments)
    print(f"{version}, Python {sys.version.split()[0]}", flush=True)
    # The tests' errors and what they prove come out in order.
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=0, resultclass=Result)
    ran = unittest.main(argv=[sys.argv[0], *arguments.names], testRunner=runner, exit=False).result
    for reason in sorted({reason for _, reason in ran.skipped}):
        print(f"skipped: {reason}")
    failed = len(ran.failures) + len(ran.errors)
    print(f"{ran.passed} passed, {failed} failed, {len(ran.skipped)} skipped")
    sys.exit(1 if not ran.wasSuccessful() else ALL_SKIPPED if ran.skipped and not ran.passed else 0)
