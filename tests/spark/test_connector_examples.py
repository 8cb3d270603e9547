# SPDX-License-Identifier: Apache-2.0
"""The examples of connectors, run in the session of the other tests."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import connectors
from penstock.api.streaming.formats import FORMATS
from penstock.api.streaming.sinks import SINKS
from session_probe import queries_ended
from underway import listed

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def ended(spark: Any) -> Iterator[None]:
    """No query outlives its test."""
    yield from queries_ended(spark)


def run(spark: Any, name: str, folder: Path) -> str:
    """The sentence of an example; its functions travel as those of a program do."""
    module = importlib.import_module(f"connectors.{name}")
    cloudpickle.register_pickle_by_value(module)
    try:
        said: str = module.run(spark, str(folder))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return said


def test_a_data_source_of_pyspark(spark: Any, tmp_path: Path) -> None:
    """Read and written: half of the readings are high."""
    assert run(spark, "data_source", tmp_path) == "250 of 500 readings were high"


def test_folders_of_files(spark: Any, tmp_path: Path) -> None:
    """Through JSON, CSV, a table in folders, and text: each reading once."""
    said = "2000 readings of 4 sensors in the table, 500 lines of the last sensor"
    assert run(spark, "folders", tmp_path) == said


def test_a_source_of_ones_own(spark: Any, tmp_path: Path) -> None:
    """Two journals, in two runs: each line once."""
    assert run(spark, "own_source", tmp_path) == "1200 lines, 1200 of them different"


def test_topics_of_kafka(spark: Any, tmp_path: Path) -> None:
    """Through the client's toy cluster: each click counts once."""
    pytest.importorskip("confluent_kafka")
    assert run(spark, "kafka_topics", tmp_path) == '{"all": 600, "basket": 200, "home": 200, "search": 200}'


@pytest.mark.usefixtures("delta", "iceberg")
def test_tables_of_delta_and_iceberg(spark: Any, tmp_path: Path) -> None:
    """Each has all rows, in more than one version; that by keys has one row for each."""
    said = "3000 rows in Delta, 3000 in Iceberg, in several versions; 10 counts of 3000; 3000 read again"
    assert run(spark, "lake_tables", tmp_path) == said


def test_each_connector_has_a_program_that_is_run() -> None:
    """Each format that is read or written by name stands in an example, and this file runs all of these."""
    folder = Path(connectors.__path__[0])
    programs = {path.stem: path.read_text() for path in listed(folder, "*.py") if path.stem != "__init__"}
    own = Path(__file__).read_text()
    assert all(f'run(spark, "{name}", tmp_path)' in own for name in programs)
    text = "".join(programs.values()) + (folder.parent / "streaming_day.py").read_text()
    for name in {*FORMATS, *SINKS} - {"noop", "memory", "console"}:  # these are for looking
        assert f'.format("{name}")' in text or f").{name}(" in text, name
