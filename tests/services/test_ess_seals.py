# SPDX-License-Identifier: Apache-2.0
"""The ciphers after the engine's login: all comes as it went, however it is cut, and what was changed is found."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AuthenticationError, ProtocolError, SettingError
from penstock.services.spark_ess.engine import COUNTER, SEGMENTS, Encryption, EngineLogin
from penstock.services.spark_ess.frames import ANSWER
from penstock.services.spark_ess.seals import CounterSeal, SegmentSeal, WireSeal
from penstock.services.spark_ess.session import Session

KEY = bytes(range(16))
SEGMENT, TAG, HEAD = 32 << 10, 16, 8 + 24
SIZES = st.one_of(st.integers(1, 200), st.sampled_from([32_751, 32_752, 32_753, 65_504, 150_000]))


def pair(name: str, key: bytes = KEY) -> tuple[WireSeal, WireSeal]:
    """Both ends of a connection."""
    if name == SEGMENTS:
        return SegmentSeal(key), SegmentSeal(key)
    here, there = bytes(16), bytes([255]) * 16
    return CounterSeal(key, here, there), CounterSeal(key, there, here)


def opened(seal: WireSeal, data: bytes, cuts: Iterable[int] = ()) -> bytes:
    """The plain bytes of what comes in pieces of these sizes."""
    found, position, pieces = bytearray(), 0, iter(cuts)
    while position < len(data):
        room = seal.room()
        count = min(len(room), len(data) - position, next(pieces, len(data)))
        room[:count] = data[position : position + count]
        for plain in seal.opened(count):
            found += plain
        position += count
    return bytes(found)


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("name", [COUNTER, SEGMENTS])
@given(sizes=st.lists(SIZES, max_size=5), cuts=st.lists(st.integers(1, 70_000), max_size=40))
def test_all_comes_as_it_went(name: str, size: int, sizes: list[int], cuts: list[int]) -> None:
    """Messages of any size, with keys of both versions, cut anywhere; none of the plain bytes travels."""
    here, there = pair(name, bytes(range(size)))
    plain = [bytes(n * 7 % 251 for n in range(count)) for count in sizes]
    sent = b"".join(map(here.sealed, plain))
    assert opened(there, sent, cuts) == b"".join(plain)
    assert not any(data in sent for data in plain if len(data) > 20)
    assert opened(here, there.sealed(b"and back")) == b"and back"


@given(st.data())
def test_a_message_that_was_changed_is_refused(data: st.DataObject) -> None:
    """A turned bit, a segment less, one twice or in another place: nothing of it or of what follows is given."""
    here, there = pair(SEGMENTS)
    plain = bytes(100_000)
    sent = bytearray(here.sealed(plain))
    change = data.draw(st.sampled_from(["bit", "first", "last", "order", "twice"]))
    segments = [sent[begin : begin + SEGMENT] for begin in range(HEAD, len(sent), SEGMENT)]
    if change == "bit":
        bit = data.draw(st.integers(0, len(sent) * 8 - 1))
        sent[bit // 8] ^= 1 << bit % 8
    elif change == "first":
        sent = sent[:HEAD] + b"".join(segments[1:]) + segments[0]
    elif change == "last":
        sent = sent[:HEAD] + b"".join(segments[:-1])
    elif change == "order":
        sent = sent[:HEAD] + b"".join([segments[1], segments[0], *segments[2:]])
    else:
        sent = sent[:HEAD] + b"".join([segments[0], segments[0], *segments[2:]])
    found = b""
    with pytest.raises(ConnectionResetError, match="changed on its way"):  # noqa: PT012 - one that waits says so too
        found = opened(there, bytes(sent))
        assert len(found) < len(plain), change
        raise ConnectionResetError("it is waited for: not changed on its way")


def test_a_message_in_plain_text_after_the_login_is_refused() -> None:
    """Somebody in between who sends one along with the service's answer does not get it in."""

    class Ended:
        """A login that any answer ends."""

        name = "none"
        seal = SegmentSeal(KEY)

        def first(self) -> bytes:
            """Nothing."""
            return b""

        def answer(self, body: bytes) -> None:
            """It has ended."""

    session = Session(Ended(), 1 << 20)
    number = session.ask(b"a request")
    answers = b"".join(
        (21).to_bytes(8, "big") + bytes([ANSWER]) + request.to_bytes(8, "big") + bytes(4) for request in (0, number)
    )
    session.room()[: len(answers)] = answers
    with pytest.raises(ProtocolError, match="plain text"):
        session.received(len(answers))
    assert b"a request" not in session.outgoing()


def test_an_answer_that_is_no_answer_is_refused() -> None:
    """Cut anywhere, or somebody's own message sent back."""
    encryption = Encryption.of(COUNTER, 2)
    assert encryption is not None
    login = EngineLogin("app", "the secret", encryption)
    said = login.first()
    for body in [said, b"", b"\xfb", *(said[:size] for size in range(0, len(said), 7)), said + b"more"]:
        with pytest.raises(AuthenticationError, match="did not prove"):
            login.answer(body)
    assert login.seal is None


@pytest.mark.parametrize(
    ("cipher", "version", "words"),
    [
        ("AES/CBC/PKCS5Padding", 1, "AES/CTR/NoPadding or AES/GCM/NoPadding"),
        ("spark.ssl.rpc.enabled", 1, r"encrypted by spark\.ssl\.rpc\.enabled"),
        ("aes/ctr/nopadding", 3, "authEngineVersion=3"),
    ],
)
def test_what_is_not_spoken_is_refused_by_its_name(cipher: str, version: int, words: str) -> None:
    """With what to set."""
    with pytest.raises(SettingError, match=words):
        Encryption.of(cipher, version)
    assert Encryption.of("", version) is None
    assert Encryption.of("NONE", version) is None
