# SPDX-License-Identifier: Apache-2.0
"""Random CSV files with odd fields, quotes, line ends and numbers of fields: the rows that Spark reads from them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import penstock
from effort import some_of
from penstock.api import line_files
from penstock.testing.local_runner import run_local

pytestmark = pytest.mark.spark

FILES = 12
FIELDS = [
    *(
        "",
        '""',
        "a",
        " b",
        "1",
        "-2",
        "+3",
        "1 ",
        "1.5",
        ".5",
        "12.345",
        "1e3",
        "1e400",
        "0x1F",
        "99999999999",
        "NaN",
    ),
    *(
        "nan",
        "-Inf",
        "true",
        "TRUE",
        "2020-01-02",
        "2020-1-2",
        "2020-02-30",
        "2020-01-01 10:00:00",
        "noon",
        "NA",
        '"NA"',
    ),
    *(
        '"q"',
        r'"q\"r"',
        r'"\\"',
        r"a\b",
        "é",
        '"q,r"',
        '"a',
        'a"',
        '"a"b',
        '"a" ',
        '"a" b',
        '"',
        'a"b"c',
        '"a\\',
        "'a,b'",
    ),
]
TYPES = ["int", "bigint", "string", "double", "boolean", "date", "timestamp", "decimal(5,2)", "smallint", "float"]


def text_of(draw: random.Random, columns: int) -> str:
    """Some lines, of which a few have other numbers of fields, or none."""
    sep, ends = ",", draw.choice([["\n"], ["\r\n"], ["\r"], ["\n", "\r", "\r\n"]])
    lines = [sep.join(f"c{place}" for place in range(columns))]
    for _ in range(12):
        count = max(1, columns + draw.choice([0, 0, 0, -1, 1]))
        lines.append(draw.choice([" ", ""]) if draw.random() < 0.05 else sep.join(draw.choices(FIELDS, k=count)))
    text = "".join(line + draw.choice(ends) for line in lines)
    return ("\ufeff" if draw.random() < 0.2 else "") + (text.rstrip("\r\n") if draw.random() < 0.3 else text)


def comparable(rows: Any) -> list[str]:
    """Rows as text, in which NaN equals itself, in an order of their own."""
    return sorted(repr(list(row.values())) for row in rows.to_pylist())


@pytest.mark.parametrize("seed", some_of(range(FILES), 3))
def test_a_random_file_has_sparks_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With any mode and options, and wherever the file is cut; or both raise an error."""
    draw = random.Random(seed)
    columns = draw.randint(1, 4)
    (tmp_path / "a.csv").write_bytes(text_of(draw, columns).encode())
    options = {"mode": draw.choice(["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]), "header": True}
    options["escape"] = draw.choice(["\\", "\\", '"', "/"])
    options |= draw.choice([{}, {"nullValue": "NA"}, {"quote": "'"}, {"quote": ""}])
    schema = [f"c{place} {draw.choice(TYPES)}" for place in range(columns)]
    if options["mode"] != "FAILFAST":
        schema.insert(draw.randint(0, columns), "_corrupt_record string")
    try:
        theirs = comparable(spark.read.schema(", ".join(schema)).options(**options).csv(str(tmp_path)).toArrow())
    except Exception:  # noqa: BLE001 - of many kinds
        theirs = ["an error"]
    monkeypatch.setattr(line_files, "PIECE_BYTES", draw.choice([columns * 3 + 3, 40, 1 << 20]))
    stream = penstock.readCsv(spark, tmp_path, ", ".join(schema), numPartitions=3, **options)
    try:
        ours = comparable(run_local(stream))
    except Exception:  # noqa: BLE001 - as above
        ours = ["an error"]
    assert ours == theirs
