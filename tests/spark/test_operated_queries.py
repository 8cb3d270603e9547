# SPDX-License-Identifier: Apache-2.0
"""`penstock queries` leads a query of a running session from another process, as the program's own handle does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.cli import main
from penstock.testing import DEADLINE, wait_until

pytestmark = pytest.mark.spark


def another_process(*words: str) -> str:
    """What the command says on standard output."""
    command = [sys.executable, "-m", "penstock.cli", "queries", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True).stdout


def started(spark: Any, folder: Path, name: str) -> Any:
    """A query that counts by key, with two stages of which each may have any number of tasks."""
    rows = penstock.readStream(spark).format("rate").options(rowsPerSecond=2_000, numPartitions=1).load()
    counted = rows.withColumn("k", "value % 10").keyBy("k", numPartitions=1).agg(n=("value", "count"))
    writer = counted.writeStream.queryName(name).format("parquet").outputMode("update")
    return writer.options(checkpointLocation=str(folder / "at"), checkpointInterval="300ms").start(
        str(folder / "out")
    )


def test_a_query_is_listed_saved_rescaled_and_stopped(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By another process, and by the command's own code in this one: words, exit codes, and every row once."""
    query = started(spark, tmp_path, "counts")

    def queries(*words: str) -> tuple[int, str]:
        code = main(["queries", *words])
        return code, "".join(capsys.readouterr())

    try:
        wait_until(lambda: query.status["isTriggerActive"], "it runs")
        (listed,) = [each for each in json.loads(queries("list", "--json")[1]) if each["name"] == "counts"]
        assert (listed["id"], listed["tasks"]) == (query.id, [1, 1])
        assert f"counts  {query.id}  1 + 1 tasks" in another_process("list")
        code, said = queries("savepoint", query.id[:6], str(tmp_path / "saved"))
        assert (code, f"of query counts is at {tmp_path / 'saved'}" in said) == (0, True)
        assert SavepointFolder(str(tmp_path / "saved")).find().metadata is not None
        assert queries("rescale", "counts", "3") == (0, "query counts goes on with 1 + 3 tasks, it had 1 + 1\n")
        for words, code, refusal in (
            (("rescale", "counts", "99"), 1, "query counts needs 100 task slots"),
            (("rescale", "counts", "0"), 2, "rescale: numPartitions must be at least 1, not 0"),
            (("stop", "count"), 2, "no query is called 'count': there are counts of penstock-tests"),
        ):
            given, said = queries(*words)
            assert (given, refusal in said) == (code, True)
        assert query.isActive
        assert query.tasks == (1, 3)
        query.checkpoint()
        said = another_process("stop", "counts", "--savepoint", str(tmp_path / "last"))
        assert said == f"query counts has ended, and its last state is at {tmp_path / 'last'}\n"
        assert not query.isActive
        assert query.exception() is None
    finally:
        query.stop()
    newest: dict[int, int] = {}
    for row in pq.read_table(tmp_path / "out").to_pylist():
        newest[row["k"]] = max(row["n"], newest.get(row["k"], 0))
    assert sorted(newest) == list(range(10))
    assert max(newest.values()) - min(newest.values()) <= 1  # each value once, over both runs of its job
    with pytest.raises(CheckpointError, match="query counts is not rescaled: it has ended"):
        query.rescale(1)
