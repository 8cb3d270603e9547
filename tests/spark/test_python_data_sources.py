# SPDX-License-Identifier: Apache-2.0
"""Python data sources that a session knows: the same class read by PySpark and by Penstock, with the same result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

import penstock
import python_sources
from penstock.errors import PlanError
from penstock.testing import wait_until
from session_probe import queries_ended

pytestmark = pytest.mark.spark

STARTS = 5


@pytest.fixture(autouse=True)
def ended(spark: Any) -> Iterator[None]:
    """Workers can't import the support's modules; no query outlives its test."""
    cloudpickle.register_pickle_by_value(python_sources)
    spark.dataSource.register(python_sources.Numbers)
    spark.dataSource.register(python_sources.Ledger)
    spark.createDataFrame([], "id long")  # makes this session the thread's active one: PySpark's writer asks that one
    yield from queries_ended(spark)
    cloudpickle.unregister_pickle_by_value(python_sources)


def copied(reader: Any, folder: Path, output: str) -> Any:
    """A query from one registered class into another one: this text is PySpark's and ours."""
    source = reader.format("numbers").option("path", str(folder)).load()
    writer = source.writeStream.format("ledger").option("checkpointLocation", str(folder / f"{output}-checkpoints"))
    return writer.option("path", str(folder / output)).start()


def copied_by_spark(spark: Any, folder: Path) -> None:
    """All that there is; on a busy machine Spark's worker may miss its ten seconds, and its query goes on then."""
    for attempt in range(STARTS):
        query = copied(spark.readStream, folder, "theirs")
        try:
            query.processAllAvailable()
        except StreamingQueryException as error:
            if attempt == STARTS - 1 or "failed to connect back" not in str(error):
                raise
        else:
            query.stop()
            return


@pytest.mark.thorough
def test_registered_sources_do_what_they_do_in_pyspark(spark: Any, tmp_path: Path) -> None:
    """The same program, started on PySpark's reader and on ours: the same rows are committed."""
    (tmp_path / "end").write_text("30")
    copied_by_spark(spark, tmp_path)
    ours = copied(penstock.readStream(spark), tmp_path, "ours")
    wait_until(lambda: ours.lastProgress and ours.lastProgress["numInputRows"], "its rows have come")
    ours.stop()
    assert ours.exception() is None
    assert python_sources.ledger(tmp_path / "ours") == python_sources.ledger(tmp_path / "theirs")
    assert len(python_sources.ledger(tmp_path / "ours")) == 30
    with pytest.raises(PlanError, match=r"there is no such source: use one of .* a Python data source"):
        penstock.readStream(spark).format("letters").load()
    stream = penstock.readStream(spark).format("rate").load()
    with pytest.raises(PlanError, match=r"there is no such sink: use one of .* a Python data source"):
        stream.writeStream.format("letters").start()
