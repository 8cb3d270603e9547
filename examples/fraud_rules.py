# SPDX-License-Identifier: Apache-2.0
"""Fraud rules beside payments: rules come on a stream of their own, reach all tasks, and count from then on.

    python examples/fraud_rules.py            # a streaming query on Spark: rules are files that arrive in a folder
    python examples/fraud_rules.py --local    # the same pipeline in this process, without Spark, as a test would

A rule is a country and a limit; a card is reported with each payment that brings what it has spent there above the
limit. The rules are a broadcast state, what a card has spent is a map of its own for each card.
"""

import json
import pathlib
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

import penstock

PAYMENTS = 4_000
CARDS = 40
COUNTRIES = ("de", "fr", "it")
RULES = [{"country": "de", "limit": 2_000}, {"country": "fr", "limit": 1_000}]
RULE = "country string, limit long"
SCHEMA = "card long, country string, spent long"


class Fraud:
    """The processor: rules, and what each card has spent in each country."""

    def init(self, handle):
        """Declare both."""
        self.rules = handle.getBroadcastState("rules", "country string", "limit long")
        self.spent = handle.getMapState("spent", "country string", "amount long")

    def handleBroadcastRows(self, rows, timerValues):
        """New rules, or new limits; comes to all tasks."""
        for row in rows:
            self.rules.updateValue((row.country,), (row.limit,))

    def handleInputRows(self, key, rows, timerValues):
        """Payments of a card."""
        for row in rows:
            before = self.spent.getValue((row.country,)) or (0,)
            spent = before[0] + row.amount
            self.spent.updateValue((row.country,), (spent,))
            limit = self.rules.getValue((row.country,))
            if limit and spent > limit[0]:
                yield Row(card=key[0], country=row.country, spent=spent)

    def close(self):
        """Nothing is held."""


def payments_of(batches):
    """Makes payments of numbers: each card pays 60 in one country after the other."""
    for batch in batches:
        numbers = np.array(batch.column("value").to_pylist(), np.int64)
        countries = pa.array([COUNTRIES[number // CARDS % 3] for number in numbers])
        columns = [pa.array(numbers % CARDS), countries, pa.array(np.full(len(numbers), 60))]
        yield pa.record_batch(columns, names=["card", "country", "amount"])


def pipeline(numbers, rules):
    """The reports of a stream of numbers, by a stream of rules."""
    payments = numbers.mapInArrow(payments_of, "card long, country string, amount long").keyBy(
        "card", numPartitions=2
    )
    return payments.transformWithState(Fraud(), SCHEMA, "Append", "None", broadcastStream=rules)


def in_this_process():
    """The reports by the local runner, which has all rules first."""
    from penstock.testing.local_runner import run_local
    from penstock.testing.sources import fromBatches

    numbers = fromBatches(pa.table({"value": np.arange(PAYMENTS)}))
    return run_local(pipeline(numbers, fromBatches(pa.Table.from_pylist(RULES)))).to_pylist()


def on_spark():
    """The reports by a streaming query; the second rule comes while it runs."""
    from penstock.spark.session import open_session

    with open_session("fraud rules", 5) as spark, tempfile.TemporaryDirectory() as folder:
        add_rule(folder, RULES[0])
        rules = penstock.readStream(spark).format("json").schema(RULE).option("numPartitions", 1).load(folder)
        source = penstock.readStream(spark).format("rate").options(rowsPerSecond=500, numPartitions=1)
        numbers = source.option("numRows", PAYMENTS).load().select("value")
        writer = pipeline(numbers, rules).writeStream.format("memory").queryName("reports")
        query = writer.option("checkpointInterval", "500ms").start()
        time.sleep(1)
        add_rule(folder, RULES[1])
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and query.isActive and not reported(spark):
            time.sleep(0.5)
        query.stop()
        return [row.asDict() for row in spark.table("reports").collect()]


def add_rule(folder, rule):
    """One more file with one rule: it appears whole."""
    hidden = pathlib.Path(folder, f".{rule['country']}.json")
    hidden.write_text(json.dumps(rule) + "\n")
    hidden.rename(hidden.with_name(f"{rule['country']}.json"))


def reported(spark):
    """Tell if cards were reported in both countries."""
    return spark.table("reports").select("country").distinct().count() == len(RULES)


def main(arguments):
    """Run it; gives the exit code."""
    reports = in_this_process() if "--local" in arguments else on_spark()
    limits = {rule["country"]: rule["limit"] for rule in RULES}
    wrong = [report for report in reports if report["spent"] <= limits.get(report["country"], 1 << 60)]
    for country, limit in limits.items():
        cards = {report["card"] for report in reports if report["country"] == country}
        print(f"{country}: {len(cards)} cards are above {limit}")
    print(f"{len(wrong)} reports are wrong")
    return 1 if wrong or {report["country"] for report in reports} != set(limits) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
