# SPDX-License-Identifier: Apache-2.0
"""Errors of a web server by hour and path, out of the lines of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import write_lines

FIELDS = [
    r"regexp_extract(value, '\\[[^:]+:(\\d\\d):', 1) AS hour",
    r"regexp_extract(value, '\"[A-Z]+ ([^? ]+)', 1) AS path",
    r"CAST(regexp_extract(value, '\" (\\d{3}) ', 1) AS int) AS status",
    r"CAST(regexp_extract(value, ' (\\d+)$', 1) AS bigint) AS bytes",
]


def write(folder: Path, rows: int) -> None:
    """Lines in the common log format."""

    def lines(random: np.random.Generator, count: int) -> list[str]:
        hours, minutes = random.integers(0, 24, count), random.integers(0, 60, count)
        paths, sizes = random.integers(0, 300, count), random.integers(0, 1 << 16, count)
        status = random.choice([200, 200, 200, 304, 404, 500], count)
        parts = zip(hours.tolist(), minutes.tolist(), paths.tolist(), status.tolist(), sizes.tolist(), strict=True)
        return [
            f"10.0.{path % 200}.{size % 250} - - [05/Mar/2026:{hour:02}:{minute:02}:07 +0000] "
            f'"GET /shop/{path}?q={size} HTTP/1.1" {code} {size}'
            for hour, minute, path, code, size in parts
        ]

    write_lines(folder, rows, lines)


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    requests = spark.read.text(folder).selectExpr(*FIELDS)
    return requests.filter("status >= 400").groupBy("hour", "path", "status").agg({"*": "count", "bytes": "sum"})


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    requests = penstock.readText(spark, folder).selectExpr(*FIELDS)
    return requests.filter("status >= 400").groupBy("hour", "path", "status").agg({"*": "count", "bytes": "sum"})


PROGRAM = Program(
    "log lines",
    "four regular expressions on each line, errors counted",
    400_000,
    write,
    (in_pyspark,),
    (in_penstock,),
    "it has no Python stage",
)
