# SPDX-License-Identifier: Apache-2.0
"""Random whole queries beside Structured Streaming, run by run: files come, both run with `availableNow` and end.

After each run the rows that both have written must be the same. All rows are on time, so neither drops any.
"""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException

import penstock
from penstock.testing import DEADLINE
from penstock_torture.stages.queries import DELAY, SCHEMA, random_rows
from penstock_torture.stages.query_verbs import Verb, random_verbs
from penstock_torture.stages.values import Found, batch_of, group_sizes, spelled

_COLUMNS = "k long, s string, t timestamp, v long"
_LATER = 2_000
"""Milliseconds from the rows of one run to those of the next."""


def compare_runs(seed: int, spark: Any, folder: Path) -> tuple[str, str]:
    """The words of a seed's query, and what is wrong; empty: nothing."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    verbs = random_verbs(chance)
    words = ", ".join(map(str, verbs))
    try:
        for run in range(chance.randint(1, 3)):
            _add_file(random_rows(chance, chance.choice((5, 60, 300)), 1_000 + run * _LATER), folder, run)
            theirs, ours = _by_spark(spark, verbs, folder), _by_penstock(spark, verbs, folder, chance.choice((1, 2)))
            if theirs != ours:
                return words, f"run {run + 1}, Penstock beside Spark: {group_sizes(ours, theirs)}"
    except AnalysisException as error:  # Penstock's refusals are PlanErrors
        return f"{words}; Spark has it not: {str(error).splitlines()[0]}", ""
    except Exception:  # noqa: BLE001 - which side fails is what is being asked
        return words, traceback.format_exc()
    return words, ""


def _add_file(rows: list[dict[str, Any]], folder: Path, run: int) -> None:
    (folder / "in").mkdir(parents=True, exist_ok=True)
    schema = SCHEMA.set(SCHEMA.get_field_index("t"), pa.field("t", pa.timestamp("us", "UTC")))
    pq.write_table(pa.Table.from_batches([batch_of(rows, schema)]), folder / "in" / f"{run}.parquet")


def _by_spark(spark: Any, verbs: list[Verb], folder: Path) -> Found:
    frame = spark.readStream.schema(_COLUMNS).parquet(str(folder / "in"))
    frame = frame.withWatermark("t", f"{DELAY} milliseconds")
    for verb in verbs:
        frame = verb.of_frame(frame)
    writer = frame.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "theirs")).start(str(folder / "spark"))
    if not query.awaitTermination(DEADLINE):
        raise AssertionError("Spark's query has not ended")
    return _written(folder / "spark")


def _by_penstock(spark: Any, verbs: list[Verb], folder: Path, width: int) -> Found:
    stream = penstock.readStream(spark).format("parquet").schema(_COLUMNS).load(str(folder / "in"))
    stream = stream.withWatermark("t", f"{DELAY} milliseconds")
    for verb in verbs:
        stream = verb.of_stream(stream, width)
    writer = stream.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "ours")).start(str(folder / "penstock"))
    if not query.awaitTermination(DEADLINE):
        raise AssertionError("Penstock's query has not ended")
    return _written(folder / "penstock")


def _written(folder: Path) -> Found:
    files = [str(path) for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_"))]
    rows = [row for file in files for row in ds.dataset(file, format="parquet").to_table().to_pylist()]
    return spelled(rows)
