# SPDX-License-Identifier: Apache-2.0
"""Counts the words of text files as they arrive in a folder, and shows the counts while the query runs.

    python examples/streaming_words.py             # makes a folder, writes files into it, and ends
    python examples/streaming_words.py <folder>    # reads yours until you interrupt it

A file appears whole: it is written under a name that readers skip, and renamed.
"""

import pathlib
import sys
import tempfile
import time

import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock.spark.session import open_session

LINES = ("the quick brown fox", "jumps over the lazy dog", "the five boxing wizards jump quickly")
FILES = 5


def split_words(batches):
    """One row per word."""
    for batch in batches:
        words = pc.list_flatten(pc.utf8_split_whitespace(batch.column("value")))
        yield pa.record_batch([words], names=["word"])


def start(spark, folder):
    """The query: words of files, counted by word, into a table of the name `words`."""
    lines = penstock.readStream(spark).format("text").option("numPartitions", 1).load(folder)
    counts = lines.mapInArrow(split_words, "word string").keyBy("word", numPartitions=1).count()
    writer = counts.writeStream.format("memory").queryName("words")
    return writer.option("checkpointInterval", "500ms").start()


def add_file(folder, number):
    """One more file with the three lines."""
    hidden = pathlib.Path(folder, f".{number}.txt")
    hidden.write_text("".join(line + "\n" for line in LINES))
    hidden.rename(hidden.with_name(f"{number}.txt"))


def counted(spark):
    """The newest count of each word; counts only grow."""
    rows = spark.table("words").groupBy("word").max("count").collect()
    return {row[0]: row[1] for row in rows}


def main(arguments):
    """Run it; gives the exit code."""
    with open_session("streaming words", 4) as spark, tempfile.TemporaryDirectory() as made:
        folder = arguments[0] if arguments else made
        query = start(spark, folder)
        if arguments:
            query.awaitTermination()
            return 0
        for number in range(FILES):
            add_file(folder, number)
            time.sleep(0.5)
        deadline = time.monotonic() + 60
        while counted(spark).get("the") != 3 * FILES and query.isActive and time.monotonic() < deadline:
            time.sleep(0.5)
        query.stop()
        for word, count in sorted(counted(spark).items(), key=lambda item: (-item[1], item[0])):
            print(f"{word:10}{count:5}")
        return 0 if counted(spark)["the"] == 3 * FILES else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
