# SPDX-License-Identifier: Apache-2.0
"""Sessions of a click stream: clicks of a user with less than 30 seconds between them, closed by a timer.

    python examples/click_sessions.py            # a streaming query on Spark
    python examples/click_sessions.py --local    # the same pipeline in this process, without Spark, as a test would

The processor is one of PySpark's, unchanged. Its timers are those of event time: a session ends when the watermark
has passed its last click by 30 seconds.
"""

import datetime as dt
import sys

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import penstock

GAP = 30_000
CLICKS = 3_000
BLOCK = 500
"""So many clicks are those of ten users, the next ones those of ten others: all sessions have fifty."""
SCHEMA = "user string, begin timestamp, clicks long"


class Sessions(StatefulProcessor):
    """Keeps the open session of each user."""

    def init(self, handle):
        """One value for each user: the milliseconds of the first and the last click, and how many there were."""
        self.handle = handle
        self.open = handle.getValueState("open", "begin long, last long, clicks long")

    def handleInputRows(self, key, rows, timerValues):
        """Add clicks to the session, or begin another one; have a timer look at it when it may end."""
        session = self.open.get()
        for at in sorted(int(row.ts.timestamp() * 1000) for row in rows):
            if session and at - session[1] >= GAP:
                yield self.closed(key, session)
                session = None
            session = (session[0], max(at, session[1]), session[2] + 1) if session else (at, at, 1)
        self.open.update(session)
        for time in self.handle.listTimers():
            self.handle.deleteTimer(time)
        self.handle.registerTimer(session[1] + GAP)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        """No click came in time."""
        yield self.closed(key, self.open.get())
        self.open.clear()

    def close(self):
        """Nothing is held."""

    def closed(self, key, session):
        """The row of a session."""
        begin = dt.datetime.fromtimestamp(session[0] / 1000, dt.UTC)
        return Row(user=key[0], begin=begin, clicks=session[2])


def clicks_of(batches):
    """Makes clicks of numbers, ten in a second."""
    for batch in batches:
        numbers = np.frombuffer(batch.column("value").buffers()[1], np.int64)[batch.column("value").offset :]
        numbers = numbers[: batch.num_rows]
        users = numbers % 10 + 10 * (numbers // BLOCK % 2)
        times = pa.array(numbers * 100_000, pa.timestamp("us", "UTC"))
        yield pa.record_batch([pa.array([f"user {user}" for user in users]), times], names=["user", "ts"])


def pipeline(numbers):
    """The sessions of a stream of numbers."""
    clicks = numbers.mapInArrow(clicks_of, "user string, ts timestamp").withWatermark("ts", "1 second")
    return clicks.groupBy("user", numPartitions=2).transformWithState(Sessions(), SCHEMA, "Append", "EventTime")


def in_this_process():
    """The sessions by the local runner."""
    from penstock.testing.local_runner import run_local
    from penstock.testing.sources import fromBatches

    return run_local(pipeline(fromBatches(pa.table({"value": np.arange(CLICKS)})))).to_pylist()


def on_spark():
    """The sessions by a streaming query that ends with its source."""
    from penstock.spark.session import open_session

    with open_session("click sessions", 4) as spark:
        source = penstock.readStream(spark).format("rate")
        numbers = source.options(rowsPerSecond=2_000, numPartitions=1, numRows=CLICKS).load().select("value")
        query = pipeline(numbers).writeStream.format("memory").queryName("sessions").start()
        query.awaitTermination(120)
        return [row.asDict() for row in spark.table("sessions").collect()]


def main(arguments):
    """Run it; gives the exit code."""
    sessions = in_this_process() if "--local" in arguments else on_spark()
    for session in sorted(sessions, key=lambda row: (row["user"], row["begin"]))[:6]:
        print(f"{session['user']:8} {session['begin']:%H:%M:%S} {session['clicks']:4} clicks")
    whole = sum(session["clicks"] == BLOCK // 10 for session in sessions)
    print(f"{len(sessions)} sessions, {whole} of {BLOCK // 10} clicks")
    return 0 if len(sessions) == whole == CLICKS * 10 // BLOCK else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
