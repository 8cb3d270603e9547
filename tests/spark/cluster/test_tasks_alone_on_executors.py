# SPDX-License-Identifier: Apache-2.0
"""One of eight tasks on two executors is killed: the seven others go on while it is away, and the loss is counted.

The dead task's successor stays at a gate before it can ask for anything, until the others have handled rows that were
made long after the death. So the test says that nobody waits, and no clock does.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from effort import with_all
from penstock.testing import wait_until
from session_probe import SessionProbe, queries_ended
from sessions import CLUSTER, Kind, Sessions
from underway import listed

pytestmark = pytest.mark.spark

RATE = 6_000
MAPPERS = 6
FILLER = 1_000
LATER = 4 * RATE
"""So many rows after the death is long after it: of 1 KB each, they are three times an executor's memory."""
_LITTLE = (("spark.penstock.network.memory", "8m"), ("spark.penstock.network.segmentSize", "32k"))
TASKS = Kind("local-cluster[2,5,1024]", 10, (*CLUSTER.conf, *_LITTLE))
APPROXIMATE = {"recovery": "approximate", "consistency": "at_least_once", "checkpointInterval": "300ms"}
Batches = Iterator[pa.RecordBatch]


@pytest.fixture
def executors(sessions: Sessions) -> Iterator[Any]:
    """A session on two executors with five slots each; no query outlives its test."""
    spark = sessions.of(TASKS)
    for _ in queries_ended(spark):
        yield spark


class Gate:
    """Part of a task's functions: whoever unpickles it after a death waits, as the successor does with its plan."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __setstate__(self, state: dict[str, str]) -> None:
        """Come up in a task."""
        self.folder = state["folder"]
        death, go = Path(self.folder, "death"), Path(self.folder, "go")
        wait_until(lambda: go.exists() or not death.exists(), "somebody opens the gate")

    def passed(self, batch: pa.RecordBatch, stage: str) -> None:
        """Leave the number of a batch's last row for this task; die if that is wanted of a task of this stage."""
        try:
            Path(self.folder, f"kill-{stage}").rename(Path(self.folder, "death"))
        except FileNotFoundError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(self.folder, f"{stage}-{os.getpid()}").open("wb") as file:
            file.write(struct.pack("<q", batch["value"][-1].as_py()))


def noting(gate: Gate, stage: str) -> Callable[[Batches], Batches]:
    """A function that passes rows on and says how far it is."""

    def function(batches: Batches) -> Batches:
        for batch in batches:
            gate.passed(batch, stage)
            yield batch.select(["value"])

    return function


def positions(folder: Path) -> dict[str, int]:
    """The last row's number of each mapper and sink, by stage and process."""
    found = {}
    for path in (*listed(folder, "mapper-*"), *listed(folder, "sink-*")):
        number = path.read_bytes()
        found[path.name] = struct.unpack("<q", number)[0] if number else -1  # it may be being written
    return found


def deployed(probe: SessionProbe) -> list[str]:
    """The attempts that the one job of the application has deployed."""
    (job,) = probe.jobs()
    return sorted(ids for _, name, ids in probe._core().trace(job) if name == "task_deployed")


@pytest.mark.parametrize("log", [with_all(False), with_all(True)], ids=["without a log", "with the log"])
def test_seven_tasks_go_on_while_the_eighth_is_away(executors: Any, tmp_path: Path, log: bool) -> None:
    """Each mapper and the sink handle rows from long after the death; only the dead task has a new attempt.

    Reported lost is what the files lack; with the log they lack nothing, and have twice what the report says.
    """
    gate, probe = Gate(str(tmp_path)), SessionProbe(executors)
    source = penstock.readStream(executors).format("rate").options(rowsPerSecond=RATE, numPartitions=1).load()
    filled = source.selectExpr("value", f"repeat('x', {FILLER}) AS filler")
    mapped = filled.rebalance(MAPPERS).mapInArrow(noting(gate, "mapper"), "value long")
    writer = mapped.rebalance(1).mapInArrow(noting(gate, "sink"), "value long").writeStream.format("parquet")
    writer = writer.options(**APPROXIMATE, **({"persistInFlight": "continuous"} if log else {}))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoints")).start(str(tmp_path / "output"))
    wait_until(lambda: completed(query) > 0, "a checkpoint is complete")
    wait_until(lambda: len(positions(tmp_path)) == MAPPERS + 1, "all tasks handle rows")
    first = deployed(probe)
    assert len(first) == MAPPERS + 2

    (tmp_path / "kill-mapper").touch()
    wait_until((tmp_path / "death").exists, "a mapper has died")
    far = max(positions(tmp_path).values()) + LATER
    ahead = lambda: [name for name, number in positions(tmp_path).items() if number > far]  # noqa: E731
    wait_until(lambda: len(ahead()) == MAPPERS, "all but one go on")
    assert [name for name in ahead() if name.startswith("sink")], "the sink waits"
    assert deployed(probe) == first, "nobody else begins anew"

    (tmp_path / "go").touch()
    wait_until(lambda: is_known(query), "it is known what was lost")
    before = completed(query)
    wait_until(lambda: completed(query) > before + 2, "checkpoints go on")
    (again,) = set(deployed(probe)) - set(first)
    assert "/v1." in again, "a mapper, and nobody else"
    report = query.lastProgress
    query.stop()
    compare(report["recovery"], pq.read_table(tmp_path / "output")["value"], log=log)
    assert (report["restarts"], report["recovery"]["restartsAlone"]) == (1, 1)


def compare(found: dict[str, Any], values: pa.ChunkedArray, *, log: bool) -> None:
    """The report is what the files say."""
    distinct = len(pc.unique(values))
    missing, doubled = pc.max(values).as_py() + 1 - distinct, len(values) - distinct
    assert found["tasksNotCounted"] == 0
    if log:
        assert (missing, doubled) == (0, found["rowsReadAgain"] - found["rowsLost"])
        assert found["rowsForgotten"] == 0
    else:
        assert (missing, doubled) == (found["rowsLost"], 0)
        assert missing >= LATER // MAPPERS // 2, "the rows for a task that is away are lost"


def completed(query: Any) -> int:
    """The number of complete checkpoints."""
    report = query.lastProgress
    return 0 if report is None else report["checkpoints"]["completed"]


def is_known(query: Any) -> bool:
    """Tell whether a task has begun anew, and all channels have been counted since."""
    report = query.lastProgress
    found = None if report is None else report["recovery"]
    return found is not None and found["restartsAlone"] == 1 and found["channelsNotCounted"] == 0
