# SPDX-License-Identifier: Apache-2.0
"""One run of the failing world: a query lives for some days, on each of which something else goes wrong.

A day draws episodes of faults (`penstock_torture.failing_files`), an event, and its end: a loss of power, a driver
that is gone, an orderly stop, two drivers at one location. After each day the checkpoints are looked at as they lie
on the disk: one that tasks were told to be complete must be there, or a later one, and good. On the last day the
world is well, and the query must come to its end with each row once.
"""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

from penstock.checkpoint.coordinator import CheckpointOptions
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.found import Unusable, UsableCheckpoint
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import FailureKind, PenstockError, PlanError, SchemaError
from penstock.machine.locations import FILESYSTEMS
from penstock.task.failure import failure_kind
from penstock_torture.failing_files import KINDS, WORLD, Episode, write_plan
from penstock_torture.local_query import LocalQuery
from penstock_torture.lost_power import keep_all, lose_power
from penstock_torture.world_batches import BatchDriver
from penstock_torture.world_inputs import Inputs, consume, copied
from penstock_torture.world_shapes import QueryPlace, WorldShape

EVENTS = ("nothing", "nothing", "widths", "other plan", "other path", "turned", "two drivers", "clock", "copied")
ENDS = ("power", "power", "gone", "stop")
_OPTIONS = CheckpointOptions(interval=0.02, timeout=5.0, tolerable_failures=10_000, retained=2)
_LAST_SECONDS = 40.0
_REFUSED_SECONDS = 0.3


