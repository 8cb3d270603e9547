# SPDX-License-Identifier: Apache-2.0
"""The questions that a reader of Kafka asks the brokers beside its polls, each in a thread: a poll never waits.

A client that gets no messages does not tell whether there are none or the brokers are away: it connects again in
silence. So the brokers are asked for the ends of the reader's partitions: an answer is the sign that they are there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import PlanError
from penstock.stream.kafka_client import ASK_SECONDS, kafka_library
from penstock.stream.kafka_offsets import Partition

LIFE_SECONDS = 2.0
"""So often the brokers are asked for a sign of life."""
_ANSWER_SECONDS = 5.0
"""A client that waits for less takes a slow broker for one that is gone, and connects anew."""
_LATEST = -1


class Discovery:
    """Looks for partitions from time to time; what it finds is fetched without a wait."""

    def __init__(self, look: Callable[[], list[Partition]], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._looks: queue.SimpleQueue[list[Partition]] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-kafka-partitions", daemon=True)
        self._thread.start()

    def found(self) -> list[list[Partition]]:
        """The looks since the last call."""
        looks = []
        with suppress(queue.Empty):
            while True:
                looks.append(self._looks.get_nowait())
        return looks

    def close(self) -> None:
        """End it, before its client is closed."""
        self._is_closing.set()
        self._thread.join(ASK_SECONDS + 1)

    def _run(self) -> None:
        while not self._is_closing.wait(self._seconds):
            with suppress(kafka_library().KafkaException, PlanError):  # reading says what is wrong
                self._looks.put(self._look())


class SignsOfLife:
    """Asks the leaders of partitions for their ends, one question after the other."""

    def __init__(self, consumer: Any, partitions: Callable[[], Sequence[Partition]]) -> None:
        self._consumer = consumer
        self._partitions = partitions
        self._asked: float | None = None
        """When the first question was asked that has no answer; None where the last one has it."""
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-kafka-life", daemon=True)
        self._thread.start()

    def silent_for(self, now: float) -> float:
        """The seconds for which the brokers have not answered."""
        asked = self._asked
        return 0.0 if asked is None else max(0.0, now - asked)

    def are_away(self, now: float) -> bool:
        """Tell whether they have left a question without an answer."""
        return self.silent_for(now) > 2 * LIFE_SECONDS

    def close(self) -> None:
        """End it, before its client is closed."""
        self._is_closing.set()
        self._thread.join(_ANSWER_SECONDS + 1)

    def _run(self) -> None:
        while not self._is_closing.wait(LIFE_SECONDS):
            if self._asked is None:
                self._asked = time.monotonic()
            with suppress(kafka_library().KafkaException):  # it is asked again
                if self._are_there():
                    self._asked = None

    def _are_there(self) -> bool:
        places = [kafka_library().TopicPartition(*each, _LATEST) for each in self._partitions()]
        found = self._consumer.offsets_for_times(places, _ANSWER_SECONDS) if places else []
        return all(each.error is None for each in found)
