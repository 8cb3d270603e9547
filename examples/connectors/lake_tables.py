# SPDX-License-Identifier: Apache-2.0
"""Readings of sensors into a Delta table and into an Iceberg table: one version of each for each checkpoint.

A second Delta table has one row for each sensor, which the query replaces: it counts the readings.

    python examples/connectors/lake_tables.py

It needs the libraries: pip install 'penstock[delta,iceberg]'.
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
    """Write all three; a sentence about them."""
    (versions, first), (snapshots, second) = into_delta(spark, folder), into_iceberg(spark, folder)
    counts = newest_counts(spark, folder)
    several = "several" if min(versions, snapshots) > 1 else "few"
    return f"{first} rows in Delta, {second} in Iceberg, in {several} versions; {len(counts)} counts of {sum(counts)}"


def main():
    """Run it; gives the exit code."""
    with open_session("lake", 4) as spark, tempfile.TemporaryDirectory() as folder:
        said = run(spark, folder)
        print(said)
        return 0 if said.startswith(f"{READINGS} rows in Delta") and said.endswith(f"10 counts of {READINGS}") else 1


if __name__ == "__main__":
    sys.exit(main())
