# SPDX-License-Identifier: Apache-2.0
"""The layers of the suite: their order, how they are dealt out to several pytest processes, and what each took.

Cheap answers come first: tests without a mark, then the sample of Spark (mark `sample`). Those with processes, which
wait for most of their time, and the rest of Spark's, which keep a processor busy, come beside each other then. A
test's layer is its dearest mark.

On several processes a file goes to one of them as a whole, in the order of the layers, since the tests of a file
share what is dear to start. So do the files of a folder inside a room's, and those of `TOGETHER`: they are dealt out
together. A process that is free takes the next file; nobody waits for a layer to end. Files of `LONG` come first in
their layer: one that began last would run alone, while the other processes have nothing left. Half of the processes
take Spark's files, the others none: each that takes one starts a Java, and a Java is slow until it is warm.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from processor import Processor

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).resolve().parents[1]

DEPTH = 3
"""Of a test file that lies right in the folder of its room."""

TOGETHER = {"house"}
"""Rooms whose tests all read the syntax trees of all code, which one process parses once."""

LONG = (
    "tests/spark/cluster/",
    "tests/spark/test_verbs_like_spark.py",
    "tests/spark/test_standalone.py",
    "tests/spark/test_any_session.py",
    "tests/spark/test_kills.py",
    "tests/spark/test_streaming_drivers.py",
    "tests/spark/test_streaming.py",
    "tests/spark/test_tpch.py",
    "tests/spark/test_windows.py",
    "tests/spark/test_table_formats.py",
)
"""The longest files and folders of the last layer; of those at the end of the alphabet all that are long."""

LISTED, LISTED_SECONDS = int(os.environ.get("PENSTOCK_TEST_LISTED", "15")), 0.5
"""So many of the dearest files and tests are named at the end of a run, where they took at least so long."""

ON_SPARK = "tests/spark"
DEAR = (ON_SPARK, "tests/processes")
"""The folders of the last layers."""

LAYERS = {"pure": 0, "sample": 1, "processes": 2, "spark": 3}


def layer_of(names: Sequence[str] | dict[str, Any]) -> str:
    """The layer of a test with these marks."""
    if "sample" in names:
        return "sample"
    return max((name for name in LAYERS if name in names), key=LAYERS.__getitem__, default="pure")


def each_another_first(arguments: Sequence[str], process: int, processes: int) -> list[str]:
    """The arguments that say what to collect, `tests` as its rooms: each process begins elsewhere.

    All collect the same, and where nothing is compiled yet, who comes first to a module compiles it for all.
    """
    rooms = [room for argument in arguments for room in _rooms(argument)]
    first = len(rooms) * process // processes
    return rooms[first:] + rooms[:first]


def _rooms(folder: str) -> list[str]:
    if Path(folder).resolve() != TESTS:
        return [folder]
    return sorted(str(room) for room in Path(folder).iterdir() if any(room.rglob("test_*.py")))


def in_order(items: list[pytest.Item]) -> None:
    """Sort tests by layer; within one the files of `LONG` come first, then the others, by the alphabet.

    Files of the last two layers take turns, so that both come to their ends together.
    """
    places = {item: _place(item) for item in items}
    files: dict[int, list[_Place]] = defaultdict(list)
    for each in sorted(set(places.values())):
        files[each.layer].append(each)
    turns = {each: number / len(those) for those in files.values() for number, each in enumerate(those)}
    last = LAYERS["processes"]
    items.sort(key=lambda item: (min(places[item].layer, last), turns[places[item]], places[item]))


class _Place(NamedTuple):
    """The place of a test's file."""

    layer: int
    is_short: bool
    file: tuple[str, ...]


def _place(item: pytest.Item) -> _Place:
    file = item.nodeid.partition("::")[0]
    layer = layer_of([mark.name for mark in item.iter_markers()])
    return _Place(LAYERS[layer], not file.startswith(LONG), PurePosixPath(file).parts)


