# SPDX-License-Identifier: Apache-2.0
"""Runs the word count on a Spark session, and recounts in plain Python."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.job.core.result import JobResult
from wordcount.files import TextFile, TextFiles
from wordcount.stages import SINK_SCHEMA, CountsSink, TextSource, read_counts
from wordcount.words import SCHEMA, count_words_plainly

_SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, slots=True)
class Counted:
    """All words with their counts, and how the job went."""

    counts: pa.Table
    result: JobResult


def count_files(
    spark: Any,
    files: TextFiles,
    partitions: int,
    producers: int,
) -> Counted:
    """Count through a keyed exchange to `partitions` consumers."""
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(spark)
    settings = runtime.settings()
    with tempfile.TemporaryDirectory(prefix="penstock-wordcount-") as folder:
        source = TextSource(files.files)
        stream = Stream((SourceStep(source.name, SCHEMA, source, limit=producers),), spark)
        counts = stream.groupBy("word", numPartitions=partitions).agg(n=("n", "sum"))
        plan = counts.mapInArrow(CountsSink(folder), SINK_SCHEMA).plan(settings, producers + partitions, keep=False)
        names = zip(plan.graph.vertices, ("read and count", "sum"), strict=True)
        vertices = tuple(replace(vertex, name=name) for vertex, name in names)
        graph = replace(plan.graph, name="wordcount", vertices=vertices)
        result = runtime.run(lambda: (graph, {}), settings)
        return Counted(read_counts(folder), result)


def recount(files: tuple[TextFile, ...]) -> Counter[str]:
    """All words by plain Python."""
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(count_words_plainly(Path(file.path).read_bytes()))
    return counts


def differences(counts: pa.Table, expected: Counter[str]) -> list[str]:
    """The differences of the counts from those expected, at most a few; empty if they agree."""
    found = dict(zip(counts.column(0).to_pylist(), counts.column(1).to_pylist(), strict=True))
    wrong = [] if len(found) == counts.num_rows else ["a word has more than one count"]
    words = sorted(word for word in found.keys() | expected.keys() if found.get(word, 0) != expected.get(word, 0))
    wrong += [f"{word}: {found.get(word, 0)}, not {expected.get(word, 0)}" for word in words[:_SHOWN_DIFFERENCES]]
    if len(words) > _SHOWN_DIFFERENCES:
        wrong.append(f"and {len(words) - _SHOWN_DIFFERENCES} more")
    return wrong
