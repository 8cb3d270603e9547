# SPDX-License-Identifier: Apache-2.0
"""A checkpoint says what its sources read, and a driver that reads something else is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import PlanError
from penstock.graph.streaming import SavedParts, SourceReads, StreamingOptions
from penstock.job.query_storage import QueryStorage
from underway import listed

ORDERS = {"FilesSource-1": SourceReads("csv files of /in"), "orders": SourceReads("partitions of Orders", ("0", "1"))}
WIDTHS = {"FilesSource-1": 2, "orders": 1}


def storage(location: Path, sources: dict[str, SourceReads]) -> QueryStorage:
    """A driver's."""
    return QueryStorage(StreamingOptions("q", "q", str(location)), sources=sources)


def test_sources_are_compared_with_those_of_the_checkpoint(tmp_path: Path) -> None:
    """The same ones go on; another one of the same uid, and another uid, are refused by what they read."""
    first = storage(tmp_path, ORDERS)
    first.claim(WIDTHS)
    first.store(SavedParts(1, {}, parallelism=WIDTHS))
    again = storage(tmp_path, ORDERS)
    again.claim(WIDTHS)
    assert again.beginning.saved is not None
    assert again.beginning.saved.sources == ORDERS
    with pytest.raises(
        PlanError, match=r"'orders' was in partitions of Orders, and now it reads partitions of Other"
    ):
        storage(tmp_path, {**ORDERS, "orders": SourceReads("partitions of Other")}).claim(WIDTHS)
    other = {"FilesSource-2": SourceReads("csv files of /other"), "orders": ORDERS["orders"]}
    with pytest.raises(PlanError, match=r"how far the query was in csv files of /in .* instead: csv files of /other"):
        storage(tmp_path, other).claim({"FilesSource-2": 2, "orders": 1})


def test_query_that_had_finished_is_refused(tmp_path: Path) -> None:
    """It would read nothing, and say nothing; one whose driver died before its end goes on, whatever had finished."""
    first = storage(tmp_path, ORDERS)
    first.claim(WIDTHS)
    first.store(SavedParts(1, {}, frozenset({"FilesSource-1.0", "FilesSource-1.1"}), WIDTHS))
    again = storage(tmp_path, ORDERS)
    again.claim(WIDTHS)
    again.finish()
    again.end()
    with pytest.raises(
        PlanError, match=r"had read all of its rows and has ended.*csv files of /in, partitions of Ord"
    ):
        storage(tmp_path, ORDERS).look(WIDTHS)
    assert len(listed(tmp_path, "chk-*/_metadata")) == 2, "the checkpoint in front of the last word is kept"


def test_query_that_never_had_a_checkpoint_is_not_finished(tmp_path: Path) -> None:
    """There is nothing to say it of."""
    first = storage(tmp_path, ORDERS)
    first.claim(WIDTHS)
    first.finish()
    first.end()
    storage(tmp_path, ORDERS).claim(WIDTHS)


def test_a_query_begins_where_it_was_told_first(tmp_path: Path) -> None:
    """Each source is asked once: a driver that died before its first checkpoint has written down what it heard.

    A source that reads something else by then is asked anew, one with a position in a checkpoint never. A driver that
    was overtaken by another one before it had the location is refused.
    """
    asked: list[str] = []

    def ask(uid: str, answer: bytes) -> dict[str, Callable[[], bytes]]:
        return {uid: lambda: asked.append(uid) or answer}  # type: ignore[func-returns-value]

    first = storage(tmp_path, ORDERS)
    assert first.first_positions(ask("orders", b"7")) == {"orders": b"7"}
    late = storage(tmp_path, ORDERS)
    assert late.first_positions(ask("orders", b"8")) == {"orders": b"8"}, "nobody has written anything yet"
    first.claim(WIDTHS)
    with pytest.raises(CheckpointError, match="another driver has begun this query"):
        late.claim(WIDTHS)
    again = storage(tmp_path, ORDERS)
    assert again.first_positions(ask("orders", b"9")) == {"orders": b"7"}
    again.claim(WIDTHS)
    assert asked == ["orders", "orders"]
    other = {**ORDERS, "orders": SourceReads("partitions of Others")}
    assert storage(tmp_path, other).first_positions(ask("orders", b"9")) == {"orders": b"9"}
    again.store(SavedParts(1, {}, parallelism=WIDTHS))
    assert storage(tmp_path, ORDERS).first_positions(ask("orders", b"9")) == {}
