"""A copy of the tree in which one rule at a time is disabled, built and tested."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.rules import REPOSITORY, Rule

BUILT = ("agent/shim", "deploy/sandbox/simgpu")
TESTS_FAILED = 1  # pytest's own exit status; others mean that it could not run them
TIMEOUT_S = 240
SHOWN_LINES = 12


class WorkspaceError(Exception):
    """The rule could not be tried: the text has changed, or the changed code does not build."""


class Workspace:
    """A folder of its own; nothing outside it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        )
        for name in listed.stdout.decode().split("\0"):
            source, target = REPOSITORY / name, folder / name
            if name and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def build(self) -> None:
        """Brings the built programs up to date."""
        for part in BUILT:
            self._run(["make", "-s", "-C", part], "it does not build")

    def try_tests(self, tests: Sequence[str]) -> tuple[bool, str]:
        """Whether all of these tests pass, and the last lines they wrote."""
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutation.quick"]
        options += ["--hypothesis-seed=0", "--timeout=60"]
        answer = self._call([sys.executable, "-m", "pytest", *options, *tests])
        if answer.returncode not in (0, TESTS_FAILED):
            raise WorkspaceError(f"the tests could not run: {_end(answer)}")
        return answer.returncode == 0, _end(answer)

    def without(self, rule: Rule) -> tuple[bool, str]:
        """As try_tests(), with the rule disabled meanwhile."""
        before = {change.file: self._folder / change.file for change in rule.changes}
        texts = {file: path.read_text() for file, path in before.items()}
        try:
            for change in rule.changes:
                path = self._folder / change.file
                try:
                    path.write_text(change.applied(path.read_text()))
                except ValueError as error:
                    raise WorkspaceError(str(error)) from error
                if path.suffix == ".py":
                    self._run([sys.executable, "-m", "py_compile", str(path)], "it is no Python")
            self.build()
            return self.try_tests(rule.tests)
        finally:
            for file, text in texts.items():
                (self._folder / file).write_text(text)

    def _run(self, command: Sequence[str], otherwise: str) -> None:
        answer = self._call(command)
        if answer.returncode != 0:
            raise WorkspaceError(f"{otherwise}: {_end(answer)}")

    def _call(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self._folder)}
        try:
            return subprocess.run(
                command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise WorkspaceError(f"{command[0]} took more than {TIMEOUT_S} s") from error


def _end(answer: subprocess.CompletedProcess[str]) -> str:
    return "\n".join((answer.stdout + answer.stderr).splitlines()[-SHOWN_LINES:])
