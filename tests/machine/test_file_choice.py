# SPDX-License-Identifier: Apache-2.0
"""The choice of a folder's files: names, patterns as Hadoop has them, times of change."""

from __future__ import annotations

import pytest

from penstock.errors import SettingError
from penstock.machine.file_choice import FileChoice, file_choice, is_hidden

SECOND = 1_000_000_000


def test_hidden_names() -> None:
    """Spark's rule, for each folder on the way too; a folder of values may begin with an underscore."""
    assert [is_hidden(name) for name in ("a.csv", "b/_c", ".d/e", "_d=1/e", "_d=1/_e", "f._COPYING_", "g/_h/i")] == [
        False,
        True,
        True,
        False,
        True,
        True,
        True,
    ]


def test_a_time_is_the_session_s_where_it_names_no_zone() -> None:
    """A file of just that time is not taken, on either side."""
    for text, zone in (
        ("2026-01-31T10:00:00", "Europe/Zurich"),
        ("2026-01-31 10:00:00", "+01:00"),
        ("2026-01-31T09:00:00Z", "Asia/Tokyo"),
    ):
        at = 1_769_850_000 * SECOND
        later = file_choice("readText", zone, None, False, after=text)
        earlier = file_choice("readText", zone, None, False, before=text)
        assert [later.takes("x", at + one) for one in (-1, 0, 1)] == [False, False, True]
        assert [earlier.takes("x", at + one) for one in (-1, 0, 1)] == [True, False, False]


@pytest.mark.parametrize(
    ("glob", "after", "said"),
    [
        ("[ab", None, r"readText: pathGlobFilter='\[ab': what begins with the '\[' at 0 does not end"),
        ("x{a,b", None, "with the '{' at 1 does not end"),
        ("a\\", None, r"with the '\\\\' at 1 does not end"),
        (None, "yesterday", "readText: modifiedAfter='yesterday' is no time such as"),
    ],
)
def test_what_is_no_pattern_or_time_is_refused(glob: str | None, after: str | None, said: str) -> None:
    """The sentence has the option and the place."""
    with pytest.raises(SettingError, match=said):
        file_choice("readText", "UTC", glob, False, after=after)


def test_a_pattern_is_of_the_name_alone() -> None:
    """Not of the folders that the file lies in."""
    assert FileChoice(glob="b*").takes("a/b.csv", 0)
    assert not FileChoice(glob="a*").takes("a/b.csv", 0)
