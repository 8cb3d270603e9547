# SPDX-License-Identifier: Apache-2.0
"""Each window once and whole, in real processes: tasks, environments, executors and the driver are killed.

A run begins with one number of tasks and goes on with others; odd seeds keep their state in files. Numbers have event
times out of order within the delay, so that all windows of all rows are known. `PENSTOCK_WINDOW_RUNS` says how many
seeds are tried.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from effort import THOROUGH, some_of
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.modes import in_mode
from penstock.api.streaming.writer import query_graph
from penstock.api.windows import session_window, window
from penstock.graph.streaming import StreamingOptions
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.master import JobHandle
from penstock.settings import RestartSettings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import RateSource
from penstock.testing import DEADLINE
from penstock_torture.process_launcher import Nursery
from process_cluster import STREAMING_PRELOADED, ProcessCluster, give_way, kill
from underway import children

pytestmark = pytest.mark.processes

RUNS = int(os.environ.get("PENSTOCK_WINDOW_RUNS", "10" if THOROUGH else "3"))
ROWS = 8_000
RATE = 8_000
KEYS = 7
SLOTS = 6
SECOND = 1_000_000
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
RESTARTS = RestartSettings("exponential", attempts=1 << 30, delay=0.02, max_delay=0.2, user_errors=10)
VICTIMS = ("task", "task", "environment", "executor", "driver")
KINDS = ("tumbling", "outer", "session", "sliding", "join")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file."""
    with Nursery(STREAMING_PRELOADED) as made:
        yield made


