# SPDX-License-Identifier: Apache-2.0
"""Runs histories of tables, and prints those whose rows are read differently."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock_torture.tables.catalog import opened_catalog
from penstock_torture.tables.delta import DeltaHistory
from penstock_torture.tables.folder import FolderHistory
from penstock_torture.tables.iceberg import IcebergHistory
from penstock_torture.tables.rows import writing_here

_STEPS = 6
KINDS = ("iceberg", "delta", "folder")


def run_history(kind: str, seed: int, folder: Path, spark: Any = None) -> list[str]:
    """The ways in which the rows of one history are read differently; with a session Spark writes and reads, too."""
    with writing_here():
        if kind == "delta":
            return DeltaHistory(folder, seed).run(_STEPS)
        if kind == "folder":
            return FolderHistory(folder, seed, spark).run(_STEPS)
        with opened_catalog(folder) as catalog:
            return IcebergHistory(catalog, folder, seed).run(_STEPS)


def torture_tables(seed: int, histories: int, say: Callable[[str], None]) -> list[str]:
    """So many histories from this seed on, of each kind in turn; what differs."""
    from penstock.spark.session import open_session

    with open_session("penstock-torture", 2, {"spark.sql.session.timeZone": "UTC"}) as spark:
        wrong = [one for number in range(seed, seed + histories) for one in _run(number, spark, say)]
    say(f"tables: {histories} histories, {len(wrong)} different")
    return wrong


def _run(number: int, spark: Any, say: Callable[[str], None]) -> list[str]:
    kind = KINDS[number % len(KINDS)]
    with tempfile.TemporaryDirectory() as folder:
        found = run_history(kind, number, Path(folder), spark)
    for one in found:
        say(f"{kind} {number}: {one}")
        say(f"    again: python -m penstock_torture --tables 1 --seed {number}")
    return [f"{kind} {number}: {one}" for one in found]
