# SPDX-License-Identifier: Apache-2.0
"""Readings of sensors into a Delta table and into an Iceberg table: one version of each for each checkpoint.

A second Delta table has one row for each sensor, which the query replaces: it counts the readings. The first one is
then read as a stream: the rows of each version as it comes.

    python examples/connectors/lake_tables.py

It needs the extras `delta` and `iceberg`.
"""

import sys
import tempfile

import deltalake
import pyarrow as pa
from pyiceberg.catalog import load_catalog

import penstock
from penstock.spark.session import open_session

READINGS = 3000


def readings(spark):
    """Three thousand of them, within a second."""
    rate = penstock.readStream(spark).format("rate").options(rowsPerSecond=3000, numRows=READINGS)
    return rate.load().selectExpr("timestamp", "value % 10 AS sensor", "value AS reading")


def into_delta(spark, folder):
    """Write them until they end; the versions and the rows that the library sees."""
    writer = readings(spark).writeStream.format("delta").option("checkpointInterval", "200ms")
    query = writer.option("checkpointLocation", f"{folder}/delta-checkpoints").start(f"{folder}/delta")
    query.awaitTermination(60)
    table = deltalake.DeltaTable(f"{folder}/delta")
    return table.version(), table.to_pyarrow_table().num_rows


def out_of_delta(spark, folder):
    """Read that table as a stream, up to its newest version; the rows that came."""
    rows = penstock.readStream(spark).format("delta").load(f"{folder}/delta")
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder}/copy-checkpoints").start(f"{folder}/copy").awaitTermination()
    return spark.read.parquet(f"{folder}/copy").select("reading").distinct().count()


def newest_counts(spark, folder):
    """Count the readings of each sensor; the counts in the table, one for each."""
    counts = readings(spark).groupBy("sensor").agg(n=("reading", "count"))
    writer = counts.writeStream.format("delta").option("keyColumns", "sensor").option("checkpointInterval", "500ms")
    query = writer.option("checkpointLocation", f"{folder}/count-checkpoints").start(f"{folder}/counts")
    query.awaitTermination(60)
    return deltalake.DeltaTable(f"{folder}/counts").to_pyarrow_table()["n"].to_pylist()


def into_iceberg(spark, folder):
    """The same, into a table that a catalog has."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
    catalog = load_catalog("lake", **properties)
    catalog.create_namespace("plant")
    columns = [("timestamp", pa.timestamp("us", "UTC")), ("sensor", pa.int64()), ("reading", pa.int64())]
    catalog.create_table("plant.readings", pa.schema(columns))
    writer = readings(spark).writeStream.format("iceberg").option("catalog", "lake")
    for name, value in properties.items():
        writer = writer.option(f"catalog.{name}", value)
    writer = writer.options(checkpointLocation=f"{folder}/iceberg-checkpoints", checkpointInterval="500ms")
    writer.start("plant.readings").awaitTermination(60)
    table = catalog.load_table("plant.readings")
    found = len(list(table.snapshots())), table.scan().to_arrow().num_rows
    catalog.close()
    return found


def run(spark, folder):
    """Write all three, and read one; a sentence about them."""
    (versions, first), (snapshots, second) = into_delta(spark, folder), into_iceberg(spark, folder)
    counts, read = newest_counts(spark, folder), out_of_delta(spark, folder)
    several = "several" if min(versions, snapshots) > 1 else "few"
    written = f"{first} rows in Delta, {second} in Iceberg, in {several} versions"
    return f"{written}; {len(counts)} counts of {sum(counts)}; {read} read again"


def main():
    """Run it; gives the exit code."""
    with open_session("lake", 4) as spark, tempfile.TemporaryDirectory() as folder:
        said = run(spark, folder)
        print(said)
        is_right = said.startswith(f"{READINGS} rows in Delta")
        return 0 if is_right and said.endswith(f"10 counts of {READINGS}; {READINGS} read again") else 1


if __name__ == "__main__":
    sys.exit(main())