class Wrong(Exception):  # noqa: N818 - a finding
    """The oracle's word: a kind of finding, and what was found."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class WorldRun:
    """One seed in a folder of its own."""

    def __init__(self, seed: int, root: Path, shape: Callable[[random.Random], WorldShape] = WorldShape.of) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - no secret
        self.seed = seed
        self.shape = shape(self.chance)
        self.told: list[str] = []
        """The events, for whoever looks into a finding."""
        self._root = root
        self._place = QueryPlace(root, root / "checkpoints0", root / "out")
        self._taken = root / "taken"
        self._inputs = Inputs(self.shape, self._place, self.chance)
        self._widths = self.shape.widths(self.chance)
        self._continuous = self.chance.random() < 0.3
        self._timeout = self.chance.choice((None, None, 0.0, 0.05))
        self._known = 0
        """The newest checkpoint that was good when the disk was last looked at."""
        self._has_ended = False
        """True if nothing was left to do in it."""
        self._had_two = False
        """True if two drivers were at work on the last day but one."""
        self._told_complete = 0
        """The newest one of which the last day's tasks were told."""
        self._day = 0
        self._calls: BatchDriver | None = None
        """The newest driver's part where the sink is a function."""

    def run(self) -> None:
        """All days; raises Wrong."""
        with _world(self._root):
            self._well()
            for _ in range(self.chance.randint(1, 3)):
                self._day += 1
                if not self._has_ended:
                    self._live()
            self._day += 1
            self._finish()

    def _say(self, text: str) -> None:
        self.told.append(f"day {self._day}: {text}")

    # --- the world

    def _well(self, *, power: bool = True) -> None:
        write_plan(self._root, {}, [], power=power)

    def _fail(self) -> None:
        places = {"checkpoints": str(self._place.checkpoints), "out": str(self._place.out)}
        if set(self.shape.sources) - {"rate"}:
            places["in"] = str(self._place.inputs)
        episodes = [self._episode(self.chance.choice(sorted(places))) for _ in range(self.chance.randint(0, 4))]
        self._say(f"faults {[(each.place, each.kind, each.first, each.calls, each.chance) for each in episodes]}")
        write_plan(self._root, places, episodes, self.chance.randrange(1 << 30))

    def _episode(self, place: str) -> Episode:
        kind = self.chance.choice(KINDS)
        calls = 1 if kind == "hang" else self.chance.choice((1, 3, 10, 40))
        first = self.chance.choice((0, 0, 5, 20, 60, 150)) + self.chance.randint(0, 10)
        return Episode(place, kind, first, calls, self.chance.choice((1.0, 1.0, 0.4)))

    # --- a day

    def _live(self) -> None:
        event, end = self.chance.choice(EVENTS), self.chance.choice(ENDS)
        self._say(f"{event}, ends by {end}")
        self._inputs.arrive(self.chance.randint(0, 4))
        if event == "other path" and self.shape.sink in ("ledger", "batches"):
            event = "nothing"  # a data source's options are its own business, and a function has no path
        if event in ("other plan", "other path") and self._known and not self._has_ended:
            self._refused(event)
        if event == "copied" and self.shape.sink == "batches":
            event = "nothing"  # rows that wait lie at the location, so a copy of it is refused
        if event == "copied" and self._known:
            self._place = copied(self._place, self._day)
        widths = self.shape.widths(self.chance) if event == "widths" else self._widths
        clock = self.chance.choice((-7200.0, -5.0, 5.0, 7200.0)) if event == "clock" else 0.0
        self._fail()
        turned = event == "turned" and self._known > 0
        self._had_two = event == "two drivers"
        with _clock_off(clock):
            self._one_day(widths, end, turned=turned, two=event == "two drivers")
        self._look()
        if self.chance.random() < 0.5 and self.shape.is_consumed:
            self._say(f"a consumer took {consume(self._place, self._taken, self.chance)} files")

    def _one_day(self, widths: list[int], end: str, *, turned: bool, two: bool) -> None:
        queries: list[LocalQuery] = []
        try:
            for _ in range(2 if two else 1):
                query = self._query(widths, turned=turned)
                queries.append(query)
                query.start()
                self._run_for(queries, self.chance.uniform(0.05, 0.35))
            if end == "stop":
                queries[-1].stop()
                queries[-1].run(time.monotonic() + 2.0)
        except (PenstockError, OSError) as error:
            self._say(f"ended: {type(error).__name__}: {str(error)[:160]}")
        finally:
            self._end(queries, end)
        complete = [number for query in queries for number in query.completed]
        if complete:
            self._widths = widths
        self._refuse_blame(queries)
        self._told_complete = max(complete, default=0)

    def _run_for(self, queries: list[LocalQuery], seconds: float) -> None:
        """Let them run at the same time; a consumer may take files meanwhile, and tasks are killed."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for query in queries:
                query.run(min(until, time.monotonic() + 0.03))
            self._call()
            if self.chance.random() < 0.1 and self.shape.is_consumed:
                consume(self._place, self._taken, self.chance)
            if self.chance.random() < 0.1:
                queries[-1].kill(self.chance.choice(list(queries[-1].lines)))

    def _end(self, queries: list[LocalQuery], end: str) -> None:
        """All processes of the query are gone, and the world is well."""
        if end == "power":
            self._well(power=False)
        for query in queries:
            with suppress(PenstockError, OSError):
                query.close()
        if end == "power":
            lost = lose_power(self._root, self.chance)
            self._say(f"power was lost: {[text.replace(str(self._root), '') for text in lost[:20]]}")
        else:
            keep_all(self._root)
        self._well()

    def _call(self, *, lives: bool = False) -> None:
        if self._calls is not None:
            self._calls.call(lives=lives)

    def _query(self, widths: list[int], *, turned: bool = False, other: bool = False) -> LocalQuery:
        if self.shape.sink == "batches":
            self._calls = BatchDriver(self._place.checkpoints, self._place.out, self.chance)
        graph = self.shape.graph(self._place, widths, turned=turned, other=other)
        return LocalQuery(
            graph,
            str(self._place.checkpoints),
            _OPTIONS,
            unaligned=self._timeout is not None,
            aligned_timeout=self._timeout or 0.0,
            continuous=self._timeout is not None and self._continuous,
            ends_fenced=True,
        )

    def _refused(self, event: str) -> None:
        """A start that must be refused, and that changes nothing."""
        place = self._place
        if event == "other path":
            self._place = QueryPlace(place.root, place.checkpoints, place.root / "elsewhere")
        try:
            with self._query(self._widths, other=event == "other plan") as query:
                query.start()
                query.run(time.monotonic() + _REFUSED_SECONDS)
                told = "; ".join(str(error)[:100] for error in query.failures[:1])
                if query.completed or not query.failures:
                    raise Wrong("accepted", f"a query with {event} goes on from the checkpoint of the first")
        except (PlanError, CheckpointError, SchemaError) as error:
            told = str(error)[:100]
        finally:
            self._place = place
        self._say(f"refused: {told}")
        self._look()

    # --- the oracle

    def _look(self) -> None:
        """The disk as it is: what was complete is there, and no row is there twice."""
        found, has_ended, causes = newest_at(self._place)
        promised = max(self._known, self._told_complete)
        if found < promised:
            raise Wrong("gone", gone(promised, found, causes))
        self._known, self._has_ended = found, has_ended
        faults = self.shape.faults([self._place.out, self._taken], whole=False)
        if faults:
            raise Wrong(faults[0].partition(":")[0], "; ".join(faults))

    def _refuse_blame(self, queries: list[LocalQuery]) -> None:
        """No fault of the world may count as a bug of the user's."""
        for query in queries:
            for error in query.failures:
                if failure_kind(error) is FailureKind.CAUSE and not isinstance(error, PlanError):
                    text = "".join(traceback.format_exception(error)[-6:])
                    raise Wrong("blamed", f"{type(error).__name__}: {text[-1500:]}")

    def _finish(self) -> None:
        """The world is well: the query comes to its end."""
        self._inputs.arrive_all()
        folders = [self._place.out, self._taken]
        if not self._has_ended:
            self._run_to_end(folders)
        elif self.shape.sink == "batches":  # the rows are there, and their calls are to be made
            self._calls = BatchDriver(self._place.checkpoints, self._place.out, self.chance)
        self._call(lives=True)
        faults = self.shape.faults(folders, whole=True)
        if faults and self._is_below(folders):
            raise Wrong("below", "the sink's mount was away from the folder's making to the query's end")
        if faults:
            raise Wrong(faults[0].partition(":")[0], "; ".join(faults))
        left = [path.name for path in self._place.out.rglob(f".part-{self._place.uid}-*")]
        if left and not (self._has_ended and self._had_two):
            # A driver that was taken over may write after the other has looked for leftovers, and none came later.
            raise Wrong("left", f"{len(left)} hidden files: {left[:3]}")

    def _is_below(self, folders: list[Path]) -> bool:
        """Tell whether the sink's mount never had a row, and all rows lie whole in the folder below it."""
        below = self._root / "below" / "out"
        had_one = any(folder.exists() and any(folder.iterdir()) for folder in folders)
        return not had_one and self.shape.is_whole([below])

    def _run_to_end(self, folders: list[Path]) -> None:
        with self._last() as query:
            deadline = time.monotonic() + _LAST_SECONDS
            while not query.run(time.monotonic() + 0.05):
                self._call(lives=True)
                if not self.shape.has_end and self.shape.is_whole(folders):
                    query.stop()
                if time.monotonic() > deadline:
                    faults = self.shape.faults(folders, whole=True)
                    raise Wrong(
                        faults[0].partition(":")[0] if faults else "hung", f"no end: {faults}, {query.failures}"
                    )
            self._refuse_blame([query])

    def _last(self) -> LocalQuery:
        query = self._query(self._widths)
        try:
            query.start()
        except BaseException:
            query.close()
            raise
        return query


