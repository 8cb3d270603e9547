# SPDX-License-Identifier: Apache-2.0
"""The latest change of each account, out of a log of JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import piece_number, write_lines

CHANGES_OF_AN_ACCOUNT = 4
CHANGE = "account long, version long, owner string, balance double"


def write(folder: Path, rows: int) -> None:
    """Changes in no order; versions are unique."""

    def changes(random: np.random.Generator, count: int) -> list[str]:
        accounts = random.integers(0, max(1, rows // CHANGES_OF_AN_ACCOUNT), count)
        versions = random.choice(count * 16, count, replace=False) * 4 + piece_number(random)
        cents = random.integers(0, 500_000, count)
        return [
            f'{{"account": {account}, "version": {version}, "owner": "o-{account % 999}", "balance": {cent / 100}}}'
            for account, version, cent in zip(accounts.tolist(), versions.tolist(), cents.tolist(), strict=True)
        ]

    write_lines(folder, rows, changes)


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    changes = spark.read.schema(CHANGE).json(folder)
    newest_first = Window.partitionBy("account").orderBy(F.desc("version"))
    numbered = changes.withColumn("number", F.row_number().over(newest_first))
    return numbered.filter("number = 1").select("account", "version", "owner", "balance")


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    changes = penstock.readJson(spark, folder, CHANGE)
    newest = changes.groupBy("account").agg(version=("version", "max"))
    return changes.keyBy("account", "version").join(newest.keyBy("account", "version"), "left_semi")


PROGRAM = Program(
    "latest change", "the newest of the JSON records of each key", 500_000, write, (in_pyspark,), (in_penstock,)
)
