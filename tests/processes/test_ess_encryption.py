# SPDX-License-Identifier: Apache-2.0
"""Spark's shuffle service with `spark.network.crypto.enabled`: both versions of its engine, and both its ciphers.

All bytes between readers and the service go through a proxy, which keeps them, and turns a bit of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from effort import THOROUGH, some_of
from ess_harness import EssHarness
from ess_process import EssProcess
from flipping_proxy import FlippingProxy
from penstock.errors import AuthenticationError, IncompleteDataError, PenstockError, SettingError
from penstock.services.fetching.wire import Wire
from penstock.services.spark_ess.client import Access
from penstock.services.spark_ess.engine import COUNTER, SEGMENTS, EngineLogin
from penstock.services.spark_ess.messages import ask_folders
from penstock.services.spark_ess.session import Login, Session
from penstock.settings import Settings
from penstock.shuffle import PartitionKind
from penstock.testing import DEADLINE
from penstock.testing.conformance_exchange import NUMBERS, ConformanceExchange, Consumer, Producer, WantedPartition

pytestmark = pytest.mark.processes

SECRET = "the cluster's secret"
KIND = PartitionKind.BLOCKING_SORT_MERGE
WORD = b"row in p"
ROWS = 1 << 16
BATCHES = 4
CIPHERS = [(1, COUNTER), (2, SEGMENTS), (1, SEGMENTS), (2, COUNTER)] if THOROUGH else [(1, COUNTER), (2, SEGMENTS)]
"""Version and cipher: Spark's own, and the strongest."""


@pytest.fixture(scope="module", params=some_of(CIPHERS, 2), ids=lambda each: f"{each[0]}-{each[1].split('/')[1]}")
def told(request: pytest.FixtureRequest) -> tuple[int, str]:
    """The version and the cipher of a service."""
    version, cipher = request.param
    return version, cipher


@pytest.fixture(scope="module")
def ess(told: tuple[int, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EssProcess]:
    """A service that encrypts. The strongest one takes no other login, Spark's own takes one by SASL, too."""
    version, cipher = told
    conf = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": SECRET,
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": str(cipher == COUNTER).lower(),
        "spark.network.crypto.cipher": cipher,
        "spark.network.crypto.authEngineVersion": str(version),
    }
    process = EssProcess(tmp_path_factory.mktemp("ess"), conf)
    yield process
    process.close()


Make = Callable[..., tuple[EssHarness, ConformanceExchange, FlippingProxy]]


