# SPDX-License-Identifier: Apache-2.0
"""Clicks out of one topic of Kafka, counted by page, as messages into another one.

    python examples/connectors/kafka_topics.py                   # with the client's own toy cluster, and ends
    python examples/connectors/kafka_topics.py host:9092         # with yours: topics `clicks` and `counts`

It needs the extra `kafka`.
"""

import json
import sys
import tempfile
import time

import confluent_kafka as kafka

import penstock
from penstock.spark.session import open_session

CLICKS = 600


def send_clicks(servers):
    """Clicks on three pages, each with its visitor as the key."""
    producer = kafka.Producer({"bootstrap.servers": servers})
    for number in range(CLICKS):
        producer.produce("clicks", ("home", "search", "basket")[number % 3], f"visitor {number % 7}")
    producer.flush()
    producer.close()


def start(spark, servers, folder):
    """The query: the newest count of each page, as JSON."""
    clicks = penstock.readStream(spark).format("kafka").option("kafka.bootstrap.servers", servers)
    clicks = clicks.option("subscribe", "clicks").option("startingOffsets", "earliest").load()
    pages = clicks.selectExpr("CAST(value AS STRING) AS page")
    counts = pages.keyBy("page", numPartitions=1).agg(n=("page", "count"))
    writer = counts.selectExpr("page AS key", "CAST(n AS STRING) AS value").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", "counts")
    return writer.options(checkpointLocation=f"{folder}/checkpoints", checkpointInterval="200ms").start()


def newest_counts(servers, query):
    """The last count of each page, when all clicks are counted."""
    consumer = kafka.Consumer({"bootstrap.servers": servers, "group.id": "counts", "auto.offset.reset": "earliest"})
    partitions = consumer.list_topics("counts", timeout=20).topics["counts"].partitions
    consumer.assign([kafka.TopicPartition("counts", number, kafka.OFFSET_BEGINNING) for number in partitions])
    found, deadline = {}, time.monotonic() + 60
    while sum(found.values()) < CLICKS and query.isActive and time.monotonic() < deadline:
        for message in consumer.consume(100, 0.2):
            if message.error() is None:
                page = message.key().decode()
                found[page] = max(found.get(page, 0), int(message.value()))
    consumer.close()
    return found


def run(spark, folder, servers=""):
    """Count, and say what the topic says at last."""
    toy = None
    if not servers:
        toy = kafka.Producer({"bootstrap.servers": "toy:1", "test.mock.num.brokers": 1, "log_level": 0})
        for topic in ("clicks", "counts", "penstock-markers"):
            metadata = toy.list_topics(topic, timeout=20)
        (broker,) = metadata.brokers.values()
        servers = f"{broker.host}:{broker.port}"
    send_clicks(servers)
    query = start(spark, servers, folder)
    counts = newest_counts(servers, query)
    query.stop()
    clicks = penstock.readKafka(spark, {"kafka.bootstrap.servers": servers, "subscribe": "clicks"})
    counts["all"] = clicks.count()  # a batch job over the same topic
    if toy is not None:
        toy.close()
    return json.dumps(counts, sort_keys=True)


def main(arguments):
    """Run it; gives the exit code."""
    with open_session("clicks", 4) as spark, tempfile.TemporaryDirectory() as folder:
        said = run(spark, folder, *arguments)
        print(said)
        right = dict.fromkeys(("home", "search", "basket"), CLICKS // 3) | {"all": CLICKS}
        return 0 if json.loads(said) == right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
