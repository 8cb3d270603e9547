# SPDX-License-Identifier: Apache-2.0
"""The examples of the API reference: one program, which the site cuts at the lines that name what comes.

    python examples/reference.py

A line such as `# Stream.filter` begins the example of that name; several names share one. What comes before the first
of them is for all. Tests run the program, and type checkers read it as a user's.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StatefulProcessor, StreamingQueryListener

import penstock

folder = Path(tempfile.mkdtemp())
spark = SparkSession.builder.master("local[4]").getOrCreate()
df = spark.createDataFrame([("ann", 3), ("bob", 5), ("ann", 9)], "user string, price long")
(folder / "in").mkdir()
(folder / "in" / "orders.csv").write_text("user,price\nann,3\nbob,5\nann,9\n")
(folder / "in.json").write_text('{"user": "ann", "tags": ["new", "vip"]}\n{"user": "bob", "tags": []}\n')

# accelerate, accelerated, acceleration, explain
with penstock.accelerated(spark):  # penstock.accelerate(spark) is for all that comes
    cheap = df.groupBy("user").applyInPandas(lambda rows: rows.nsmallest(1, "price"), "user string, price long")
    penstock.explain(cheap)
    cheap.show()
    print(penstock.acceleration(spark))

# fromDataFrame
orders = penstock.fromDataFrame(df)

# Stream.writeParquet, FilesWritten
written = orders.writeParquet(folder / "orders", overwrite=True, partitionBy=["user"])
print(written.rows, "rows in", written.files, "files")

# Stream.writeCsv
orders.writeCsv(folder / "orders-csv", header=True, compression="gzip")

# Stream.writeJson
orders.writeJson(folder / "orders-json", partitionBy=["user"])

# readParquet
dear = penstock.readParquet(spark, folder / "orders", columns=["user", "price"], filter="price > 4")

# readCsv
lines = penstock.readCsv(spark, folder / "in", "user string, price long", header=True, mode="FAILFAST")

# readJson
tagged = penstock.readJson(spark, folder / "in.json", "user string, tags array<string>")

# readText
text = penstock.readText(spark, folder / "in" / "orders.csv")

# Stream.writeDelta, readDelta
orders.writeDelta(folder / "delta", mode="append", partitionBy=["user"])
first_version = penstock.readDelta(spark, folder / "delta", version=0)


# readKafka
def messages(servers: str) -> penstock.Stream:
    """The messages of a topic that are there now."""
    return penstock.readKafka(spark, {"kafka.bootstrap.servers": servers, "subscribe": "orders"})


# repartition
by_user = penstock.repartition(df, 4, "user", mode="blocking")

# groupBy, GroupedDataFrame.agg
totals = penstock.groupBy(df, "user").agg(total=("price", "sum"))


# GroupedDataFrame.applyInArrow, KeyedStream.applyInArrow
def dearest(orders: pa.Table) -> pa.Table:
    """The dearest order of a user."""
    return orders.sort_by([("price", "descending")]).slice(0, 1)


best = penstock.groupBy(df, "user").applyInArrow(dearest, "user string, price long")
best_as_stream = orders.keyBy("user").applyInArrow(dearest, "user string, price long")


# GroupedDataFrame.applyInPandas, KeyedStream.applyInPandas
def centred(orders: pd.DataFrame) -> pd.DataFrame:
    """Prices less the user's mean."""
    return orders.assign(price=orders.price - orders.price.mean())


around = penstock.groupBy(df, "user").applyInPandas(centred, "user string, price double")
around_as_stream = orders.keyBy("user").applyInPandas(centred, "user string, price double")


# GroupedDataFrame.cogroup, KeyedStream.cogroup, CoGroupedStream.applyInArrow
def counted(left: pa.Table, right: pa.Table) -> pa.Table:
    """How many rows each side has of a key."""
    return pa.table({"left": [left.num_rows], "right": [right.num_rows]})


sides = orders.keyBy("user").cogroup(dear.keyBy("user")).applyInArrow(counted, "left long, right long")


# CoGroupedDataFrame.applyInArrow
both = penstock.groupBy(df, "user").cogroup(penstock.groupBy(by_user, "user"))
sizes = both.applyInArrow(counted, "left long, right long")


