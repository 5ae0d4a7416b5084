"""Disables each rule in turn and runs its tests, which must fail then.

    python -m tests.mutation [--rule NAME]... [--jobs N] [--list]

One line a rule: `red` when a test noticed, `HOLE` when none did, `ERROR` when the rule could not
be tried (its text has changed, or its tests fail anyway). Ends with 1 unless all are red.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.rules import Rule, absent, rules
from tests.mutation.workspace import Workspace, WorkspaceError

NAME_WIDTH = 44


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--rule", action="append", help="only this one; may be given again")
    parser.add_argument("--jobs", type=int, default=1, help="rules tried at the same time")
    parser.add_argument("--list", action="store_true", help="what there is, without trying it")
    options = parser.parse_args(arguments)
    known = {rule.name: rule for rule in rules()}
    if options.list:
        show(known.values())
        return 0
    strangers = set(options.rule or ()) - set(known)
    if strangers:
        parser.error(f"no such rule: {', '.join(sorted(strangers))}")
    chosen = [known[name] for name in options.rule] if options.rule else list(known.values())
    return try_all(chosen, max(1, options.jobs))


def show(listed: Sequence[Rule] | object) -> None:
    """Prints the table."""
    for rule in rules():
        print(f"{rule.name:<{NAME_WIDTH}} {rule.says}")
    for each in absent():
        print(f"{'(not covered)':<{NAME_WIDTH}} {each.says} -- {each.why}")


def try_all(chosen: Sequence[Rule], jobs: int) -> int:
    """Exit status: 0 when every rule's tests notice that it is missing."""
    with tempfile.TemporaryDirectory(prefix="sfill-mutation-") as folder:
        free: queue.Queue[Workspace] = queue.Queue()
        for number in range(min(jobs, len(chosen))):
            workspace = Workspace(Path(folder) / str(number))
            workspace.build()
            free.put(workspace)
        if not is_green(free, chosen):
            return 1
        with ThreadPoolExecutor(jobs) as pool:
            red = list(pool.map(lambda rule: is_red(free, rule), chosen))
    print(f"{sum(red)} of {len(red)} rules are protected by a test")
    return 0 if all(red) else 1


def is_green(free: queue.Queue[Workspace], chosen: Sequence[Rule]) -> bool:
    """Whether the tests pass while no rule is disabled: else their failing would say nothing."""
    tests = list(dict.fromkeys(test for rule in chosen for test in rule.tests))
    workspace = free.get()
    green, output = workspace.try_tests(tests)
    free.put(workspace)
    if not green:
        print(f"ERROR: the tests fail although every rule is in force:\n{output}")
    return green


def is_red(free: queue.Queue[Workspace], rule: Rule) -> bool:
    """Whether a test fails without the rule; prints the outcome."""
    workspace = free.get()
    began = time.monotonic()
    try:
        green, output = workspace.without(rule)
        verdict = "HOLE" if green else "red"
    except WorkspaceError as error:
        verdict, output = "ERROR", str(error)
    finally:
        free.put(workspace)
    took_s = time.monotonic() - began
    print(f"{rule.name:<{NAME_WIDTH}} {verdict:<5} {took_s:5.1f} s", flush=True)
    if verdict == "ERROR":
        print(output, flush=True)
    return verdict == "red"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
