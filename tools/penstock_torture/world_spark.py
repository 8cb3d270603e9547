# SPDX-License-Identifier: Apache-2.0
"""Runs of the failing world on Spark: a driver for each day, all of whose processes lose power at once.

`python -m penstock_torture.world_spark ROOT` is a driver: it starts the query that `ROOT/query.json` says, and waits
for its end. The world's faults reach it, its environment and its tasks through variables that all of them inherit. By
the same variables a loss of power finds them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.machine.locations import FILESYSTEMS
from penstock.testing.waiting import wait_until
from penstock_torture.failing_files import KINDS, WORLD, Episode, write_plan
from penstock_torture.harm import kill_marked
from penstock_torture.lost_power import keep_all, lose_power
from penstock_torture.world_days import Wrong, gone, newest_at
from penstock_torture.world_inputs import Inputs, consume
from penstock_torture.world_shapes import SCHEMA, QueryPlace, WorldShape, numbered, passed

_SLOTS = 8
_START_SECONDS = 90.0
_LAST_SECONDS = 180.0
_ENDED = 3


class SparkWorldRun:
    """One seed in a folder of its own: a day or two with faults, and one without."""

    def __init__(self, seed: int, root: Path) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - chance, not a secret
        shape = WorldShape.of(self.chance)
        sources = tuple("rate" if kind == "log" else kind for kind in shape.sources)
        self.shape = WorldShape(sources, shape.exchanges[:1], shape.counts, 6_000, 1_500)
        self.told: list[str] = []
        self._root = root
        self._place = QueryPlace(root, root / "checkpoints0", root / "out")
        self._taken = root / "taken"
        self._inputs = Inputs(self.shape, self._place, self.chance)
        self._known = 0

    def run(self) -> None:
        """All days; raises Wrong."""
        for day in range(self.chance.randint(1, 2)):
            self._inputs.arrive(4)
            self._fail(day)
            self._lose_driver(day)
            self._look()
            self.told.append(f"day {day}: a consumer took {consume(self._place, self._taken, self.chance)} files")
        self._inputs.arrive_all()
        write_plan(self._root, {}, [])
        self._finish()

    def _fail(self, day: int) -> None:
        places = {"checkpoints": str(self._place.checkpoints), "out": str(self._place.out)}
        places["in"] = str(self._place.inputs)
        episodes = [self._episode(self.chance.choice(sorted(places))) for _ in range(self.chance.randint(1, 4))]
        self.told.append(f"day {day}: faults {episodes}")
        write_plan(self._root, places, episodes, self.chance.randrange(1 << 30))

    def _episode(self, place: str) -> Episode:
        kind = self.chance.choice(KINDS)
        calls = 1 if kind == "hang" else self.chance.choice((1, 3, 10, 40))
        return Episode(place, kind, self.chance.randint(0, 80), calls, self.chance.choice((1.0, 0.4)))

    def _lose_driver(self, day: int) -> None:
        """A driver runs for a while, then there is no power."""
        driver = self._driver()
        try:
            wait_until(
                lambda: driver.poll() is not None or (self._root / "started").exists(),
                "the query runs",
                _START_SECONDS,
            )
            with suppress(subprocess.TimeoutExpired):
                driver.wait(self.chance.uniform(0.5, 4.0))
        finally:
            self._power_off(driver)
        self.told.append(f"day {day}: the driver's code {driver.returncode}: {self._last_words()}")
        lost = lose_power(self._root, self.chance)
        self.told.append(f"day {day}: power was lost: {[text.replace(str(self._root), '') for text in lost[:20]]}")

    def _driver(self) -> subprocess.Popen[bytes]:
        (self._root / "started").unlink(missing_ok=True)
        names = ("sources", "exchanges", "counts", "rows", "per_second")
        (self._root / "query.json").write_text(json.dumps({name: getattr(self.shape, name) for name in names}))
        named = {FILESYSTEMS: "penstock_torture.failing_files:seen", WORLD: str(self._root)}
        command = [sys.executable, "-m", "penstock_torture.world_spark", str(self._root)]
        with (self._root / "driver.log").open("wb") as log:
            return subprocess.Popen(
                command, env={**os.environ, **named}, stdout=log, stderr=log, cwd=self._root, start_new_session=True
            )

    def _power_off(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill all processes of this world."""
        kill_marked(f"{WORLD}={self._root}", driver)

    def _last_words(self) -> str:
        lines = [
            line for line in (self._root / "driver.log").read_text(errors="replace").splitlines() if line.strip()
        ]
        return " / ".join(lines[-2:])[-600:]

    def _look(self) -> None:
        found, _, causes = newest_at(self._place)
        if found < self._known:
            raise Wrong("gone", gone(self._known, found, causes))
        self._known = found
        faults = self.shape.faults([self._place.out, self._taken], whole=False)
        if faults:
            raise Wrong(faults[0].partition(":")[0], "; ".join(faults))

    def _finish(self) -> None:
        folders = [self._place.out, self._taken]
        driver = self._driver()
        try:
            deadline = time.monotonic() + _LAST_SECONDS
            while driver.poll() is None and time.monotonic() < deadline:
                if not self.shape.has_end and self.shape.is_whole(folders):
                    (self._root / "stop").touch()
                time.sleep(0.2)
        finally:
            self._power_off(driver)
        self.told.append(f"last day: {driver.returncode}: {self._last_words()}")
        keep_all(self._root)
        faults = self.shape.faults(folders, whole=True)
        if faults:
            raise Wrong(faults[0].partition(":")[0], "; ".join(faults))
        if driver.returncode:
            raise Wrong("hung" if driver.returncode < 0 else "error", f"the last driver: {self._last_words()}")