# CoGroupedStream.applyInPandas, CoGroupedDataFrame.applyInPandas
def paired(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """All pairs of a key's rows."""
    return left.merge(right, on="user")


pairs = (
    orders.keyBy("user")
    .cogroup(
        dear.withColumnRenamed("price", "dear").keyBy("user"),
    )
    .applyInPandas(paired, "user string, price long, dear long")
)


# Stream.schema, Stream.columns
print(orders.columns, orders.schema.field("price").type)


# Stream.mapInArrow
def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each price twice."""
    for batch in batches:
        yield batch.set_column(1, "price", pc.multiply(batch["price"], 2))


twice = orders.mapInArrow(doubled, "user string, price long")


# Stream.mapInPandas
def scored(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """A score for each order."""
    for frame in frames:
        yield frame.assign(score=frame.price / 10)


scores = orders.mapInPandas(scored, "user string, price long, score double")

# Stream.filter, Stream.where
cheap = orders.filter("price < 5")
cheap = orders.where(F.col("price") < 5)
cheap = orders.filter(pc.field("price") < 5)

# Stream.select, Stream.selectExpr
taxed = orders.select("user", "price * 1.19 AS gross", F.upper("user").alias("name"))

# Stream.withColumn
taxed = orders.withColumn("gross", "price * 1.19")

# Stream.withColumns
more = orders.withColumns({"gross": "price * 1.19", "is_dear": F.col("price") > 4})

# Stream.withColumnRenamed
renamed = orders.withColumnRenamed("price", "net")

# Stream.withColumnsRenamed
renamed = orders.withColumnsRenamed({"price": "net", "user": "customer"})

# Stream.drop
users = orders.drop("price")

# Stream.explode
tags = tagged.explode("tags", outer=True)

# Stream.limit
few = orders.limit(2)

# Stream.distinct
distinct = users.distinct()

# Stream.dropDuplicates, Stream.drop_duplicates
one_each = orders.dropDuplicates(["user"])

# Stream.union, Stream.unionAll
all_orders = orders.union(dear.select("user", "price"), cheap)

# Stream.unionByName
all_orders = orders.unionByName(users, allowMissingColumns=True)

# Stream.keyBy, Stream.groupBy
keyed = orders.keyBy("user", numPartitions=8, mode="hybrid", service="local")
by_size = orders.groupBy(F.when(F.col("price") > 4, "dear").otherwise("cheap").alias("size"))

# Stream.rebalance
even = orders.rebalance(8)

# Stream.rescale
even = orders.rescale(8, mode="pipelined")

# Stream.random
shuffled = orders.random(4)

# Stream.broadcast
everywhere = orders.broadcast(4)

# Stream.toOne
total = orders.toOne().agg(total=("price", "sum"))


# Stream.partitionCustom
def by_price(batch: pa.RecordBatch) -> pa.Array:
    """The partition of each row."""
    return pc.cast(pc.greater(batch["price"], 4), pa.int32())


parts = orders.partitionCustom(by_price, numPartitions=2)

# Stream.sortBy
ordered = orders.sortBy("user", "price", ascending=[True, False], nulls="last")


# Stream.withResources
def with_gpu(rows: penstock.Stream) -> penstock.Stream:
    """The stage with a GPU for each task; it needs a cluster."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    return rows.withResources(ResourceProfileBuilder().require(TaskResourceRequests().resource("gpu", 1)).build)


# KeyedStream.agg
sums = orders.keyBy("user").agg(n=("*", "count"), total=("price", "sum"))
sums = orders.keyBy("user").agg(F.sum("price").alias("total"), "max(price) AS most")

# KeyedStream.count
counts = orders.keyBy("user").count()

# KeyedStream.sum, KeyedStream.avg, KeyedStream.mean, KeyedStream.min, KeyedStream.max
highest = orders.keyBy("user").max("price")

# KeyedStream.join
joined = orders.keyBy("user").join(penstock.fromDataFrame(totals).keyBy("user"), how="left")

# KeyedStream.top
top_two = orders.keyBy("user").top(2, "price")

# window, session_window
clicks = penstock.readCsv(spark, folder / "in", header=True).withColumn("at", "timestamp'2026-01-31 10:00:00'")
per_minute = clicks.groupBy(penstock.window("at", "1 minute"), "user").count()
sessions = clicks.groupBy(penstock.session_window("at", "5 minutes"), "user").count()

# WindowedStream, WindowedStream.agg
spent = clicks.groupBy(F.window("at", "1 hour", "15 minutes")).agg(n=("*", "count"))

# WindowedStream.count
visits = clicks.groupBy(F.session_window("at", "30 minutes"), "user").count()

# WindowedStream.sum, WindowedStream.avg, WindowedStream.mean, WindowedStream.min, WindowedStream.max
last_click = clicks.groupBy(F.window("at", "1 hour")).max("at")

# Stream.count
rows: int = orders.count()

# Stream.collect
for row in ordered.collect():
    print(row.user, row["price"])

# Stream.take, Stream.head
cheapest: list[Row] = orders.sortBy("price").take(2)

# Stream.first
row_or_none: Row | None = orders.first()

# Stream.isEmpty
print("no orders" if orders.isEmpty() else "some orders")

# Stream.show
counts.sortBy("count", ascending=False).show(10, truncate=False)

# Stream.toArrow
table: pa.Table = sums.toArrow()

# Stream.toPandas
frame = sums.toPandas()

# Stream.toDF
sums.toDF().write.parquet(str(folder / "sums"))

# Stream.run, JobResult, JobResult.statistics
result = orders.rebalance().run()
print(result.seconds, "s", result.statistics().rows, "rows written", result.bottleneck)

# Stream.explain
orders.keyBy("user").count().explain()

# Stream.persist, Stream.unpersist, KeyedStream.persist, KeyedStream.unpersist, datasets, DatasetInfo
kept = orders.persist()
kept.count()
print(penstock.datasets(spark)[0].state)
kept.unpersist()


# readPersisted
def yesterdays(spark: SparkSession) -> penstock.Stream:
    """The rows of `orders.persist(name="orders", service="external")`, in a later application of this user."""
    return penstock.readPersisted(spark, "orders", service="external")


# Stream.writeIceberg, readIceberg
def through_iceberg(catalog: Any) -> penstock.Stream:
    """Append to a table of a catalog of pyiceberg's, `load_catalog("default")`, and read it."""
    table = catalog.load_table("shop.orders")
    orders.writeIceberg(table)
    return penstock.readIceberg(spark, table, filter="price > 4")


# preloading
fast_start = SparkSession.builder.config(map=penstock.preloading())

# webPage, WebPage, WebPage.close
page = penstock.webPage(spark)
print("open", page.url)
page.close()

# performanceReport
with penstock.performanceReport(spark, folder / "report.html"):
    orders.keyBy("user").count().run()

# readStream, StreamReader, StreamReader.format, StreamReader.schema, StreamReader.option, StreamReader.load
arriving = (
    penstock.readStream(spark)
    .format("csv")
    .schema("user string, price long")
    .option("header", True)
    .load(str(folder / "in"))
)

# StreamReader.options
rate = penstock.readStream(spark).format("rate").options(rowsPerSecond=10, numPartitions=2).load()

# StreamReader.csv, StreamReader.json, StreamReader.parquet, StreamReader.text
incoming = penstock.readStream(spark).text(str(folder / "in"))

# Stream.isStreaming
print(arriving.isStreaming, orders.isStreaming)  # True False

# Stream.uid
counting = arriving.keyBy("user").count().uid("count-by-user")

# Stream.withWatermark
late_allowed = rate.withWatermark("timestamp", "10 seconds")

# Stream.onTime, Stream.lateRows
on_time, too_late = late_allowed.onTime("timestamp"), late_allowed.lateRows("timestamp")

# Stream.dropDuplicatesWithinWatermark
once = late_allowed.dropDuplicatesWithinWatermark(["value"])


# KeyedStream.transformWithState
class Spent(StatefulProcessor):
    """The sum of each user's prices so far."""

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self.sum = handle.getValueState("sum", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Rows of one user."""
        before = self.sum.get() or (0,)
        total = before[0] + sum(row.price for row in rows)
        self.sum.update((total,))
        yield Row(user=key[0], total=total)

    def close(self) -> None:
        """Nothing is held."""


running = arriving.keyBy("user").transformWithState(Spent(), "user string, total long")


# KeyedStream.transformWithStateInPandas
class SpentInFrames(Spent):
    """As above, with the rows of a user as frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Rows of one user."""
        yield pd.DataFrame({"user": [key[0]], "total": [sum(frame.price.sum() for frame in rows)]})


per_call = arriving.keyBy("user").transformWithStateInPandas(SpentInFrames(), "user string, total long")


# BatchProcessor, BatchProcessor.init, BatchProcessor.handleBatch, KeyedStream.transformWithStateInArrow
class Totals(penstock.BatchProcessor):
    """The sum of each user's prices so far, for all users of a batch at once."""

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self.sums = handle.getValueState("sum", "total long")

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
        """All rows at hand, of all their keys."""
        before = pc.fill_null(self.sums.get(keys)["total"], 0)
        total = pc.add(before, keys.sum(rows["price"]))
        self.sums.put(keys, {"total": total})
        return pa.record_batch({"user": keys.table["user"], "total": total})


by_batches = arriving.keyBy("user").transformWithStateInArrow(Totals(), "user string, total long")

# Stream.writeStream, StreamWriter, StreamWriter.format, StreamWriter.queryName, StreamWriter.outputMode
writer = counting.writeStream.format("memory").queryName("counts").outputMode("update")

# StreamWriter.trigger, StreamWriter.start, StreamingQuery, StreamingQuery.awaitTermination
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
spark.table("counts").show()

# StreamWriter.option, StreamWriter.options, StreamWriter.partitionBy
by_day = (
    arriving.writeStream.format("parquet")
    .option("checkpointLocation", str(folder / "checkpoints"))
    .options(retainedCheckpoints=3)
    .partitionBy("user")
    .trigger(processingTime="1 second")
)


# StreamWriter.foreachBatch
def stored(batch: Any, number: int) -> None:
    """Called in the driver with the rows since the last checkpoint."""
    print("batch", number, "has", batch.count(), "rows")


batches = arriving.writeStream.foreachBatch(stored)


# StreamWriter.toTable
def into_table() -> penstock.StreamingQuery:
    """Into a table of the session's catalog."""
    return arriving.writeStream.toTable("arrived", checkpointLocation=str(folder / "table-checkpoints"))


# StreamingQuery.id, StreamingQuery.runId, StreamingQuery.name, StreamingQuery.isActive, StreamingQuery.slots
running_query = by_day.start(str(folder / "by-user"))
if running_query.isActive:
    print(running_query.name, running_query.id, running_query.runId, "holds", running_query.slots, "slots")

# StreamingQuery.checkpoint
number = running_query.checkpoint(savepoint=str(folder / "savepoint"))

# StreamingQuery.status, StreamingQuery.lastProgress, StreamingQuery.recentProgress
print(running_query.status["message"])
if running_query.lastProgress is not None:
    print(running_query.lastProgress["inputRowsPerSecond"])

# StreamingQuery.recentCheckpoints, StreamingQuery.mostInFlightBytes
for each in running_query.recentCheckpoints:
    print(each)

# StreamingQuery.logs
for name, last_lines in running_query.logs(5).items():
    print(name, last_lines)

# StreamingQuery.explain
running_query.explain()


# StreamingQuery.rescale
def with_more_tasks(query: penstock.StreamingQuery) -> None:
    """Go on with four tasks for each stage."""
    query.rescale(4, timeout=60)


# streams, StreamingQueries, StreamingQueries.active, StreamingQueries.get
queries = penstock.streams(spark)
print(queries.get(running_query.id) in queries.active)  # True


# StreamingQueries.addListener, StreamingQueries.removeListener
class Ends(StreamingQueryListener):
    """Prints the end of each query."""

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to say."""

    def onQueryProgress(self, event: Any) -> None:
        """Nothing to say."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to say."""

    def onQueryTerminated(self, event: Any) -> None:
        """It has ended."""
        print("ended:", event.id)


listener = Ends()
queries.addListener(listener)
queries.removeListener(listener)

# StreamingQuery.stop, StreamingQuery.exception
running_query.stop()
print(running_query.exception())  # None, as it ended well

# StreamingQueries.awaitAnyTermination, StreamingQueries.resetTerminated
queries.awaitAnyTermination(timeout=10)
queries.resetTerminated()

# latestRows
by_key = counting.writeStream.format("parquet").option("keyColumns", "user").trigger(availableNow=True)
by_key.option("checkpointLocation", str(folder / "newest-checkpoints")).start(
    str(folder / "newest")
).awaitTermination()
newest = penstock.latestRows(spark, str(folder / "newest"), "user")