def gone(promised: int, found: int, causes: Sequence[str]) -> str:
    """The words about a checkpoint that was complete, and can't be restored from."""
    why = "; ".join(causes) or "no other one has metadata"
    return f"checkpoint {promised} was complete, the newest good one is {found}: {why}"


def newest_at(place: QueryPlace) -> tuple[int, bool, list[str]]:
    """The newest checkpoint that can be restored from, whether all tasks had finished in it, why others can't."""
    with mock.patch.dict(os.environ):
        os.environ.pop(FILESYSTEMS, None)
        if not place.checkpoints.exists():
            return 0, False, ["its location is gone"]
        history = CheckpointStorage(str(place.checkpoints)).history(read_through=True)
    good = [each.metadata for each in history if isinstance(each, UsableCheckpoint)]
    causes = [f"{each.stamp}: {each.cause}" for each in history if isinstance(each, Unusable)]
    newest = max(good, key=lambda metadata: metadata.number, default=None)
    if newest is None:
        return 0, False, causes
    return newest.number, len(newest.finished) == sum(newest.parallelism.values()), causes


@contextmanager
def _world(root: Path) -> Iterator[None]:
    """File systems are those of the world in this block."""
    named = {FILESYSTEMS: "penstock_torture.failing_files:seen", WORLD: str(root)}
    with mock.patch.dict(os.environ, named):
        yield


@contextmanager
def _clock_off(seconds: float) -> Iterator[None]:
    """The wall clock is wrong by so much."""
    real, real_ns = time.time, time.time_ns
    if not seconds:
        yield
        return

    def wrong() -> float:
        return real() + seconds

    def wrong_ns() -> int:
        return real_ns() + int(seconds * 1e9)

    with mock.patch("time.time", wrong), mock.patch("time.time_ns", wrong_ns):
        yield
