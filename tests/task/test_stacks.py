# SPDX-License-Identifier: Apache-2.0
"""Stacks of users' functions: whose frames are in them, and how many there are."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.functions import MapInArrow
from penstock.task.failure import PACKAGE
from penstock.task.stacks import DEPTH, MOST, OTHERS, Stacks, folded, users_stack

SCHEMA = pa.schema([("v", pa.int64())])
ROWS = [pa.record_batch([pa.array([1, 2])], schema=SCHEMA)]
Batches = Iterator[pa.RecordBatch]


class Looks:
    """The stacks of the places where it was called."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def __call__(self, given: Any = None) -> Any:
        """Look, as the sampler does, but at a place that is known."""
        self.seen.append(users_stack(sys._getframe(1)))
        return given


def ran(look: Looks, *functions: Callable[[Batches], Batches]) -> list[tuple[str, ...]]:
    """The stacks that were seen while the last one pulled the rows through all of them."""
    batches = iter(ROWS)
    for function in functions:
        batches = MapInArrow(function, SCHEMA).apply(batches)
    assert list(batches) == ROWS
    return look.seen


def shortened(stack: tuple[str, ...]) -> list[str]:
    """Without the numbers of lines."""
    return ["line" if name.startswith("line ") else name.rpartition(":")[0] for name in stack]


def test_a_stack_has_the_users_frames_from_what_we_called_to_its_line() -> None:
    """Of functions in each other the innermost one's; of a library its outermost frame, and what that calls back."""
    look = Looks()

    def helps(batch: pa.RecordBatch) -> pa.RecordBatch:
        return look(batch)

    def first(batches: Batches) -> Batches:
        for batch in batches:
            yield helps(batch)

    def again(found: object) -> object:
        return look(found)

    def second(batches: Batches) -> Batches:
        for batch in batches:
            json.loads('{"a": 1}', object_hook=look)
            json.loads('{"a": 1}', object_hook=again)
            yield batch

    stacks = ran(look, first, second)
    assert [shortened(stack) for stack in stacks] == [
        ["first (test_stacks.py", "helps (test_stacks.py", "line"],
        ["second (test_stacks.py", "line", "loads (json/__init__.py"],
        ["second (test_stacks.py", "loads (json/__init__.py", "again (test_stacks.py", "line"],
    ]
    assert stacks[0][-1] == f"line {helps.__code__.co_firstlineno + 1}"


def called(look: Looks, caller: str, *files: str) -> tuple[str, ...]:
    """The stack where a module of ours calls functions of these files, the last of which looks."""
    names: dict[str, Any] = {"look": look, "call0": look}
    for number, file in enumerate([*reversed(files), f"{PACKAGE}{caller}"], 1):
        exec(compile(f"def call{number}():\n    call{number - 1}()", file, "exec"), names)  # noqa: S102 - code that says it is of that file
    names[f"call{len(files) + 1}"]()
    return look.seen[-1]


PYTHON, INSTALLED = (sysconfig.get_path(name) for name in ("stdlib", "purelib"))
FUNCTIONS, INPUTS = "operators/functions.py", "task/inputs.py"


@pytest.mark.parametrize(
    ("caller", "files", "stack"),
    [
        (INPUTS, ["job.py"], ["call1 (job.py", "line"]),
        (INPUTS, [f"{PYTHON}/threading.py"], []),
        (INPUTS, [f"{INSTALLED}/shop/etl.py"], []),
        (INPUTS, [f"{PYTHON}/dataclasses.py", "<string>"], []),
        (FUNCTIONS, ["<string>"], ["call1 (<string>", "line"]),
        (FUNCTIONS, [f"{INSTALLED}/shop/etl.py"], ["call1 (shop/etl.py", "line"]),
        (
            FUNCTIONS,
            [f"{INSTALLED}/{name}.py" for name in ("shop/etl", "shop/more", "pandas/a", "pandas/b")],
            ["call4 (shop/etl.py", "call3 (shop/more.py", "line", "call2 (pandas/a.py"],
        ),
    ],
)
def test_a_function_out_of_a_package_is_the_users_where_we_call_functions(
    caller: str, files: list[str], stack: list[str]
) -> None:
    """Elsewhere we call libraries for purposes of our own: while we wait there is no stack."""
    assert shortened(called(Looks(), caller, *files)) == stack
    assert users_stack(None) == users_stack(sys._getframe()) == ()


def test_the_largest_stacks_are_told_and_no_second_is_lost() -> None:
    """However many there are, and however deep: what is small becomes part of what called it."""
    stacks = Stacks()
    for number in range(20 * MOST):
        stacks.add((f"f{number % 7}", f"g{number}", "line 1"), 0.001)
    stacks.add(("slow", "line 7"), 5.0)
    stacks.add((), 99.0)
    told = stacks.figures()
    assert told["profile.slow;line 7"] == 5.0
    assert len(told) <= MOST
    assert abs(sum(told.values()) - 5.0 - 20 * MOST * 0.001) < 0.1  # they are rounded
    assert folded(Counter({("a",): 1.0, ("b",): 2.0, ("c", "d"): 3.0}), 1) == {OTHERS: 6.0}
    deep = called(Looks(), INPUTS, *(["job.py"] * 3 * DEPTH))
    assert len(deep) == DEPTH
    assert (deep[DEPTH // 2], deep[-1][:5]) == ("…", "line ")
