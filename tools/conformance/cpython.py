"""Runs modules of CPython's own test suite, and prints a line for each test: its name, and what became of it.

    cpython.py [--not PATTERN]... MODULE...
    cpython.py --where                          the folder that the tests are in

What the distribution packs apart from the interpreter (`libpython3.11-testsuite`) is looked for where
`PYTHON_TESTS` says (…/lib/python3.11), where tools/deps.sh unpacks it, and where it is installed.
"""

import fnmatch
import os
import shutil
import sys
import sysconfig
import tempfile
import unittest


def where():
    """The folder with the tests, or nothing."""
    tree = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    stdlib = sysconfig.get_path("stdlib")
    servers = [os.environ.get("STEADFAST_SERVERS"), f"{tree}/target/servers"]
    folders = [os.environ.get("PYTHON_TESTS"), *(root and root + stdlib for root in servers), stdlib]
    return next((it for it in folders if it and os.path.exists(f"{it}/test/test_posix.py")), None)


def merged(folder):
    """A folder with the whole package `test`: some of it comes with the interpreter."""
    whole = tempfile.mkdtemp(prefix="conformance-")
    os.mkdir(f"{whole}/test")
    for part in (sysconfig.get_path("stdlib"), folder):
        for name in os.listdir(f"{part}/test"):
            source, place = f"{part}/test/{name}", f"{whole}/test/{name}"
            if name == "__pycache__" or os.path.lexists(place):
                continue
            # Some tests look whether their own file is a link.
            (os.symlink if os.path.isdir(source) else shutil.copy)(source, place)
    return whole


class Result(unittest.TestResult):
    """What became of each test; a test that fails in parts has failed."""

    def __init__(self, said):
        super().__init__()
        self.said, self.became = said, {}

    def note(self, test, what):
        # A class or a module that cannot be set up has no method's name.
        name = test.id()
        if self.became.get(name) not in ("failed", "error"):
            self.became[name] = what

    def startTest(self, test):
        super().startTest(test)
        print(test.id(), file=self.said, flush=True)

    def addSuccess(self, test):
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, f"skipped: {reason}")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.tell(test, "failed", error)

    def addError(self, test, error):
        super().addError(test, error)
        self.tell(test, "error", error)

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            self.tell(test, "failed", error)

    def addExpectedFailure(self, test, error):
        self.note(test, "fails as expected")

    def addUnexpectedSuccess(self, test):
        self.note(test, "ok, which was not expected")

    def tell(self, test, what, error):
        self.note(test, what)
        print(self._exc_info_to_string(error, test), file=self.said, flush=True)


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def run(module, excluded, said):
    suite = unittest.TestSuite()
    try:
        found = unittest.defaultTestLoader.loadTestsFromName(module)
    except unittest.SkipTest as reason:
        return {module: f"skipped: {reason}"}
    for test in tests_of(found):
        name = test.id().removeprefix("test.")
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in excluded):
            suite.addTest(test)
    result = Result(said)
    suite.run(result)
    return result.became


def main(*words):
    folder, words, modules, excluded = where(), list(words), [], []
    if not folder:
        return "there are no tests of Python: tools/deps.sh unpacks them"
    if words == ["--where"]:
        return print(folder)
    while words:
        word = words.pop(0)
        if word == "--not":
            excluded.append(words.pop(0))
        else:
            modules.append(word)
    whole = merged(folder)
    sys.path.insert(0, whole)
    os.environ["PYTHONPATH"] = whole  # of those that the tests start
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    from test import support
    from test.support import os_helper

    support.use_resources = ["subprocess", "cpu"]  # and not the network
    out, said = os.dup(1), sys.stderr
    os.dup2(2, 1)  # what tests print is not a result
    try:
        with os_helper.temp_cwd(), os.fdopen(out, "w") as out:
            for module in modules:
                for name, what in sorted(run(f"test.{module}", excluded, said).items()):
                    print(f"{name.removeprefix('test.')}\t{' '.join(what.split())}", file=out, flush=True)
    finally:
        shutil.rmtree(whole)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
