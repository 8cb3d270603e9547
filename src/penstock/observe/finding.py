# SPDX-License-Identifier: Apache-2.0
"""The finding of a check: a fact, its level, and the remedy."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """The levels of a finding: well, slower or riskier than need be, or nothing will run."""

    FINE = "ok"
    DOUBTFUL = "note"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is empty where all is well."""

    subject: str
    level: Level
    what: str
    advice: str = ""

    @classmethod
    def fine(cls, subject: str, what: str) -> Finding:
        """A finding without a fault."""
        return cls(subject, Level.FINE, what)

    @classmethod
    def of(cls, subject: str, what: str, *, doubt: str = "", wrong: str = "") -> Finding:
        """A wrong counts more than a doubt; with neither all is well."""
        if wrong:
            return cls(subject, Level.WRONG, what, wrong)
        return cls(subject, Level.DOUBTFUL, what, doubt) if doubt else cls.fine(subject, what)

    def sentence(self) -> str:
        """The finding as one sentence, for a message."""
        return f"{self.subject}: {self.what}" + (f": {self.advice}" if self.advice else "")
