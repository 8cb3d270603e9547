# SPDX-License-Identifier: Apache-2.0
"""A type checker reads programs of users: right ones pass, and of wrong ones it finds each wrong line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.testing import DEADLINE

RIGHT = Path(__file__).resolve().parents[2] / "examples" / "reference.py"
THEIRS = ('"pyspark.sql.streaming"', '"pyarrow.compute"')
"""Modules of others that hide names from type checkers, which all programs use."""
WRONG = """
import penstock
from pyspark.sql import DataFrame, SparkSession

def program(spark: SparkSession, df: DataFrame) -> None:
    rows = penstock.readParquet(spark, "orders")
    count: str = rows.count()  # wrong
    frame: int = rows.toDF()  # wrong
    more: DataFrame = rows.keyBy("user").count()  # wrong
    number: int = rows.keyBy("user").count().count()
    rows.keyBy("user", mode="piplined")  # wrong
    rows.keyBy("user", mode="pipelined", numPartitions="4")  # wrong
    penstock.readCsv(spark, "orders", mode="LENIENT")  # wrong
    penstock.readJson(spark, "orders", mode="FAILFAST")
    rows.writeDelta("orders", mode="ignore")  # wrong
    rows.mapInArrow(len, "n long")  # wrong
    rows.filtr("user = 1")  # wrong
    penstock.readText("orders")  # wrong
    penstock.readStream.format("rate")  # wrong
    penstock.repartition(df, 4).groupBy("user").count().show()
    penstock.groupBy(df, "user").agg(n=("*", "count")).shw()  # wrong
    rows.first().user  # wrong
    report: penstock.JobResult = rows.run()
    query: penstock.StreamingQuery = rows.writeStream.start(format="parquet")  # wrong
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright runs on Node.js, and there is none")
@pytest.mark.skipif(find_spec("pyright") is None, reason="an environment without the tools of development")
def test_pyright_reads_programs_as_python_does(tmp_path: Path) -> None:
    """The examples of the reference are right; of the others each line that says so is wrong, and none besides."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    (tmp_path / "pyrightconfig.json").write_text("{}")
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        str(RIGHT),
        str(wrong),
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.stdout, ran.stderr
    found = [each for each in json.loads(ran.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    of_ours = [each for each in found if not any(name in each["message"] for name in THEIRS)]
    assert [each for each in of_ours if each["file"] == str(RIGHT)] == []
    lines = {each["range"]["start"]["line"] for each in of_ours if each["file"] == str(wrong)}
    assert lines == {number for number, line in enumerate(WRONG.splitlines()) if line.endswith("# wrong")}
