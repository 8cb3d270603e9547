# SPDX-License-Identifier: Apache-2.0
"""The oracle of joins of two streams: pairs of rows within a bound, and rows that nothing can meet any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from penstock_torture.stages.rules import Key, Keyed, Oracle
from penstock_torture.stages.values import Row

COLUMNS = (("t", "v"), ("u", "x"))
"""The columns of each side beside the keys: its time, and a value."""
KEPT = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}


@dataclass(slots=True)
class _Kept:
    group: int
    row: Row
    has_met: bool


class Joins(Oracle):
    """Rows of both sides, of which none is late; `between` bounds the right time less the left one."""

    def __init__(self, keys: Sequence[str], groups: int, how: str, between: tuple[int, int] | None) -> None:
        super().__init__(keys, groups)
        self._kept = KEPT[how]
        self._between = between
        self._of: tuple[dict[Key, list[_Kept]], dict[Key, list[_Kept]]] = (defaultdict(list), defaultdict(list))

    def give(self, rows: Sequence[Keyed], side: int) -> list[Row]:
        """The pairs with what the other side has, and rows that can meet nothing."""
        found = []
        for group, row in rows:
            key, time = self.key_of(row), row[COLUMNS[side][0]]
            can_meet = None not in key and (self._between is None or time is not None)
            own = _Kept(group, row, has_met=False)
            for other in self._of[1 - side][key] if can_meet else ():
                if self._meets(*((other.row, row) if side else (row, other.row))):
                    own.has_met = other.has_met = True
                    found.append({**other.row, **row})
            if can_meet and not self._is_over(side, own):
                self._of[side][key].append(own)
            elif self._kept[side] and not own.has_met:
                found.append(self._alone(side, row))
        return found

    def fired(self, groups: set[int]) -> list[Row]:
        """Rows that have met nothing and can't any more."""
        found = []
        for side in (0, 1) if self._between is not None else ():
            for key, rows in self._of[side].items():
                over = [one for one in rows if one.group in groups and self._is_over(side, one)]
                found += [self._alone(side, one.row) for one in over if self._kept[side] and not one.has_met]
                self._of[side][key] = [one for one in rows if one not in over]
        return found

    def _meets(self, left: Row, right: Row) -> bool:
        return self._between is None or self._between[0] <= right["u"] - left["t"] <= self._between[1]

    def _is_over(self, side: int, one: _Kept) -> bool:
        if self._between is None:
            return False
        last: int = one.row[COLUMNS[side][0]] + (-self._between[0] if side else self._between[1])
        return last < self.watermarks[one.group]

    def _alone(self, side: int, row: Row) -> Row:
        return {**row, **dict.fromkeys(COLUMNS[1 - side])}
