# SPDX-License-Identifier: Apache-2.0
"""The share of all cases that a run tries: `make test` a part, `make torture` all of it.

The part is spread evenly over numbered cases and leaves out repetitions, and of dear kinds of cases those that others
say most of (mark `thorough`). It is the same in each run, the examples of Hypothesis included, so that a run says
something about the tree alone. All cases come with other examples each time; what they find becomes a test.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

_T = TypeVar("_T")

THOROUGH = os.environ.get("PENSTOCK_TEST_EFFORT", "") == "full"

_SHARE = 12
_FEWEST = 6


def examples(number: int) -> int:
    """Of so many examples: all of them, or a twelfth, but some in any case."""
    return number if THOROUGH else min(number, max(_FEWEST, number // _SHARE))


def with_all(*case: object) -> Any:
    """A case that only a run of all cases tries: others say most of it."""
    return pytest.param(*case, marks=pytest.mark.thorough)


def some_of(cases: Sequence[_T], share: int) -> Sequence[_T]:
    """Of these cases: all of them, or each one whose number is a multiple of `share`."""
    return cases if THOROUGH else cases[::share]
