# SPDX-License-Identifier: Apache-2.0
"""Two maps, two reduces, three slots: when each task ran, drawn, for each way of exchanging data.

    python examples/three_slots.py                 # three slots: blocking, pipelined, hybrid
    python examples/three_slots.py --slots 4

It counts words. One map has three times the words of the other, so its slot is busy for longer. Blocking, the reduces
wait for both maps. Pipelined, all four must run at once. Hybrid, a reduce takes the slot that the maps leave, and the
other one follows when a slot is free; what it finds then was partly written to disk.
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.errors import SlotsError
from penstock.spark.session import open_session

WIDTH = 60
MODES = ("blocking", "pipelined", "hybrid")
LINES = (20_000, 60_000)
TEXT = "the quick brown fox jumps over the lazy dog while the five boxing wizards jump quickly"
DISK = "service.disk_bytes_in"


def main(arguments=None):
    """Run the job in each mode; gives the exit code."""
    options = _parse(arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="three-slots-")))
        _write_texts(folder)
        # Little network memory, so that what the late reduce reads has gone to disk meanwhile.
        conf = {"spark.penstock.network.memory": "4m", "spark.penstock.network.segmentSize": "64k"}
        spark = stack.enter_context(open_session("three slots", options.slots, conf))
        _warm_up(spark, str(folder), options.slots)
        for mode in options.modes:
            _show(spark, str(folder), mode, options.slots)
    return 0


def _warm_up(spark, folder, slots):
    """Spark's Python processes start, and import what they need."""
    lines = penstock.readParquet(spark, folder, numPartitions=2).rebalance(slots, mode="blocking")
    lines.mapInArrow(wait_for_others, "line string").run()


def wait_for_others(batches):
    """The same rows, late enough that no process does two tasks."""
    import time

    time.sleep(1)
    yield from batches


def _show(spark, folder, mode, slots):
    print(f"\n{mode}, {slots} slots")
    lines = penstock.readParquet(spark, folder, numPartitions=2)
    words = lines.mapInArrow(split_words, "word string")
    counts = words.groupBy("word", numPartitions=2, mode=mode).applyInArrow(count, "word string, n long")
    try:
        result = counts.run()
    except SlotsError as refusal:
        print(f"  refused: {refusal}")
        return
    for line in timeline(result):
        print(f"  {line}")
    reduces = result.metrics[1]
    stored = reduces.get(DISK, 0) / 1e6
    print(f"  {reduces['rows_in']:,.0f} words in {result.seconds:.1f} s, {stored:.1f} MB of them from disk")


def split_words(batches):
    """One row per word; it waits for every piece, as for a service that it calls."""
    import time

    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        for start in range(0, batch.num_rows, 5_000):
            time.sleep(0.1)
            lines = batch.column("line").slice(start, 5_000)
            yield pa.record_batch([pc.list_flatten(pc.utf8_split_whitespace(lines))], names=["word"])


def count(table):
    """The number of rows of one word."""
    import pyarrow as pa

    return pa.table([table.column("word")[:1], pa.chunked_array([[table.num_rows]], pa.int64())], ["word", "n"])


def timeline(result):
    """One line per task: when it ran, as a bar."""
    started, ended = {}, {}
    for seconds, name, ids in result.trace:
        attempt = ids.partition(" ")[0]
        if name == "task_deployed":
            started[attempt] = seconds
        elif name == "task_finished" and attempt in started:
            ended[attempt] = seconds
    scale = WIDTH / max(ended.values())
    for attempt, begin in sorted(started.items(), key=lambda item: item[0].partition("/")[2]):
        vertex, _, subtask = attempt.partition("/v")[2].partition("#")[0].partition(".")
        name = f"{('map', 'reduce')[int(vertex)]} {int(subtask) + 1}"
        left, right = round(begin * scale), max(round(begin * scale) + 1, round(ended[attempt] * scale))
        bar = " " * left + "█" * (right - left) + " " * (WIDTH - right)
        yield f"{name:9}|{bar}| {begin:5.2f} to {ended[attempt]:5.2f} s"


def _write_texts(folder):
    for number, lines in enumerate(LINES):
        pq.write_table(pa.table({"line": [TEXT] * lines}), folder / f"{number}.parquet", row_group_size=lines)


def _parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slots", type=int, default=3, help="task slots of the session (3)")
    parser.add_argument(
        "--modes", type=lambda text: text.split(","), default=MODES, help="some of " + ",".join(MODES)
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
