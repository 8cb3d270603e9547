# SPDX-License-Identifier: Apache-2.0
"""Orders that arrive by day, read whenever it suits: each run takes what is there, stops, and the next one goes on.

    python examples/streaming_day.py

Three queries read the orders: one writes them into folders by country, one keeps the total of each user up to date,
one hands those of France to a function. It prints the newest totals and the calls of the function.
"""

import json
import pathlib
import sys
import tempfile

import penstock
from penstock.spark.session import open_session

DAYS, ORDERS, USERS = 2, 60, 5
SCHEMA = "user long, country string, amount long"


def arrive(folder, day):
    """The orders of a day, in a file that appears whole."""
    lines = (
        {"user": number % USERS, "country": ("ch", "fr")[number % 2], "amount": number} for number in range(ORDERS)
    )
    hidden = folder / f".{day}.json"
    hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
    hidden.rename(folder / f"{day}.json")


def by_country(orders, folder):
    """The orders as Parquet, in folders `country=ch` and the like."""
    writer = orders.writeStream.format("parquet").partitionBy("country").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(folder / "ck-orders")).start(str(folder / "orders"))


def totals(orders, folder):
    """The total of each user, of which the newest row counts."""
    sums = orders.groupBy("user", numPartitions=1).agg(total=("amount", "sum"))
    writer = sums.writeStream.format("parquet").outputMode("update").option("keyColumns", "user")
    writer = writer.trigger(availableNow=True).option("checkpointLocation", str(folder / "ck-totals"))
    return writer.start(str(folder / "totals"))


def handed_over(orders, folder, calls):
    """The orders of France, in batches for a function."""

    def note(frame, number):
        calls.append((number, frame.count()))

    french = orders.filter("country = 'fr'").writeStream.foreachBatch(note).trigger(availableNow=True)
    return french.option("checkpointLocation", str(folder / "ck-batches")).start()


def main(_):
    """Run it; gives the exit code."""
    calls = []
    with open_session("streaming day", 6) as spark, tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / "in").mkdir()
        for day in range(DAYS):
            arrive(folder / "in", day)
            orders = penstock.readStream(spark).schema(SCHEMA).option("numPartitions", 1).json(str(folder / "in"))
            queries = [by_country(orders, folder), totals(orders, folder), handed_over(orders, folder, calls)]
            for query in queries:
                query.awaitTermination()
        newest = penstock.latestRows(spark, str(folder / "totals"), "user").collect()
        found = sorted((row["user"], row["total"]) for row in newest)
        print("totals:", found)
        print("batches:", calls)
        count = spark.read.parquet(str(folder / "orders")).filter("country = 'ch'").count()
        print(f"{count} orders of ch")
        expected = [(user, DAYS * sum(range(user, ORDERS, USERS))) for user in range(USERS)]
        is_right = found == expected and calls == [(day, ORDERS // 2) for day in range(DAYS)]
        return 0 if is_right and count == DAYS * ORDERS // 2 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
