# SPDX-License-Identifier: Apache-2.0
"""Readings through folders of files: JSON lines, CSV, a table of Parquet in folders by sensor, and lines of text.

    python examples/connectors/folders.py

Each query reads the folder that the one before it has written, takes what is there, and ends.
"""

import sys
import tempfile

import penstock
from penstock.spark.session import open_session

READINGS, SENSORS = 2000, 4
SCHEMA = "sensor long, reading long"
TABLE = "readings_by_sensor"


def passed_on(stream, folder, name):
    """A writer that takes what is there, and remembers in a folder of its own what it has read."""
    writer = stream.writeStream.trigger(availableNow=True)
    return writer.option("checkpointLocation", f"{folder}/checkpoints-{name}")


def run(spark, folder):
    """Write and read all of them; a sentence about the rows."""
    made = penstock.readStream(spark).format("rate").options(rowsPerSecond=4000, numRows=READINGS).load()
    readings = made.selectExpr(f"value % {SENSORS} AS sensor", "value AS reading")
    passed_on(readings, folder, "json").format("json").start(f"{folder}/json").awaitTermination()

    lines = penstock.readStream(spark).schema(SCHEMA).json(f"{folder}/json")
    passed_on(lines, folder, "csv").format("csv").option("header", True).start(f"{folder}/csv").awaitTermination()

    cells = penstock.readStream(spark).schema(SCHEMA).option("header", True).csv(f"{folder}/csv")
    writer = passed_on(cells, folder, "table").format("parquet").partitionBy("sensor")
    writer.option("path", f"{folder}/table").toTable(TABLE).awaitTermination()
    rows = spark.table(TABLE).groupBy("sensor").count().count(), spark.table(TABLE).count()
    spark.sql(f"DROP TABLE {TABLE}")

    text = penstock.readStream(spark).text(f"{folder}/json").filter("value LIKE '%\"sensor\":3%'")
    passed_on(text, folder, "parquet").format("parquet").start(f"{folder}/parquet").awaitTermination()
    found = spark.read.parquet(f"{folder}/parquet").count()
    return f"{rows[1]} readings of {rows[0]} sensors in the table, {found} lines of the last sensor"


def main():
    """Run it; gives the exit code."""
    with open_session("folders", 4) as spark, tempfile.TemporaryDirectory() as folder:
        said = run(spark, folder)
        print(said)
        return 0 if said.startswith(f"{READINGS} readings of {SENSORS} sensors") and "500 lines" in said else 1


if __name__ == "__main__":
    sys.exit(main())