def drive(root: Path) -> int:
    """Be the driver: start the query, and wait until it has ended or is to stop."""
    import penstock
    from penstock.spark.session import open_session

    told = _told(root)
    shape = WorldShape(
        tuple(told["sources"]), tuple(told["exchanges"]), told["counts"], told["rows"], told["per_second"]
    )
    conf = {"spark.master": f"local[{_SLOTS}]", "spark.log.level": "OFF", "spark.local.dir": str(root / "spark")}
    with open_session("penstock-world", None, conf) as spark:
        streams = [_source(penstock, spark, kind, root / "in", path).mapInArrow(numbered(path), SCHEMA)
                   for path, kind in enumerate(shape.sources)]  # fmt: skip
        united = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        united = united.keyBy("key", numPartitions=2) if shape.exchanges[0] == "key" else united.rebalance(2)
        united = united.mapInArrow(passed(), SCHEMA)
        if shape.counts:
            united = united.keyBy("path", "value", numPartitions=2).agg(n=("value", "count"))
        writer = united.writeStream.format("parquet").outputMode("update")
        writer = writer.option("checkpointLocation", str(root / "checkpoints0")).option("checkpointInterval", "200ms")
        query = writer.option("tolerableFailedCheckpoints", "1000").start(str(root / "out"))
        (root / "started").touch()
        while query.isActive:
            if (root / "stop").exists():
                query.stop()
            query.awaitTermination(0.2)
        error = query.exception()
        sys.stdout.write(f"ended: {error}\n")
        return 0 if error is None else _ENDED


def _told(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "query.json").read_text())
    return found


def _source(penstock: Any, spark: Any, kind: str, folder: Path, path: int) -> Any:
    reader = penstock.readStream(spark)
    if kind == "files":
        return reader.format("text").load(str(folder / str(path)))
    # Two of them are told apart by their partitions.
    return reader.format("rate").options(rowsPerSecond=1_500, numPartitions=2 + path, numRows=6_000).load()


if __name__ == "__main__":
    sys.exit(drive(Path(sys.argv[1])))
