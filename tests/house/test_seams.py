# SPDX-License-Identifier: Apache-2.0
"""Tests do not sleep, and patch nothing private: order is forced or awaited, and what a test changes is a seam.

Turns of an event loop (`asyncio.sleep(0)`) are no sleeps. Stages that run in tasks, and child programs, may have to
be slow: those are sleeps of other processes, each with its reason, and their number only goes down.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable

from source import Module, modules

IN_OTHER_PROCESSES = {
    "tests/processes/test_named_bottlenecks.py": 3,  # a sink, a disk and a function that are slow
    "tests/processes/test_named_bounds.py": 1,  # a function that is slow
    "tests/spark/test_most_in_flight.py": 1,  # an operator that is slower than its source
    "tests/spark/test_result_scan.py": 1,  # a stage that goes on until its job is cancelled
    "tests/spark/test_write_files.py": 1,  # the same
    "tests/stream/test_rescaling.py": 1,  # a step that is busy without the interpreter
    "tests/support/a_day.py": 2,  # a program of its own: its stage is slow, and it waits for the stage's end
    "tests/support/endless_jobs.py": 2,  # a stage without an end, and a forked child that outlives its task
    "tests/support/held_stages.py": 1,  # a stage that gives nothing until a file is there
    "tests/support/query_shapes.py": 1,  # a step that is slow on purpose
    "tests/support/slow_chains.py": 1,  # the same
    "tests/web/test_browser.py": 1,  # the same
}
"""The stages and programs that are slow, or without an end, on purpose: each wait is what the test is about."""


def _is_turn(call: ast.Call) -> bool:
    """True if it lets an event loop go round once."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _sleeps(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "sleep" and not _is_turn(call)


def _patches_privately(call: ast.Call) -> bool:
    """True if it sets or deletes an attribute with a private name, given as text, through pytest's fixture."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("setattr", "delattr"):
        return False
    texts = [each.value for each in call.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    names = [part for text in texts for part in text.split(".")]
    return any(name.startswith("_") and not name.startswith("__") for name in names)


def _counted(counts: Callable[[ast.Call], bool]) -> Counter[str]:
    found: Counter[str] = Counter()
    for module in modules("tests"):
        found[_path(module)] += sum(isinstance(node, ast.Call) and counts(node) for node in module.nodes)
    return +found


def _path(module: Module) -> str:
    return f"tests/{module.path.as_posix().rpartition('/tests/')[2]}"


def _beyond(found: Counter[str], allowed: dict[str, int]) -> str:
    return "\n".join(f"{path}: {count}" for path, count in found.items() if count > allowed.get(path, 0))


def test_nobody_sleeps() -> None:
    """A test awaits a condition with a deadline (`wait_until`, `eventually`), or forces an order (`Sequencer`)."""
    assert not _beyond(_counted(_sleeps), IN_OTHER_PROCESSES)


def test_nobody_patches_what_is_private() -> None:
    """A part that a test must be able to change is an argument, a field or a setting."""
    assert not _beyond(_counted(_patches_privately), {})


def test_both_are_noticed() -> None:
    """In any spelling that the tests have."""
    calls = [
        node
        for node in ast.walk(
            ast.parse("t.sleep(1)\nsleep(0.1)\nasyncio.sleep(0)\nm.setattr('a._b', 1)\nm.setattr(a, 'b', 1)")
        )
        if isinstance(node, ast.Call)
    ]
    assert [_sleeps(call) for call in calls] == [True, True, False, False, False]
    assert [_patches_privately(call) for call in calls] == [False, False, False, True, False]
