# SPDX-License-Identifier: Apache-2.0
"""A Python data source as one writes it for PySpark: a tide gauge that is read, and an archive that is written.

    python examples/connectors/data_source.py

Both classes are PySpark's. `spark.readStream` in the place of `penstock.readStream(spark)` runs the same program.
"""

import json
import pathlib
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)

import penstock
from penstock.spark.session import open_session

READINGS = 500


class TideReader(SimpleDataSourceStreamReader):
    """Fifty readings at a time; they follow from their number, so they can be read again."""

    def initialOffset(self):
        """Before the first one."""
        return {"reading": 0}

    def read(self, start):
        """The next ones, and the offset after them."""
        end = {"reading": min(start["reading"] + 50, READINGS)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):
        """The same readings again."""
        return iter([(number, (number * 37) % 500) for number in range(start["reading"], end["reading"])])


class Tides(DataSource):
    """The gauge."""

    def schema(self):
        """Its rows."""
        return "reading long, centimetres long"

    def simpleStreamReader(self, schema):
        """Its reader."""
        return TideReader()


@dataclass
class Page(WriterCommitMessage):
    """The page that a task wrote."""

    name: str


class ArchiveWriter(DataSourceStreamWriter):
    """Pages that nobody looks at until the index names them."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def write(self, iterator):
        """The rows of one task between two checkpoints."""
        self.path.mkdir(exist_ok=True)
        page = Page(uuid.uuid4().hex)
        (self.path / page.name).write_text("".join(json.dumps(row.asDict()) + "\n" for row in iterator))
        return page

    def commit(self, messages, batchId):
        """Name the pages, in a file that a second call with this id writes again as it is."""
        self.path.mkdir(exist_ok=True)
        pages = [message.name for message in messages if message is not None]
        (self.path / f"index-{batchId}").write_text("\n".join(pages))

    def abort(self, messages, batchId):
        """Nobody names them."""


class Archive(DataSource):
    """The archive."""

    def streamWriter(self, schema, overwrite):
        """Its writer."""
        return ArchiveWriter(self.options["path"])


def archived(folder):
    """The rows that indexes name."""
    pages = [page for index in pathlib.Path(folder).glob("index-*") for page in index.read_text().split()]
    return [json.loads(line) for page in pages for line in pathlib.Path(folder, page).read_text().splitlines()]


def run(spark, folder):
    """Read all readings into the archive; a sentence about it."""
    for source in (Tides, Archive):
        spark.dataSource.register(source)
    tides = penstock.readStream(spark).format("Tides").load().filter("centimetres >= 250")
    writer = tides.writeStream.format("Archive").option("path", f"{folder}/archive")
    query = writer.options(checkpointLocation=f"{folder}/checkpoints", checkpointInterval="200ms").start()
    deadline = time.monotonic() + 60
    while len(archived(f"{folder}/archive")) < READINGS // 2 and query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    query.stop()
    high = {row["reading"] for row in archived(f"{folder}/archive")}
    return f"{len(high)} of {READINGS} readings were high"


def main():
    """Run it; gives the exit code."""
    with open_session("tides", 4) as spark, tempfile.TemporaryDirectory() as folder:
        said = run(spark, folder)
        print(said)
        return 0 if said.startswith(str(READINGS // 2)) else 1


if __name__ == "__main__":
    sys.exit(main())