@pytest.fixture
def make(ess: EssProcess, told: tuple[int, str], request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes an application that is told to encrypt as the service does, or otherwise, and reads through a proxy."""
    version, cipher = told
    numbers = itertools.count()
    with contextlib.ExitStack() as ends:

        def made(**conf: str) -> tuple[EssHarness, ConformanceExchange, FlippingProxy]:
            words = {"secret": SECRET, "cipher": cipher, "engineVersion": str(version)}
            words |= {"retryTimeout": f"{DEADLINE:g}s", **conf}
            harness = EssHarness(
                ess,
                f"{request.node.name}-{next(numbers)}",
                {f"spark.penstock.ess.{name}": word for name, word in words.items()},
            )
            proxy = FlippingProxy(keeps=True)
            proxy.target = ("127.0.0.1", ess.port)
            harness.ports["a"] = int(proxy.address.rpartition(":")[2])
            exchange = ConformanceExchange(harness, asyncio.run)
            for end in (proxy.close, harness.close, exchange.close):
                ends.callback(end)
            return harness, exchange, proxy

        yield made


def written(exchange: ConformanceExchange) -> Producer:
    """A partition of 2 MB, in which each number is the same eight bytes."""
    producer = exchange.produce(WantedPartition(KIND, subpartitions=4))
    column = pa.array([int.from_bytes(WORD, "little")] * ROWS, pa.int64())
    for n in range(BATCHES):
        producer.writer.write(pa.record_batch([column], schema=NUMBERS), n % 4)
    producer.writer.finish()
    return producer


def rows_of(consumer: Consumer) -> int:
    """The rows up to the end, each of which is as it was written."""
    batches = [item.batch for item in consumer.drain() if item.batch is not None]
    assert all(set(batch["n"].unique().to_pylist()) == {int.from_bytes(WORD, "little")} for batch in batches)
    return sum(batch.num_rows for batch in batches)


def test_rows_come_right_and_nobody_in_between_sees_one(make: Make, told: tuple[int, str]) -> None:
    """Neither rows nor names of files are among the bytes of the wire; in plain text both are."""
    _, exchange, proxy = make()
    producer = written(exchange)
    assert rows_of(exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * BATCHES
    there, back = proxy.seen
    assert len(back) > ROWS * BATCHES * 8
    assert WORD * 2 not in back
    executor = producer.descriptor.location.split("/")[0].encode()
    assert executor not in there
    if told[1] == COUNTER:  # that service takes a login by SASL, too
        _, exchange, proxy = make(cipher="none")
        producer = written(exchange)
        assert rows_of(exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * BATCHES
        there, back = proxy.seen
        assert WORD * 2 in back
        assert producer.descriptor.location.split("/")[0].encode() in there


def test_a_turned_bit_is_found(make: Make, told: tuple[int, str]) -> None:
    """With GCM the connection ends, and the rows come by the next one; else the checksum of the rows is wrong."""
    _, exchange, proxy = make()
    producer = written(exchange)
    proxy.flip_at = (-1, ROWS * BATCHES * 4)
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    if told[1] == SEGMENTS:
        assert rows_of(consumer) == ROWS * BATCHES
    else:
        with pytest.raises(IncompleteDataError, match="damaged"):
            rows_of(consumer)
    assert proxy.flipped == 1


def test_a_turned_bit_of_a_request_harms_no_row(make: Make, told: tuple[int, str]) -> None:
    """With GCM the service closes the connection, and the rows come by the next one; else there may be an error."""
    _, exchange, proxy = make()
    producer = written(exchange)
    proxy.flip_at = (250, -1)
    with contextlib.suppress(*([] if told[1] == SEGMENTS else [PenstockError])):
        assert rows_of(exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * BATCHES
    assert proxy.flipped == 1


def test_who_does_not_know_the_secret_gets_nothing(make: Make) -> None:
    """A wrong secret is refused by the service, with the setting that is wrong, at the first word."""
    _, exchange, _ = make()
    producer = written(exchange)
    _, stranger, _ = make(secret="a guess")
    refused = r"Authentication failed.*spark\.authenticate\.secret"
    with pytest.raises(AuthenticationError, match=refused):
        stranger.consume([(producer.descriptor, 0)]).drain()
    with pytest.raises(AuthenticationError, match=refused):
        stranger.produce(WantedPartition(KIND))


def asked(ess: EssProcess, access: Access, login: Login | None = None) -> None:
    """Ask something, on a connection of its own; returns when the answer is there."""
    session = Session(login or access.login(), 1 << 20)
    session.ask(ask_folders(access.application, "nobody"))
    wire, end = Wire(("127.0.0.1", ess.port), session), time.monotonic() + DEADLINE
    try:
        while not wire.move():
            assert time.monotonic() < end
            wire.wait(0.1)
    finally:
        wire.close()


def test_another_cipher_and_another_login_are_named(ess: EssProcess, make: Make, told: tuple[int, str]) -> None:
    """A service that is told otherwise closes the connection; the error says what must be the same.

    One that takes no login by SASL says so, and the error names what to set.
    """
    version, cipher = told
    for conf in ({"engineVersion": str(3 - version)}, {"cipher": COUNTER if cipher == SEGMENTS else SEGMENTS}):
        harness, _, _ = make(**conf)
        with pytest.raises(ConnectionResetError, match=r"spark\.network\.crypto\.cipher.*authEngineVersion"):
            asked(ess, Access.of(harness.settings("a").ess, harness.application))
    if cipher == SEGMENTS:
        _, exchange, _ = make(cipher="none")
        with pytest.raises(AuthenticationError, match=r"Unknown challenge.*spark\.network\.crypto\.enabled=true"):
            exchange.produce(WantedPartition(KIND))


def test_an_old_answer_and_a_changed_one_prove_nothing(ess: EssProcess, make: Make) -> None:
    """The service's answer is for what was said on this connection, and all of it counts."""
    harness, _, _ = make()
    access = Access.of(harness.settings("a").ess, harness.application)
    answers: list[bytes] = []

    class Listening(EngineLogin):
        """Keeps the answer."""

        def answer(self, body: bytes) -> None:
            """Take it, and keep it."""
            super().answer(body)
            answers.append(body)

    assert access.encryption is not None
    login = Listening(access.application, access.secret, access.encryption)
    asked(ess, access, login)
    (answer,) = answers
    later: Any = access.login()
    later.first()
    with pytest.raises(AuthenticationError, match="did not prove"):
        later.answer(answer)
    for byte in range(len(answer)):
        changed = bytearray(answer)
        changed[byte] ^= 1 << byte % 8
        with pytest.raises(AuthenticationError, match="did not prove"):
            login.answer(bytes(changed))


def test_encryption_without_a_secret_is_refused() -> None:
    """Nothing goes on in plain text where a cipher is asked for."""
    settings = Settings.from_conf({"spark.penstock.ess.cipher": COUNTER})
    with pytest.raises(SettingError, match=r"spark\.authenticate\.secret"):
        Access.of(settings.ess, "app")
