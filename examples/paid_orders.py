# SPDX-License-Identifier: Apache-2.0
"""Orders joined with their payments by interval: an order is paid if its payment comes within 100 seconds.

    python examples/paid_orders.py            # a streaming query on Spark
    python examples/paid_orders.py --local    # in this process, without Spark, as a test would: join, then filter

Both streams have times of their own, and come out of order. The watermark drops orders and payments that nothing can
meet any more, so what the query keeps does not grow with its age.
"""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock

ORDERS = 4_000
WAITS = 20_000_000
"""Microseconds: of eight orders in a row the first is paid at once, the next after 20 seconds, and so on."""
WITHIN = "100 seconds"
SCHEMA = "order long, ts timestamp, paid timestamp, amount long"
PAID = ORDERS * 6 // 8


def numbers_of(batch):
    """The numbers of a batch."""
    column = batch.column("value")
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + batch.num_rows]


def orders_of(batches):
    """Makes orders of numbers, ten in a second."""
    for batch in batches:
        numbers = numbers_of(batch)
        times = pa.array(numbers * 100_000, pa.timestamp("us", "UTC"))
        yield pa.record_batch([pa.array(numbers), times], names=["order", "ts"])


def payments_of(batches):
    """Makes the payment of each order."""
    for batch in batches:
        numbers = numbers_of(batch)
        times = pa.array(numbers * 100_000 + numbers % 8 * WAITS, pa.timestamp("us", "UTC"))
        yield pa.record_batch([pa.array(numbers), times, pa.array(numbers % 50)], names=["order", "paid", "amount"])


def in_time(batches):
    """Keeps the pairs whose payment came in time: rows with an end are joined by no interval."""
    for batch in batches:
        waits = pc.subtract(batch.column("paid"), batch.column("ts")).cast(pa.int64())
        yield batch.filter(pc.and_(pc.greater_equal(waits, 0), pc.less_equal(waits, 100_000_000)))


def pipeline(numbers, same_numbers, *, is_endless):
    """The orders that were paid in time, with their payments, of two streams of numbers."""
    orders = numbers.mapInArrow(orders_of, "order long, ts timestamp").withWatermark("ts", "3 minutes")
    payments = same_numbers.mapInArrow(payments_of, "order long, paid timestamp, amount long")
    payments = payments.withWatermark("paid", "3 minutes").keyBy("order", numPartitions=2)
    keyed = orders.keyBy("order", numPartitions=2)
    if is_endless:
        return keyed.join(payments, between=("ts", "paid", "0 seconds", WITHIN))
    return keyed.join(payments).mapInArrow(in_time, SCHEMA)


def in_this_process():
    """The pairs by the local runner."""
    from penstock.testing.local_runner import run_local
    from penstock.testing.sources import fromBatches

    table = pa.table({"value": np.arange(ORDERS)})
    return run_local(pipeline(fromBatches(table), fromBatches(table), is_endless=False)).to_pylist()


def on_spark():
    """The pairs by a streaming query that ends with its sources."""
    from penstock.spark.session import open_session

    with open_session("paid orders", 4) as spark:

        def numbers():
            source = penstock.readStream(spark).format("rate")
            return source.options(rowsPerSecond=2_000, numPartitions=1, numRows=ORDERS).load().select("value")

        query = pipeline(numbers(), numbers(), is_endless=True).writeStream.format("memory").queryName("paid").start()
        query.awaitTermination(120)
        return [row.asDict() for row in spark.table("paid").collect()]


def main(arguments):
    """Run it; gives the exit code."""
    pairs = in_this_process() if "--local" in arguments else on_spark()
    late = sum((pair["paid"] - pair["ts"]).total_seconds() > 100 for pair in pairs)
    for pair in sorted(pairs, key=lambda row: row["order"])[:4]:
        print(f"order {pair['order']} of {pair['ts']:%H:%M:%S} paid at {pair['paid']:%H:%M:%S}")
    print(f"{len(pairs)} of {ORDERS} orders are paid within {WITHIN}, {late} of them later")
    return 0 if len(pairs) == len({pair["order"] for pair in pairs}) == PAID and not late else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
