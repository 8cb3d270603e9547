# SPDX-License-Identifier: Apache-2.0
"""The numbers that JSON lacks: Spark writes NaN and the infinities as strings, and Arrow reads them as bare words.

A string is made a bare word where a column of floats is declared: everywhere if the schema has no strings, else
after the keys of floats. A key that is a string at another level stays as it is, and so do lists of floats
beside strings: the reader refuses these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.types as pt

WORDS = {
    b"NaN": b"NaN",
    b"Infinity": b"Infinity",
    b"+Infinity": b"Infinity",
    b"+INF": b"Infinity",
    b"-Infinity": b"-Infinity",
    b"-INF": b"-Infinity",
}
"""The strings that Spark takes for numbers, as Arrow takes them."""
_THERE = re.compile(rb'"(NaN|[+-]?Infinity|[+-]INF)"')


@dataclass(frozen=True, slots=True)
class JsonNumbers:
    """The places of floats in a schema; without any, text stays as it is."""

    pattern: re.Pattern[bytes] | None

    @classmethod
    def of(cls, schema: pa.Schema) -> Self:
        """The places in the lines of such rows."""
        leaves = [leaf for each in schema for leaf in _leaves(each.name, each.type)]
        if not any(pt.is_floating(kind) for _, kind in leaves):
            return cls(None)
        if not any(pt.is_string(kind) for _, kind in leaves):
            return cls(re.compile(rb"([:,\[]\s*)" + _THERE.pattern + rb"(?=\s*[,\]}])"))
        texts = {name for name, kind in leaves if pt.is_string(kind)}
        keys = {name for name, kind in leaves if pt.is_floating(kind) and name is not None} - texts
        names = b"|".join(re.escape(json.dumps(name, ensure_ascii=False).encode()) for name in sorted(keys))
        return cls(re.compile(rb"(?<!\\)((?:" + names + rb")\s*:\s*)" + _THERE.pattern) if keys else None)

    def bare(self, text: bytes) -> bytes:
        """The text with these numbers as bare words."""
        if self.pattern is None or _THERE.search(text) is None:
            return text
        return self.pattern.sub(lambda found: found[1] + WORDS[found[2]], text)


def _leaves(name: str | None, kind: pa.DataType) -> Iterator[tuple[str | None, pa.DataType]]:
    """Each type that holds no other, with the key that stands in front of it; None inside a list."""
    if pt.is_struct(kind):
        for each in kind:
            yield from _leaves(each.name, each.type)
    elif pt.is_nested(kind):
        for place in range(kind.num_fields):
            yield from _leaves(None, kind.field(place).type)
    else:
        yield name, kind
