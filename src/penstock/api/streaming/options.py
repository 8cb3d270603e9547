# SPDX-License-Identifier: Apache-2.0
"""Options of readers and writers, as PySpark takes them: names in any case, values as text, numbers or booleans.

Each format says which it knows; another name is refused with the nearest that there is.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.api.habits import missing_step
from penstock.errors import SettingError
from penstock.settings import KEYS, PREFIX, StreamingSettings, parse_bool

T = TypeVar("T")

_QUERY_PREFIX = f"{PREFIX}streaming."
QUERY_OPTIONS = tuple(key.removeprefix(_QUERY_PREFIX) for key in KEYS if key.startswith(_QUERY_PREFIX))
"""The options of a query, which are settings too."""
_OF_TRIGGERS = "it bounds Spark's batches, and rows flow here without: leave it out, flow control bounds the memory"
assert len(QUERY_OPTIONS) == len(fields(StreamingSettings))  # noqa: S101 - each has a key


class Options:
    """The options that a user gave to one reader or writer."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._given: dict[str, tuple[str, str]] = {}

    def set(self, name: object, value: object) -> None:
        """One more; a later one counts."""
        if not isinstance(name, str):
            raise TypeError(f"{self._owner}: an option has a name, not {name!r}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self._given[name.lower()] = (name, text)

    def refuse_others(self, what: str, known: Collection[str]) -> None:
        """Raise SettingError for one that no part reads."""
        names = {name.lower(): name for name in known}
        for key, (name, _) in self._given.items():
            if key not in names:
                close = difflib.get_close_matches(key, names, n=1)
                hint = f"did you mean {names[close[0]]}?" if close else f"known are {', '.join(sorted(known))}"
                hint = _OF_TRIGGERS if key.endswith(("pertrigger", "triggerdelay")) else hint
                raise SettingError(f"{self._owner}: {what} has no option {name!r}: {hint}")

    def given(self) -> dict[str, str]:
        """All of them, by the names that were given."""
        return dict(self._given.values())

    def text(self, name: str) -> str | None:
        """The text that was given, if any."""
        found = self._given.get(name.lower())
        return None if found is None else found[1]

    def value(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """The value that was given, parsed; raises SettingError if it can't be."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError as error:
            raise SettingError(f"{self._owner}: option {name}={text!r} is not valid: {error}") from None

    def flag(self, name: str, *, default: bool) -> bool:
        """The value of a boolean option."""
        return self.value(name, parse_bool, default)

    def as_settings(self) -> Mapping[str, str]:
        """The options of a query, as settings."""
        given = {name.lower(): name for name in QUERY_OPTIONS}
        found = {given[key]: text for key, (_, text) in self._given.items() if key in given}
        return {f"{_QUERY_PREFIX}{name}": text for name, text in found.items()}


class TakesOptions:
    """The options that readers and writers take alike."""

    def __init__(self, owner: str, instead: Mapping[str, str]) -> None:
        self._options = Options(owner)
        self._owner = owner
        self._instead = instead

    if not TYPE_CHECKING:  # else every name would pass

        def __getattr__(self, name: str) -> Any:
            """A sentence for what PySpark's users try."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing_step(self._owner, name, self._instead, dir(self))

    def option(self, key: str, value: Any) -> Self:
        """An option of the format or, of a writer, of the query."""
        self._options.set(key, value)
        return self

    def options(self, **options: Any) -> Self:
        """Set several options."""
        for key, value in options.items():
            self._options.set(key, value)
        return self
