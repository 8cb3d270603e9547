# SPDX-License-Identifier: Apache-2.0
"""The end of what a user's function gave: its own, and no StopIteration of code that it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.functions import MapInArrow, ending_by_itself

BATCH = pa.record_batch({"n": pa.array([1], pa.int64())})


def first_of_none(item: Any) -> Any:
    """Raises StopIteration after the second item."""
    return item if item < 3 else next(iter(()))


class Counted:
    """An iterator of a class, which ends as Python has it: by StopIteration out of `__next__`."""

    def __init__(self) -> None:
        self._left = [1, 2]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        return self._left.pop(0)


@pytest.mark.parametrize(
    "given", [[1, 2], iter([1, 2]), Counted(), map(int, Counted()), (n for n in (1, 2)), filter(None, [0, 1, 2])]
)
def test_what_has_ended_by_itself_has_ended(given: Iterable[int]) -> None:
    """Lists, generators, iterators of classes, and what C makes of these."""
    assert list(ending_by_itself(given, "it")) == [1, 2]


def test_a_stop_iteration_from_elsewhere_is_an_error() -> None:
    """With the name of the function that raised it, and of the operator."""
    given = iter(ending_by_itself(map(first_of_none, [1, 2, 3, 4]), "it"))
    assert [next(given), next(given)] == [1, 2]
    with pytest.raises(RuntimeError, match="it: first_of_none raised StopIteration, which would end the rows"):
        next(given)
    mapped = MapInArrow(partial(map, lambda _: next(iter(()))), BATCH.schema)
    with pytest.raises(RuntimeError, match="<lambda> raised StopIteration"):
        list(mapped.apply(iter([BATCH])))