def file_by_file(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """A scheduler that deals out whole files in the order in which they were collected."""
    from xdist.scheduler import LoadScopeScheduling

    class FileByFile(LoadScopeScheduling):
        """The order of files is the collection's, not that of their sizes."""

        def _split_scope(self, nodeid: str) -> str:
            file = PurePosixPath(nodeid.partition("::")[0])
            is_with_others = len(file.parts) > DEPTH or file.parent.name in TOGETHER
            return str(file.parent if is_with_others else file)

        def _assign_work_unit(self, node: Any) -> None:
            """Let the scope that this process should take be the next one."""
            living = sorted(_number(each) for each in self.nodes if not each.shutting_down)
            takes_spark = _number(node) in living[: max(1, len(living) // 2)]
            scope = next_scope(list(self.workqueue), takes_spark=takes_spark)
            if scope is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return FileByFile(config, log)


def _number(node: Any) -> int:
    return int(node.gateway.id.removeprefix("gw"))


def next_scope(scopes: Sequence[str], *, takes_spark: bool) -> str | None:
    """The one that a process takes: the first, or where that is of a dear layer the first of its own kind.

    None where there are files of Spark alone, and it takes none.
    """
    if takes_spark and not scopes[0].startswith(DEAR):
        return scopes[0]
    others = scopes[0] if takes_spark else None
    return next((scope for scope in scopes if scope.startswith(ON_SPARK) is takes_spark), others)


@dataclass
class _Layer:
    """The time that the tests of a layer took, their preparations and ends included."""

    tests: set[str] = field(default_factory=set)
    seconds: float = 0.0
    processor: float = 0.0
    began: float = float("inf")
    ended: float = 0.0


class ProcessorTimes:
    """Writes into the last report of a test what it took of the processors; a plugin of the processes that run tests.

    Not into each of the three: to add up takes as long as many a test does.
    """

    def __init__(self, *, has_threads: bool) -> None:
        self._processor = Processor()
        if has_threads:  # Python warns of a fork in a process that had none of its own before
            self._processor.watch()
        self._last = self._processor.seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """A test ends with its teardown: the next one begins."""
        report = yield
        if report.when == "teardown":
            now = self._processor.seconds()
            report.processor, self._last = max(0.0, now - self._last), now
        return report


class LayerTimes:
    """Adds up reports; a pytest plugin of the process that prints the summary."""

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = defaultdict(_Layer)
        self._files: dict[str, float] = defaultdict(float)
        self._tests: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one step of a test."""
        layer = self._layers[layer_of(report.keywords)]
        layer.tests.add(report.nodeid)
        layer.seconds += report.duration
        processor = getattr(report, "processor", 0.0)  # said by the last step, where the process has not crashed
        layer.processor += processor
        self._files[report.nodeid.partition("::")[0]] += processor
        self._tests[report.nodeid] += processor
        layer.began = min(layer.began, report.start)
        layer.ended = max(layer.ended, report.stop)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line for each layer, then the dearest files and tests."""
        if not self._layers:
            return
        start = min(layer.began for layer in self._layers.values())
        terminalreporter.section("layers")
        terminalreporter.line(
            f"{'layer':<12}{'tests':>7}{'wall seconds':>14}{'processor seconds':>19}{'from':>8}{'to':>8}"
        )
        for name in sorted(self._layers, key=LAYERS.__getitem__):
            layer = self._layers[name]
            terminalreporter.line(
                f"{name:<12}{len(layer.tests):>7}{layer.seconds:>14.1f}{layer.processor:>19.1f}"
                f"{layer.began - start:>8.0f}{layer.ended - start:>8.0f}"
            )
        for title, taken in (("files", self._files), ("tests", self._tests)):
            dear = sorted((name for name in taken if taken[name] >= LISTED_SECONDS), key=taken.__getitem__)
            if dear:
                terminalreporter.section(f"processor seconds of the dearest {title}")
            for name in reversed(dear[-LISTED:]):
                terminalreporter.line(f"{taken[name]:>8.1f}  {name}")
