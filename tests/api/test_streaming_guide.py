# SPDX-License-Identifier: Apache-2.0
"""The table of Structured Streaming's guide: each row does what the page says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.api.habits import INSTEAD_OF_QUERY
from penstock.api.streaming.queries import StreamingQueries
from penstock.api.streaming.sinks import SINKS
from penstock.api.streaming.writer import sketched_query
from penstock.errors import PlanError, SettingError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "structured-streaming.md"


def reader() -> Any:
    """A source in the making."""
    return penstock.readStream(None)


def rate() -> Any:
    """Rows without an end."""
    return reader().format("rate").load()


def planned(stream: Any) -> Any:
    """The job of its query."""
    return sketched_query(stream.branches, None)


def pairs(left: Any, right: Any) -> Any:
    """A join as it is written here."""
    return left.keyBy("value").join(right.keyBy("value"), between=("timestamp", "at", "0 seconds", "1 hour"))


def refused_if(is_so: bool) -> None:
    """Raise as a name does that there is not; only where it is so."""
    if is_so:
        raise AttributeError("it is refused by name, which needs a query")


ROWS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "readStream.schema(s).json(folder)": ("runs", lambda p: planned(reader().schema("a long").json(str(p)))),
    'readStream.format("rate")': ("runs", lambda p: planned(rate())),
    'readStream.format("socket")': ("refused", lambda p: reader().format("socket").load()),
    'readStream.table("t")': ("refused", lambda p: reader().table("t")),
    'option("maxFilesPerTrigger", 1)': (
        "refused",
        lambda p: reader().schema("a long").option("maxFilesPerTrigger", 1).json(str(p)),
    ),
    'groupBy("k").count()': ("runs", lambda p: planned(rate().groupBy("value").count())),
    "withWatermark": (
        "runs",
        lambda p: planned(
            rate()
            .withWatermark("timestamp", "1 second")
            .groupBy(penstock.window("timestamp", "1 minute"))
            .agg(n=("value", "count"))
        ),
    ),
    "dropDuplicatesWithinWatermark": (
        "runs",
        lambda p: planned(rate().withWatermark("timestamp", "1 second").dropDuplicatesWithinWatermark(["value"])),
    ),
    "join": ("differs", lambda p: planned(pairs(rate(), rate().withColumnRenamed("timestamp", "at")))),
    "applyInPandasWithState": ("refused", lambda p: rate().applyInPandasWithState),
    'outputMode("complete")': ("differs", lambda p: rate().writeStream.outputMode("complete")),
    "trigger(availableNow=True)": ("runs", lambda p: rate().writeStream.trigger(availableNow=True)),
    'trigger(processingTime="5 seconds")': (
        "differs",
        lambda p: rate().writeStream.trigger(processingTime="5 seconds"),
    ),
    "foreachBatch(fn)": ("runs", lambda p: rate().writeStream.foreachBatch(lambda frame, number: None)),
    "foreach(writer)": ("refused", lambda p: rate().writeStream.foreach(lambda row: None)),
    "partitionBy": ("runs", lambda p: rate().writeStream.partitionBy("value").toTable),
    'format("orc")': ("refused", lambda p: refused_if("orc" not in SINKS)),
    'format("memory")': ("runs", lambda p: [SINKS[name] for name in ("memory", "console")]),
    "processAllAvailable()": ("refused", lambda p: refused_if("processAllAvailable" in INSTEAD_OF_QUERY)),
    "spark.streams": ("differs", lambda p: StreamingQueries().active),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_is_so(row: str, tmp_path: Path) -> None:
    """It runs, runs written otherwise, or is refused with a sentence."""
    said, use = ROWS[row]
    if said == "refused":
        with pytest.raises((PlanError, SettingError, AttributeError)):
            use(tmp_path)
    else:
        assert use(tmp_path) is not None


def test_the_table_has_the_rows_that_are_tried() -> None:
    """And says of each what was tried."""
    _, _, table = PAGE.read_text().partition("## Programs of the guide")
    lines = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS)
    for line, (row, (said, _)) in zip(lines, ROWS.items(), strict=True):
        assert f"`{row}" in line
        assert line.split(" | ")[1] == said, line
