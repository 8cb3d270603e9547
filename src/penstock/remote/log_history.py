# SPDX-License-Identifier: Apache-2.0
"""The starts and the length of a manager's log, and words about it: so that a manager knows an old copy of its log.

Rules: each start of a manager draws a token, and all records that it has ever written are counted. The manager
gives words about its log after it has written: the token, and the records by then, sealed with the secret of manager
and workers. Writers carry the word under which they began to their workers, and workers keep the furthest ones with
what was committed, and say them when they come. A log that lacks the start of a word, or has fewer records of it, is
an old copy, or has lost its end.

Limit: what was decided after the last word that any worker has heard is not missed.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ProtocolError

TOKEN_BYTES: Final = 8
_WORD = struct.Struct("<8sQ")
_SEAL_BYTES: Final = 16
_MOST_STARTS: Final = 1000
_MOST_WORDS: Final = 8
OLD_LOG: Final = "the manager was started with an old copy of its log, which does not know what became of it"


@dataclass(slots=True)
class LogHistory:
    """All records, the tokens of starts, each with the records before it, and True if some are missing."""

    records: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    is_old: bool = False

    @classmethod
    def of(cls, records: int, starts: Iterable[Iterable[object]], *, is_old: bool) -> LogHistory:
        """The history that a record tells."""
        return cls(records, {str(token): int(str(before)) for token, before in starts}, is_old)

    def record(self) -> tuple[object, ...]:
        """The record that `of` reads."""
        return "history", self.records, [list(each) for each in self.starts.items()], self.is_old

    def start(self, token: str) -> None:
        """Note that a manager has started, with its token."""
        self.starts[token] = self.records
        for oldest in list(self.starts)[:-_MOST_STARTS]:
            del self.starts[oldest]

    def lacks(self, token: str, records: int) -> bool:
        """Tell whether something is missing that was there by this word."""
        if token not in self.starts:
            return True
        following = list(self.starts.values())[list(self.starts).index(token) + 1 :]
        return records > min(following, default=self.records)


def sealed_word(secret: bytes, history: LogHistory) -> bytes:
    """The manager's word about its log now; nothing before its first start."""
    if not history.starts:
        return b""
    body = _WORD.pack(bytes.fromhex(next(reversed(history.starts))), history.records)
    return body + hmac.digest(secret, body, "sha256")[:_SEAL_BYTES]


def read_word(secret: bytes, word: bytes) -> tuple[str, int]:
    """Token and records of a word; ProtocolError for one that no manager has said."""
    body, seal = word[: _WORD.size], word[_WORD.size :]
    if not hmac.compare_digest(hmac.digest(secret, body, "sha256")[:_SEAL_BYTES], seal):
        raise ProtocolError("this is no word of the manager about its log")
    token, records = _WORD.unpack(body)
    return token.hex(), records


class HeardWords:
    """The furthest words that a worker has heard, by token."""

    def __init__(self, words: Iterable[tuple[str, int]] = ()) -> None:
        self._records = dict(words)

    @property
    def all(self) -> tuple[tuple[str, int], ...]:
        """All of them."""
        return tuple(self._records.items())

    def hear(self, token: str, records: int) -> None:
        """A writer brings a word."""
        known = self._records.pop(token, 0)
        self._records[token] = max(known, records)
        for oldest in list(self._records)[:-_MOST_WORDS]:
            del self._records[oldest]

    def hear_manager(self, token: str, records: int) -> None:
        """The manager says it, after it has heard all others."""
        self._records = {token: max(self._records.get(token, 0), records)}
