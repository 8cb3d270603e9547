# SPDX-License-Identifier: Apache-2.0
"""The cases: what is run on either side and what must come out."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from penstock.api.parquet import ParquetSource, parquet_source
from penstock.spark.hints import PenstockHint
from penstock_bench.functions import COUNT_DDL, MEAN_DDL, count_rows, group_mean, reader
from penstock_bench.measure import Case, WrongAnswerError
from penstock_bench.page_rows import Row
from penstock_bench.rows import FILE_ROWS, NUMBERS_DDL, TEXTS_DDL, Dataset
from wordcount.command import totals
from wordcount.files import TextFiles
from wordcount.job import count_files
from wordcount.jvm import count_in_jvm, join_files

PRODUCERS = 2
CONSUMERS = 4


class SmallAndAll:
    """A data set and the first tenth of its files."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.first = data.paths[: max(1, len(data.paths) // 10)]

    def paths(self, small: bool) -> list[str]:
        """The files."""
        return list(self.first if small else self.data.paths)

    def rows(self, small: bool) -> int:
        """The number of rows in the files."""
        return min(self.data.rows, len(self.first) * FILE_ROWS) if small else self.data.rows

    def source(self, small: bool) -> ParquetSource:
        """The source that Penstock's `readParquet` reads with."""
        return parquet_source(self.paths(small), None, None)

    def check_count(self, answer: Any, small: bool) -> None:
        """All rows arrived."""
        total = sum(row.rows for row in answer)
        if total != self.rows(small):
            raise WrongAnswerError(f"{total} rows arrived of {self.rows(small)}")

    def check_means(self, answer: Any, small: bool) -> None:
        """Every group arrived once, with its mean."""
        means = {row.k: row.mean for row in answer}
        expected = self.data.means
        if len(means) != len(answer) or (not small and len(means) != sum(not math.isnan(m) for m in expected)):
            raise WrongAnswerError(f"{len(answer)} groups arrived, {len(means)} of them different")
        wrong = [k for k, mean in means.items() if not small and not math.isclose(mean, expected[k], rel_tol=1e-9)]
        if wrong:
            raise WrongAnswerError(f"the mean of group {wrong[0]} is {means[wrong[0]]}, not {expected[wrong[0]]}")


@dataclass(frozen=True, slots=True)
class ExchangeForm:
    """The exchange of a case: by which column, to how many consumers, in which mode."""

    key: str
    consumers: int = CONSUMERS
    mode: Any = "pipelined"


def exchange_case(spark: Any, row: Row, data: Dataset, form: ExchangeForm) -> Case:
    """Python stage, exchange by key, Python stage."""
    key = form.key
    both = SmallAndAll(data)
    ddl = NUMBERS_DDL if key == "id" else TEXTS_DDL

    def ours(small: bool) -> Any:
        rows = penstock.readParquet(spark, both.paths(small))
        keyed = rows.keyBy(key, numPartitions=form.consumers, mode=form.mode)
        return keyed.mapInArrow(count_rows, COUNT_DDL).collect()

    def theirs(small: bool, partitions: int) -> Any:
        rows = _python_rows(spark, both.source(small), ddl)
        return rows.repartition(partitions, key).mapInArrow(count_rows, COUNT_DDL).collect()

    return Case(row, ours, theirs, both.check_count, data.rows, data.bytes)


def group_case(spark: Any, row: Row, data: Dataset) -> Case:
    """Python stage, exchange by key, a Python function for each group."""
    both = SmallAndAll(data)

    def ours(small: bool) -> Any:
        rows = penstock.readParquet(spark, both.paths(small))
        return rows.groupBy("k", numPartitions=CONSUMERS).applyInArrow(group_mean, MEAN_DDL).collect()

    def theirs(small: bool, partitions: int) -> Any:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        rows = _python_rows(spark, both.source(small), NUMBERS_DDL)
        return rows.groupBy("k").applyInArrow(group_mean, MEAN_DDL).collect()

    return Case(row, ours, theirs, both.check_means, data.rows, data.bytes)


def dataframe_case(spark: Any, row: Row, data: Dataset) -> Case:
    """A DataFrame of the JVM, exchange by key, a Python function for each group."""
    both = SmallAndAll(data)
    warnings.simplefilter("ignore", PenstockHint)  # that readParquet is faster is what the other cases show

    def ours(small: bool) -> Any:
        frame = spark.read.parquet(*both.paths(small))
        return penstock.groupBy(frame, "k", numPartitions=CONSUMERS).applyInArrow(group_mean, MEAN_DDL).collect()

    def theirs(small: bool, partitions: int) -> Any:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        frame = spark.read.parquet(*both.paths(small))
        return frame.groupBy("k").applyInArrow(group_mean, MEAN_DDL).collect()

    return Case(row, ours, theirs, both.check_means, data.rows, data.bytes)


def words_case(spark: Any, row: Row, files: TextFiles, folder: Path) -> Case:
    """Text to word counts in the driver; Spark's side is all JVM and reads the same text joined to a few files."""
    few = TextFiles(files.files[: max(1, len(files.files) // 10)])
    texts = {True: few, False: files}
    joined = {}
    for small, chosen in texts.items():
        place = folder / f"words-{small}"
        place.mkdir()
        joined[small] = join_files(chosen.files, place)
    expected: dict[bool, tuple[int, int]] = {}

    def ours(small: bool) -> Any:
        return count_files(spark, texts[small], PRODUCERS, PRODUCERS).counts

    def theirs(small: bool, partitions: int) -> Any:
        return count_in_jvm(spark, joined[small], partitions)

    def check(counts: Any, small: bool) -> None:
        if expected.setdefault(small, totals(counts)) != totals(counts):
            raise WrongAnswerError(f"{totals(counts)} words and different words, and {expected[small]} before")

    return Case(row, ours, theirs, check, 0, files.bytes)


def _python_rows(spark: Any, source: ParquetSource, ddl: str) -> Any:
    return spark.range(0, PRODUCERS, 1, PRODUCERS).mapInArrow(reader(source, PRODUCERS), ddl)
