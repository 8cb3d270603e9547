# SPDX-License-Identifier: Apache-2.0
"""The command: finds files, starts a session, counts, and reports."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from penstock.errors import PenstockError
from wordcount.files import InputError, TextFiles, find_demo_files, find_files
from wordcount.job import Counted, count_files, differences, recount

DIFFERENT = 1


@dataclass(frozen=True, slots=True)
class WordcountOptions:
    """The options of the command line."""

    paths: tuple[str, ...] = ()
    partitions: int | None = None
    top: int = 20
    verify: bool = False
    json: bool = False
    demo: bool = False
    compare: bool = False


def run_wordcount(options: WordcountOptions) -> int:
    """Count and report; the exit code. Raises InputError before anything starts where a path is wrong."""
    files = find_demo_files() if options.demo else find_files(options.paths)
    if not files.files:
        raise InputError(f"{', '.join(options.paths)}: there is no text file")
    producers = max(1, min(len(os.sched_getaffinity(0)), len(files.files)))
    partitions = options.partitions or max(2, producers)
    report = _counted(options, files, partitions, producers)
    if options.json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
    else:
        _show(report)
    return DIFFERENT if report["differences"] else 0


def _counted(options: WordcountOptions, files: TextFiles, partitions: int, producers: int) -> dict[str, Any]:
    from penstock.spark.session import open_session

    began = time.perf_counter()
    shown = {"spark.penstock.observe.progress": "true"}
    with open_session("penstock-wordcount", producers + partitions, shown) as spark:
        started = time.perf_counter()
        counted = count_files(spark, files, partitions, producers)
        report = _report(counted, files, options.top)
        report["seconds"] = {"session": started - began, "count": time.perf_counter() - started}
        if options.compare:
            report["seconds"]["spark_jvm"] = _jvm_seconds(spark, files, partitions, counted.counts)
    report["partitions"] = partitions
    report["demo"], report["verified"], report["differences"] = options.demo, options.verify, []
    if options.verify:
        before = time.perf_counter()
        expected = recount(files.files)
        report["seconds"]["plain_python"] = time.perf_counter() - before
        report["differences"] = differences(counted.counts, expected)
    report["seconds"] = {name: round(value, 3) for name, value in report["seconds"].items()}
    return report


def _jvm_seconds(spark: Any, files: TextFiles, partitions: int, counts: pa.Table) -> float:
    from wordcount.jvm import count_in_jvm, join_files

    with tempfile.TemporaryDirectory(prefix="penstock-wordcount-") as folder:
        paths = join_files(files.files, Path(folder))
        before = time.perf_counter()
        table = count_in_jvm(spark, paths, partitions)
        seconds = time.perf_counter() - before
    if totals(table) != totals(counts):
        raise PenstockError(f"Spark's JVM counts {totals(table)} words and different words, not {totals(counts)}")
    return seconds


def totals(counts: pa.Table) -> tuple[int, int]:
    """The number of words, and of different ones."""
    return pc.sum(counts["n"]).as_py() or 0, counts.num_rows


def _report(counted: Counted, files: TextFiles, top: int) -> dict[str, Any]:
    counts = counted.counts
    order = [("n", "descending"), ("word", "ascending")]
    best = counts.take(pc.select_k_unstable(counts, min(top, counts.num_rows), order)) if top else counts.slice(0, 0)
    producer = counted.result.metrics.get(0, {})
    busy = producer.get("seconds", 0.0)
    return {
        "files": len(files.files),
        "skipped": files.skipped,
        "capped": files.capped,
        "bytes": files.bytes,
        "words": pc.sum(counts["n"]).as_py() or 0,
        "distinct": counts.num_rows,
        "top": list(zip(best["word"].to_pylist(), best["n"].to_pylist(), strict=True)),
        "exchange": {
            "rows": int(producer.get("rows_out", 0)),
            "bytes": int(producer.get("bytes_out", 0)),
            "seconds": round(counted.result.seconds, 3),
            "back_pressured": round(producer.get("back_pressured_seconds", 0.0) / busy, 3) if busy else 0.0,
        },
    }


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if report["top"]:
        table = Table(title="Most frequent words", title_justify="left", box=None, pad_edge=False)
        table.add_column("word", overflow="fold")
        table.add_column("count", justify="right")
        for word, count in report["top"]:
            table.add_row(_printable(word), f"{count:,}")
        console.print(table)
    exchange, seconds = report["exchange"], report["seconds"]
    extra = f", {report['skipped']:,} that are not text left out" if report["skipped"] else ""
    size = f"{report['files']:,} files of {report['bytes'] / 1e6:,.1f} MB{extra}"
    moved = f"{exchange['rows']:,} rows, {exchange['bytes'] / 1e6:,.1f} MB to {report['partitions']} partitions"
    lines = [
        f"{report['words']:,} words, {report['distinct']:,} different, in {size}",
        f"exchange: {moved} in {exchange['seconds']:.2f} s, {exchange['back_pressured']:.0%} of it back-pressured",
        f"time: {seconds['session']:.1f} s to start Spark, {seconds['count']:.1f} s to count",
    ]
    if report["demo"]:
        cap = ", as far as the demo's limit" if report["capped"] else ""
        lines[0] += f" (text and source files of this Python, without installed packages{cap})"
    if "spark_jvm" in seconds:
        lines.append(f"Spark's JVM alone, the same words: {seconds['spark_jvm']:.1f} s")
    if report["verified"]:
        lines += report["differences"] or [f"OK: plain Python counts the same ({seconds['plain_python']:.1f} s)"]
    console.print("\n".join(["", *lines]), markup=False, soft_wrap=True)


def _printable(word: str) -> str:
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in word))
