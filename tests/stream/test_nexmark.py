# SPDX-License-Identifier: Apache-2.0
"""Nexmark's queries give DuckDB's answers over the same events, also when tasks are killed."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from effort import THOROUGH, some_of
from penstock_bench import nexmark
from penstock_bench.nexmark_events import BLOCK_GROUPS, GROUP, SCHEMAS, block, blocks_of
from penstock_bench.nexmark_flink import flink_queries
from timed_queries import graph_of, published, run_through

EVENTS = 60_000 if THOROUGH else 30_000
SEED = 1
QUERIES = nexmark.example("queries")
ANSWERS = nexmark.example("answers").ANSWERS
KILLED = (3, 5, 6, 7, 9, 11, 17, 19)
PLAIN = [number for number in ANSWERS if THOROUGH or number not in KILLED]


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    """All events."""
    return nexmark.tables(SEED, EVENTS)


def run(number: int, folder: Path, kills: int) -> pa.Table:
    """The rows that a query publishes."""
    stream = QUERIES.QUERIES[number](**nexmark.streams(SEED, blocks_of(EVENTS)))
    run_through(graph_of(stream, folder), folder, random.Random(number), unaligned=bool(number % 2), kills=kills)
    return published(folder)


@pytest.mark.parametrize(
    ("number", "kills"),
    [*((number, 2) for number in some_of(KILLED, 4)), *((number, 0) for number in some_of(PLAIN, 4))],
)
def test_the_answer_is_duckdbs(tmp_path: Path, tables: dict[str, pa.Table], number: int, kills: int) -> None:
    """Row for row; of rows that change the newest."""
    found = run(number, tmp_path, kills)
    assert nexmark.difference(found, nexmark.answer(ANSWERS[number], tables), QUERIES.KEYS.get(number, [])) == ""


def test_windows_of_processing_time_have_each_bid_once(tmp_path: Path, tables: dict[str, pa.Table]) -> None:
    """Query 12: counts by bidder add up to the bids."""
    found = run(12, tmp_path, 1).group_by("bidder").aggregate([("n", "sum")])
    expected = tables["bids"].group_by("bidder").aggregate([([], "count_all")])
    assert sorted(found.select(["bidder", "n_sum"]).to_pylist(), key=str) == sorted(
        expected.rename_columns(["bidder", "n_sum"]).to_pylist(), key=str
    )


def test_flink_is_asked_the_same_queries() -> None:
    """All but the sixth, which its SQL does not have; each reads one of the tables."""
    found = flink_queries()
    assert set(found) == set(QUERIES.QUERIES) - {6}
    assert all(re.search(r"\b(bids|auctions|persons|arrived)\b", text) for text in found.values())


def test_events_are_the_same_for_a_seed_and_have_their_shares() -> None:
    """2, 6 and 92 of a hundred; another seed gives others; bids are for auctions that there are, out of order."""
    counts = {kind: block(kind, 3, 5).num_rows for kind in SCHEMAS}
    assert counts == {"persons": BLOCK_GROUPS, "auctions": 3 * BLOCK_GROUPS, "bids": (GROUP - 4) * BLOCK_GROUPS}
    for kind in SCHEMAS:
        assert block(kind, 3, 5).equals(block(kind, 3, 5))
        assert not block(kind, 3, 5).equals(block(kind, 4, 5))
    bids, auctions = block("bids", 3, 5), block("auctions", 3, 5)
    assert pc.max(bids["auction"]).as_py() <= pc.max(auctions["id"]).as_py()
    assert pc.min(bids["auction"]).as_py() >= 1000
    times = bids["ts"].cast(pa.int64()).to_pylist()
    assert times != sorted(times)
