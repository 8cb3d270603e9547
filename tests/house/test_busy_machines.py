# SPDX-License-Identifier: Apache-2.0
"""A test fails by a fault, not by load: it waits long enough, looks at its own, and bears change where it looks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

import pytest

from source import Function, Module, modules

LONG_ENOUGH = "DEADLINE"
"""Of `penstock.testing`: far above what anything takes on a busy machine."""
WAITS = {"wait", "join", "result", "outcome", "communicate", "wait_for", "settimeout", "ask", "wait_procs"}
VIRTUAL = {"task", "environment"}
"""Objects of tests whose waits have a clock of their own, or count."""
TIMED = {"run", "urlopen", "HTTPConnection", "create_connection", "get", *WAITS}
SHORT_ON_PURPOSE = 4.0
"""A shorter wait looks that something does not come, or is one of many; a longer one fails a test by load."""
LOOKS = {"exists", "is_file", "is_dir", "is_symlink", "listed", "is_alive"}
LISTS = {"glob", "rglob", "iterdir", "listdir", "scandir", "process_iter"}
CHANGING = ("processes", "spark", "stream", "job", "support")
"""The rooms of tests in which something is under way while they look."""
LISTERS = {f"tests/support/{name}.py" for name in ("underway", "holdings", "source", "layers", "site_check", "a_day")}
NAMED_MEMORY = ("/dev/shm", "shared_memory", "shm_open")


def short_waits(nodes: Iterable[ast.AST]) -> list[int]:
    """The lines with a wait for something that may come later than that."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Call):
            name = _name(node.func)
            limits = [word.value for word in node.keywords if word.arg == "timeout" and name in TIMED]
            if name in WAITS and _object(node.func) not in VIRTUAL:
                limits += node.args[-1:]
            found += [node.lineno for limit in limits if _seconds(limit) >= SHORT_ON_PURPOSE]
            if name in ("wait_until", "eventually") and (len(node.args) > 2 or node.keywords):
                found.append(node.lineno)
        elif isinstance(node, Function):
            found += [
                node.lineno
                for name, default in _defaults(node)
                if _seconds(default) >= SHORT_ON_PURPOSE and _is_limit(name, node)
            ]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _is_now(node.left):
            found += [node.lineno] * (_seconds(node.right) >= SHORT_ON_PURPOSE)
        elif isinstance(node, ast.Compare) and _takes_time(node.left):
            found += [node.lineno] * any(isinstance(op, ast.Lt | ast.LtE) for op in node.ops if _seconds_of(node))
    return found


def _defaults(function: Function) -> Iterator[tuple[str, ast.expr]]:
    places = [*function.args.posonlyargs, *function.args.args]
    given = zip(reversed(places), reversed(function.args.defaults), strict=False)
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return ((place.arg, default) for place, default in [*given, *named] if default is not None)


def _is_limit(name: str, function: Function) -> bool:
    """True if a function hands this argument on as the limit of a wait."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _name(node.func) in TIMED]
    limits = [
        limit
        for call in calls
        for limit in (*call.args[-1:], *(word.value for word in call.keywords if word.arg == "timeout"))
    ]
    return any(isinstance(limit, ast.Name) and limit.id == name for limit in limits)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _object(function: ast.expr) -> str:
    return _name(function.value) if isinstance(function, ast.Attribute) else ""


def _seconds(node: ast.expr) -> float:
    return float(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else 0.0


def _seconds_of(node: ast.Compare) -> bool:
    return any(isinstance(right, ast.Constant) for right in node.comparators)


def _is_now(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == "monotonic"


def _takes_time(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _is_now(node.left)


def endless_waits(nodes: Iterable[ast.AST]) -> list[int]:
    """The lines that wait for a file as long as it takes, should it never come."""
    loops = [node for node in nodes if isinstance(node, ast.While)]
    return [
        loop.lineno
        for loop in loops
        if any(isinstance(node, ast.Call) and _name(node.func) in LOOKS for node in ast.walk(loop.test))
        and not any(isinstance(node, ast.Lt) for node in ast.walk(loop.test))
    ]


def lists(nodes: Iterable[ast.AST]) -> list[int]:
    """The lines that list a folder or processes with what raises where one goes meanwhile."""
    return [node.lineno for node in nodes if isinstance(node, ast.Call) and _name(node.func) in LISTS]


def named_memory(nodes: Iterable[ast.AST]) -> list[int]:
    """The lines that make shared memory with a name, or look for it."""
    words = [node for node in nodes if isinstance(node, ast.Constant | ast.Attribute | ast.alias)]
    return [
        node.lineno
        for node in words
        if any(each in str(getattr(node, "value", None) or getattr(node, "name", "")) for each in NAMED_MEMORY)
    ]


def own(*rooms: str) -> list[Module]:
    """The modules of tests in these rooms, or all but those about the house."""
    every = [module for module in modules("tests") if not module.name.startswith("tests/house/")]
    return [module for module in every if not rooms or module.name.split("/")[1] in rooms]


def where(found: Callable[[Iterable[ast.AST]], list[int]], those: Iterable[Module]) -> str:
    """The places of what is found, a line each."""
    return "\n".join(f"{module.name}:{line}" for module in those for line in found(module.nodes))


def test_no_wait_is_a_number_of_its_own() -> None:
    """Tests wait until `DEADLINE` for things that may come late; a short wait says that something does not come."""
    those = [module for module in own() if module.name != "tests/testing/test_waiting.py"]
    assert not (found := where(short_waits, those)), f"wait for {LONG_ENOUGH}:\n{found}"


def test_each_wait_has_a_deadline() -> None:
    """`wait_until` has one, and says what did not come."""
    assert not (found := where(endless_waits, own())), found


def test_who_looks_at_what_changes_bears_change() -> None:
    """Folders and processes are listed by `underway`, for which nothing that goes meanwhile is an error."""
    assert not (found := where(lists, [m for m in own(*CHANGING) if m.name not in LISTERS])), found


def test_nobody_names_shared_memory() -> None:
    """The memory of processes is a memfd, which goes with them: a name in the one folder would be everybody's."""
    assert not (found := where(named_memory, modules("src/penstock"))), found


@pytest.mark.parametrize(
    ("finds", "code"),
    [
        (short_waits, "thread.join(30)"),
        (short_waits, "subprocess.run(command, timeout=60)"),
        (short_waits, "wait_until(f, 'it', 5)"),
        (short_waits, "def run(seconds=60): subprocess.run(command, timeout=seconds)"),
        (short_waits, "def end(*, seconds=20.0): process.wait(seconds)"),
        (short_waits, "end = time.monotonic() + 20"),
        (short_waits, "assert time.monotonic() - began < 10"),
        (endless_waits, "while not link.is_symlink(): link.symlink_to(place)"),
        (lists, "[path for path in folder.glob('*')]"),
        (lists, "psutil.process_iter()"),
        (named_memory, "from multiprocessing import shared_memory"),
        (named_memory, "open('/dev/shm/x')"),
    ],
)
def test_each_kind_is_noticed(finds: Callable[[Iterable[ast.AST]], list[int]], code: str) -> None:
    """A line of code that would fail by load."""
    assert finds(ast.walk(ast.parse(code)))
