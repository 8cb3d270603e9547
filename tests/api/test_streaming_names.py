# SPDX-License-Identifier: Apache-2.0
"""Each public name of PySpark's streaming classes is here, or stands in the table of those that are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming import (
    DataStreamReader,
    DataStreamWriter,
    StatefulProcessor,
    StatefulProcessorHandle,
    StreamingQuery,
    StreamingQueryListener,
    StreamingQueryManager,
    stateful_processor,
)

import penstock
from penstock.api.habits import INSTEAD, INSTEAD_OF_QUERY, INSTEAD_OF_READER, INSTEAD_OF_WRITER
from penstock.api.streaming import listeners
from penstock.api.streaming.queries import StreamingQueries
from penstock.api.streaming.reader import StreamReader
from penstock.api.streaming.writer import StreamWriter
from penstock.stream.state import row_states, times
from penstock.stream.state.row_handle import RowHandle

PAGE = Path(__file__).resolve().parents[2] / "docs" / "structured-streaming.md"
WITH_GAPS: dict[str, tuple[type, tuple[type, ...]]] = {
    "DataStreamReader": (DataStreamReader, (StreamReader,)),
    "DataStreamWriter": (DataStreamWriter, (StreamWriter,)),
    "StreamingQuery": (StreamingQuery, (penstock.StreamingQuery,)),
    "GroupedData": (GroupedData, (penstock.GroupedDataFrame, penstock.KeyedStream)),
    "DataFrame": (DataFrame, (penstock.Stream,)),
}
"""By PySpark's class: the class, and ours that have its names."""
WHOLE: tuple[tuple[type, type], ...] = (
    (StreamingQueryManager, StreamingQueries),
    (StatefulProcessorHandle, RowHandle),
    (stateful_processor.ValueState, row_states.ValueState),
    (stateful_processor.ListState, row_states.ListState),
    (stateful_processor.MapState, row_states.MapState),
    (stateful_processor.TimerValues, times.TimerValues),
    (stateful_processor.ExpiredTimerInfo, times.ExpiredTimerInfo),
)
REFUSED = (
    (DataStreamReader, StreamReader, INSTEAD_OF_READER),
    (DataStreamWriter, StreamWriter, INSTEAD_OF_WRITER),
    (StreamingQuery, penstock.StreamingQuery, INSTEAD_OF_QUERY),
)


def names(kind: type) -> set[str]:
    """The public ones."""
    return {name for name in dir(kind) if not name.startswith("_")}


def table() -> dict[str, set[str]]:
    """The names in the table, by PySpark's class; what a row says instead is not among them."""
    _, _, text = PAGE.read_text().partition("## Names that are not here")
    found: dict[str, set[str]] = {}
    for line in text.partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            kind, listed, _ = line.strip("| ").split(" | ", 2)
            found.setdefault(kind.strip("`"), set()).update(re.findall(r"`(\w+)`", listed))
    return found


@pytest.mark.parametrize("kind", WITH_GAPS)
def test_what_is_not_here_is_in_the_table(kind: str) -> None:
    """All of it, and nothing that is here or that PySpark has not."""
    theirs, ours = WITH_GAPS[kind]
    assert table()[kind] == names(theirs) - set().union(*map(names, ours))


def test_the_table_is_of_these_classes() -> None:
    """And of no other."""
    assert set(table()) == set(WITH_GAPS)


@pytest.mark.parametrize("pair", WHOLE, ids=[theirs.__name__ for theirs, _ in WHOLE])
def test_other_classes_are_here_whole(pair: tuple[type, type]) -> None:
    """Managers of queries, and what a processor is given."""
    theirs, ours = pair
    assert names(theirs) <= names(ours)


def test_what_users_derive_from_has_the_calls_that_we_make() -> None:
    """A call that PySpark adds has to be made here too."""
    heard = {listeners.STARTED, listeners.PROGRESS, listeners.IDLE, listeners.TERMINATED}
    assert names(StreamingQueryListener) == heard | {"spark"}
    calls = {"init", "handleInputRows", "handleExpiredTimer", "handleInitialState", "close"}
    assert names(StatefulProcessor) == calls


@pytest.mark.parametrize("refused", REFUSED, ids=[theirs.__name__ for theirs, _, _ in REFUSED])
def test_each_has_a_sentence_of_its_own(refused: tuple[type, type, dict[str, str]]) -> None:
    """The table of sentences has all names of PySpark that our class lacks."""
    theirs, ours, instead = refused
    assert names(theirs) - names(ours) <= set(instead)


def test_the_sentence_is_said() -> None:
    """By the object itself, for a name of each table of sentences."""
    reader: Any = penstock.readStream(None)
    rows: Any = reader.format("rate").load()
    refused = ((reader, "xml", INSTEAD_OF_READER), (rows.writeStream, "foreach", INSTEAD_OF_WRITER))
    for owner, name, instead in refused:
        with pytest.raises(AttributeError, match=re.escape(instead[name])):
            getattr(owner, name)
    with pytest.raises(AttributeError, match=re.escape(INSTEAD["alias"])):
        rows.alias  # noqa: B018 - it raises
