# SPDX-License-Identifier: Apache-2.0
"""A source of one's own: journals that grow, each a partition, whose place is the number of its lines.

    python examples/connectors/own_source.py

The query reads what is there and stops. Its second run, with the same checkpoints, reads what has come since.
"""

import itertools
import pathlib
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.spark.session import open_session
from penstock.stream.partitioned_source import PartitionedSource

LINES = 300
AT_ONCE = 100


class Journals:
    """The files of a folder, a hundred lines at a time."""

    schema = pa.schema([("journal", pa.string()), ("line", pa.string())])

    def __init__(self, folder):
        self.folder = folder

    def partitions(self):
        """Each file is one; a later run may find more."""
        return sorted(path.name for path in pathlib.Path(self.folder).iterdir())

    def read(self, partition, offset):
        """The lines from a number on, each batch with the number behind it; None where there is nothing now."""
        at = offset or 0
        with (pathlib.Path(self.folder) / partition).open() as file:
            list(itertools.islice(file, at))
            while True:
                part = [line.rstrip("\n") for line in itertools.islice(file, AT_ONCE)]
                at += len(part)
                columns = {"journal": [partition] * len(part), "line": part}
                yield pa.record_batch(columns, schema=self.schema) if part else None, at


def write_lines(folder, run):
    """Three hundred more for each of two journals."""
    folder.mkdir(exist_ok=True)
    for name in ("north", "south"):
        with (folder / name).open("a") as file:
            file.writelines(f"{name} {run} {number}\n" for number in range(LINES))


def read_once(spark, folder):
    """A run of the query."""
    lines = penstock.readStream(spark).format(PartitionedSource(Journals(f"{folder}/journals"))).load()
    writer = lines.writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder}/checkpoints").start(f"{folder}/out").awaitTermination(60)


def run(spark, folder):
    """Two runs; a sentence about the lines that they wrote."""
    for number in range(2):
        write_lines(pathlib.Path(folder) / "journals", number)
        read_once(spark, folder)
    lines = pq.read_table(f"{folder}/out")["line"].to_pylist()
    return f"{len(lines)} lines, {len(set(lines))} of them different"


def main():
    """Run it; gives the exit code."""
    with open_session("journals", 4) as spark, tempfile.TemporaryDirectory() as folder:
        said = run(spark, folder)
        print(said)
        return 0 if said == f"{4 * LINES} lines, {4 * LINES} of them different" else 1


if __name__ == "__main__":
    sys.exit(main())