def timed(keys: int, second: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Gives each number a key and a time, a millisecond apart and up to half a second early; travels as a whole."""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = np.array(batch.column("value").to_pylist(), np.int64)
            times = second + values * 1000 - values * 2_654_435_761 % 500 * 1000
            columns = [
                pa.array(values % keys),
                batch.column("value"),
                pa.array(times).cast(pa.timestamp("us", "UTC")),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "value", "ts"])

    return give


def query(kind: str, width: int) -> Stream:
    """Counts of windows, or pairs of rows within a bound, of one source or two."""

    def source() -> Stream:
        rate = RateSource(RATE, 1, ROWS)
        step = SourceStep(rate.name, rate.schema, rate, partitions=1, streaming=True)  # type: ignore[arg-type]
        return Stream((step,)).mapInArrow(timed(KEYS, SECOND), SCHEMA).withWatermark("ts", "1 second")

    if kind in ("join", "outer"):
        left, right = (source().withColumnsRenamed({"value": name, "ts": f"{name}_ts"}) for name in ("l", "r"))
        if kind == "outer":
            right = right.filter(pc.equal(pc.field("key"), 1))
        how, least = ("full", "1 milliseconds") if kind == "outer" else ("inner", "0 seconds")
        keyed = left.keyBy("key", numPartitions=width)
        joined = keyed.join(
            right.keyBy("key", numPartitions=width), how=how, between=("l_ts", "r_ts", least, "20 milliseconds")
        )
        return joined.select("key", "l", "r")
    windows = {
        "tumbling": window("ts", "300 milliseconds"),
        "sliding": window("ts", "400 milliseconds", "100 milliseconds"),
        "session": session_window("ts", "8 milliseconds"),
    }
    counted = source().keyBy("key", windows[kind].alias("w"), numPartitions=width)
    return counted.agg(n=("*", "count"), s=("value", "sum"))


def start(cluster: ProcessCluster, folder: Path, kind: str, width: int, *, unaligned: bool, store: str) -> JobHandle:
    """Start the query, as a new driver does."""
    stream = query(kind, width)
    options = StreamingOptions(
        "q", "windows", str(folder / "checkpoints"), interval=0.02, buffer_timeout=0.01, unaligned=unaligned
    )
    sink = FolderSink(fs.LocalFileSystem(), str(folder / "out"), stream.schema, "windows")
    graph = query_graph(in_mode(stream.branches, None), sink, cluster.settings, SLOTS + 1, options)
    storage = QueryStorage(options)
    storage.claim({vertex.uid: vertex.parallelism for vertex in graph.vertices})
    streaming = replace(cluster.settings.streaming, watermark_interval=0.005, state_store=store)
    settings = replace(cluster.settings, restart=RESTARTS, streaming=streaming)
    return cluster.submit_graph(graph, SLOTS, settings, storage)


def strike(victim: str, cluster: ProcessCluster, chance: random.Random) -> None:
    """Kill one of these."""
    executors = [executor for executor in cluster.launcher.executors if not executor.is_dead]
    if victim == "task":
        if found := children(*(executor.pid for executor in executors)):
            kill(chance.choice(found))
    elif victim == "environment":
        if attached := sorted(cluster.attached()):
            kill(chance.choice(attached))
    elif executors:
        chance.choice(executors).kill()


def expected(kind: str) -> Counter[tuple[int | None, ...]]:
    """The rows of all numbers at once: key, bounds, count and sum of each window, or the pairs."""
    values = np.arange(ROWS)
    times = SECOND + values * 1000 - values * 2_654_435_761 % 500 * 1000
    found: Counter[tuple[int | None, ...]] = Counter()
    if kind in ("join", "outer"):
        for key in range(KEYS) if kind == "join" else (1,):
            own = values[key::KEYS]
            apart = times[own][None, :] - times[own][:, None]
            meets = (apart >= (0 if kind == "join" else 1_000)) & (apart <= 20_000)
            for left, right in zip(*np.nonzero(meets), strict=True):
                found[key, int(own[left]), int(own[right])] += 1
        return found if kind == "join" else found + alone(values.tolist(), found)
    members: dict[tuple[int, int, int], list[int]] = {}
    if kind == "session":
        for key in range(KEYS):
            own = values[key::KEYS]
            own = own[np.argsort(times[own], kind="stable")]
            for part in np.split(own, np.flatnonzero(np.diff(times[own]) > 8_000) + 1):
                members[key, int(times[part[0]]), int(times[part[-1]]) + 8_000] = part.tolist()
    else:
        size, slide = (300_000, 300_000) if kind == "tumbling" else (400_000, 100_000)
        for value, moment in zip(values.tolist(), times.tolist(), strict=True):
            for begin in range(moment // slide * slide, moment - size, -slide):
                members.setdefault((value % KEYS, begin, begin + size), []).append(value)
    return Counter({(*place, len(own), sum(own)): 1 for place, own in members.items()})


def alone(values: list[int], pairs: Counter[tuple[int | None, ...]]) -> Counter[tuple[int | None, ...]]:
    """The rows of the outer join that meet nothing."""
    of_left, of_right = {left for _, left, _ in pairs}, {right for _, _, right in pairs}
    found: Counter[tuple[int | None, ...]] = Counter()
    found.update((value % KEYS, value, None) for value in values if value not in of_left)
    found.update((1, None, value) for value in values[1::KEYS] if value not in of_right)
    return found


def published(folder: Path, kind: str) -> Counter[tuple[int | None, ...]]:
    """The rows that a plain reader sees."""
    table = ds.dataset(folder / "out", format="parquet").to_table()
    if kind in ("join", "outer"):
        columns = [table[name].to_pylist() for name in ("key", "l", "r")]
    else:
        bounds = table["w"].combine_chunks()
        columns = [
            table["key"].to_pylist(),
            *(bounds.field(at).cast(pa.int64()).to_pylist() for at in ("start", "end")),
        ]
        columns += [table["n"].to_pylist(), table["s"].to_pylist()]
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize("seed", some_of(range(RUNS), 2))
def test_each_window_and_each_pair_once_through_kills(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    """Several kills at random moments; a new driver takes over with another number of tasks."""
    chance = random.Random(seed)
    kind, unaligned = KINDS[seed % len(KINDS)], chance.random() < 0.5
    store = "files" if seed % 2 else "memory"
    clusters = [ProcessCluster(nursery)]

    def started() -> JobHandle:
        width = chance.choice((1, 2, 3))
        return start(clusters[-1], tmp_path, kind, width, unaligned=unaligned, store=store)

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [cluster.close() for cluster in clusters])
        handle = started()
        for _ in range(chance.randint(2, 4)):
            with contextlib.suppress(TimeoutError):
                handle.wait(chance.uniform(0.1, 0.6))
                break
            victim = chance.choice(VICTIMS)
            if victim == "driver":
                clusters.append(ProcessCluster(nursery))
                former, handle = handle, started()
                give_way(former, lambda: published(tmp_path, kind) == expected(kind))
            else:
                strike(victim, clusters[-1], chance)
        handle.wait(DEADLINE)
        assert published(tmp_path, kind) == expected(kind)
