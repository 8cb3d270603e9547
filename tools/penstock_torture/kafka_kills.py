# SPDX-License-Identifier: Apache-2.0
"""Messages of Kafka counted by key into another topic, under many kills: `python -m penstock_torture.kafka_kills`.

The broker is librdkafka's mock cluster in a process of its own. Messages come in parts. While the query counts one,
somebody is killed: a Python worker of a task, or each tenth time the driver with all its processes, whose successor
goes on from the checkpoint. The query takes two checkpoints between two kills. In the end the counts that a marker
names are looked at: each key's grow, none is there twice, and the last is whole.

Then the same messages are read by the client alone, and by a query that nobody kills, in turns: rows a second.

Limits: the mock cluster keeps 5 MB of a partition, so the messages lie in several topics. A topic that has lost its
first ones is a fault.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka as kafka

from penstock.stream.kafka_client import MARKERS, KafkaSettings
from penstock_bench.mock_broker import broker_process
from penstock_bench.numbers import natural, positive
from penstock_bench.workers import worker_pids
from penstock_torture.harm import kill_marked
from penstock_torture.mock_kafka import PARTITIONS, marked_messages, messages

INPUTS = tuple(f"in{number}" for number in range(8))
OUT, SPEED = "out", "speed"
KEYS = 200
_DRIVER_EACH = 10
_WAIT_SECONDS = 600.0
_MARK = "PENSTOCK_KAFKA_KILLS"
_SLOTS = 6

Say = Callable[[str], None]


@dataclass(slots=True)
class KafkaKills:
    """One run: so many messages, and so many kills, in a folder of its own."""

    count: int
    kills: int
    seed: int
    root: Path
    settings: KafkaSettings

    def run(self, say: Say) -> list[str]:
        """Feed, kill and count; the faults."""
        chance = random.Random(self.seed)  # noqa: S311 - chance, not a secret
        part = self.count // (self.kills + 1)
        began, drivers = time.monotonic(), 0
        driver = self._driver(OUT)
        try:
            for kill in range(1, self.kills + 1):
                self._wait_checkpoints(driver)
                feed(self.settings, range((kill - 1) * part, kill * part))
                time.sleep(chance.uniform(0.0, 0.6))
                if kill % _DRIVER_EACH == 0:
                    self._kill_all(driver)
                    driver = self._driver(OUT)
                    drivers += 1
                else:
                    kill_a_task(chance)
                say(f"{time.monotonic() - began:6.0f} s: {kill} kills, {drivers} of them of the driver")
            feed(self.settings, range(self.kills * part, self.count))
            self._wait_counted(driver)
            (self.root / "stop").touch()
            driver.wait(_WAIT_SECONDS)
        finally:
            self._kill_all(driver)
            (self.root / "stop").unlink(missing_ok=True)
        return faults(self.settings, self.count, say)

    def speed(self, say: Say) -> None:
        """The client alone and a query without kills, in turns."""
        for turn in range(2):
            alone = client_alone(self.settings, self.count)
            took = self.root / "seconds"
            took.unlink(missing_ok=True)
            driver = self._driver(f"{SPEED}{turn}")
            driver.wait()
            query = float(took.read_text())
            say(
                f"turn {turn}: the client alone read {self.count / alone:,.0f} messages a second, a query from its"
                f" start to its end {self.count / query:,.0f}"
            )

    def _driver(self, topic: str) -> subprocess.Popen[bytes]:
        servers = dict(self.settings.given)["bootstrap.servers"]
        command = [
            sys.executable,
            "-m",
            __spec__.name,
            "--drive",
            topic,
            "--servers",
            servers,
            "--root",
            str(self.root),
        ]
        with (self.root / "driver.log").open("ab") as log:
            named = {**os.environ, _MARK: str(self.root)}
            return subprocess.Popen(command, env=named, stdout=log, stderr=log, start_new_session=True)

    def _kill_all(self, driver: subprocess.Popen[bytes]) -> None:
        kill_marked(f"{_MARK}={self.root}", driver)

    def _newest(self) -> int:
        found = (self.root / "checkpoints").glob("chk-*")
        return max((int(path.name.split("-")[1]) for path in found), default=0)

    def _wait_checkpoints(self, driver: subprocess.Popen[bytes]) -> None:
        """Wait for two more, so that there is some way between two kills."""
        before, deadline = self._newest(), time.monotonic() + _WAIT_SECONDS
        while self._newest() < before + 2:
            self._require(driver, deadline)

    def _wait_counted(self, driver: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 2 * _WAIT_SECONDS
        while sum(newest_counts(self.settings).values()) < self.count:
            self._require(driver, deadline)

    def _require(self, driver: subprocess.Popen[bytes], deadline: float) -> None:
        if driver.poll() is not None or time.monotonic() > deadline:
            words = (self.root / "driver.log").read_text(errors="replace")[-2000:]
            raise TimeoutError(f"the query stands still; its driver's code is {driver.returncode}:\n{words}")
        time.sleep(0.05)


def kill_a_task(chance: random.Random) -> None:
    """Kill a Python worker, whichever chance picks."""
    if pids := worker_pids():
        with suppress(ProcessLookupError):
            os.kill(chance.choice(pids), signal.SIGKILL)


def feed(settings: KafkaSettings, numbers: range) -> None:
    """Each number as a message; its key is one of `KEYS`."""
    producer = settings.producer(**{"queue.buffering.max.messages": 1_000_000})
    for number in numbers:
        topic, partition = number % len(INPUTS), number // len(INPUTS) % PARTITIONS
        producer.produce(INPUTS[topic], str(number), str(number % KEYS), partition=partition)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(60):
        raise TimeoutError("the mock cluster takes no messages")
    producer.close()


def client_alone(settings: KafkaSettings, count: int) -> float:
    """The seconds in which the client reads so many messages."""
    consumer = settings.consumer()
    consumer.assign(
        [kafka.TopicPartition(topic, part, kafka.OFFSET_BEGINNING) for topic in INPUTS for part in range(PARTITIONS)]
    )
    began, found = time.monotonic(), 0
    while found < count:
        found += sum(message.error() is None for message in consumer.consume(10_000, 0.5))
    took = time.monotonic() - began
    consumer.close()
    return took


def newest_counts(settings: KafkaSettings) -> dict[str, int]:
    """The greatest count of each key that a marker names."""
    found: dict[str, int] = {}
    for message in marked_messages(settings, OUT):
        key = message.key().decode()
        found[key] = max(found.get(key, 0), int(message.value()))
    return found


def faults(settings: KafkaSettings, count: int, say: Say) -> list[str]:
    """Look at each count that a marker names, in the order in which they came."""
    sent, named = messages(settings, OUT), marked_messages(settings, OUT)
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for message in sorted(named, key=lambda each: (each.partition(), each.offset())):
        by_key[message.key().decode()].append(int(message.value()))
    doubled = sum(len(counts) - len(set(counts)) for counts in by_key.values())
    unordered = sum(counts != sorted(counts) for counts in by_key.values())
    wanted = [count // KEYS + (number < count % KEYS) for number in range(KEYS)]
    last = [max(by_key.get(str(number), [0])) for number in range(KEYS)]
    lost = sum(max(0, want - have) for want, have in zip(wanted, last, strict=True))
    above = sum(max(0, have - want) for want, have in zip(wanted, last, strict=True))
    say(
        f"{count:,} messages in, {len(named):,} counts with a marker of {len(sent):,} that were sent: {lost} messages"
        f" lost, {above} counted twice, {doubled} counts there twice, {unordered} keys out of order"
    )
    first = [f"{topic} has lost its first messages" for topic in (*INPUTS, OUT) if _begin(settings, topic)]
    named_faults = {"lost": lost, "counted twice": above, "there twice": doubled, "out of order": unordered}
    return first + [f"{number} {what}" for what, number in named_faults.items() if number]


def _begin(settings: KafkaSettings, topic: str) -> int:
    """The sum of the first offsets of its partitions."""
    consumer = settings.consumer()
    try:
        parts = [kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(part, timeout=10)[0] for part in parts)
    finally:
        consumer.close()


def drive(root: Path, servers: str, topic: str) -> int:
    """Be the driver: until there is a file `stop`, or for the speed until all is read."""
    import penstock
    from penstock.spark.session import open_session

    conf = {"spark.master": f"local[{_SLOTS},1000]", "spark.log.level": "OFF", "spark.local.dir": str(root / "spark")}
    with open_session("penstock-kafka-kills", None, conf) as spark:
        given = {"kafka.bootstrap.servers": servers, "kafka.log_level": "0"}
        reader = penstock.readStream(spark).format("kafka").options(**given, subscribe=",".join(INPUTS))
        rows = reader.options(startingOffsets="earliest", numPartitions="2").load()
        counts = rows.selectExpr("CAST(key AS STRING) AS key").keyBy("key", numPartitions=2).agg(n=("key", "count"))
        writer = counts.selectExpr("key", "CAST(n AS STRING) AS value").writeStream.format("kafka")
        writer = writer.options(**given, topic=topic, includeTransaction="true")
        if topic != OUT:
            return _timed(writer.trigger(availableNow=True), root, topic)
        writer = writer.options(checkpointLocation=str(root / "checkpoints"), checkpointInterval="500ms")
        query = writer.option("tolerableFailedCheckpoints", "1000").start()
        while query.isActive:
            if (root / "stop").exists():
                query.stop()
            query.awaitTermination(0.2)
        return int(query.exception() is not None)


def _timed(writer: Any, root: Path, topic: str) -> int:
    began = time.monotonic()
    query = writer.option("checkpointLocation", str(root / topic)).start()
    query.awaitTermination()
    (root / "seconds").write_text(str(time.monotonic() - began))
    return int(query.exception() is not None)


@contextmanager
def cluster_process() -> Iterator[KafkaSettings]:
    """The mock cluster in a process of its own."""
    with broker_process((*INPUTS, OUT, f"{SPEED}0", f"{SPEED}1", MARKERS)) as servers:
        yield KafkaSettings((("bootstrap.servers", servers), ("log_level", "0")))


def main(arguments: list[str] | None = None) -> int:
    """Run it; 0 where nothing was lost and nothing doubled."""
    parser = argparse.ArgumentParser(prog="penstock_torture.kafka_kills", description="Kafka under kills.")
    parser.add_argument("--messages", type=positive, default=2_000_000, metavar="N", help="in all (2,000,000)")
    parser.add_argument("--kills", type=natural, default=100, metavar="K", help="each tenth the driver's (100)")
    parser.add_argument("--seed", type=natural, default=0, metavar="S", help="what chance depends on (0)")
    for name in ("--drive", "--servers", "--root"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.drive:
        return drive(Path(given.root), given.servers, given.drive)

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-kafka-kills-")))
        settings = stack.enter_context(cluster_process())
        run = KafkaKills(given.messages, given.kills, given.seed, root, settings)
        found = run.run(say)
        run.speed(say)
    say("; ".join(found) or "nothing lost, nothing doubled")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
