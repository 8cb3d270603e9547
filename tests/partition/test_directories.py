# SPDX-License-Identifier: Apache-2.0
"""Which directory a partition goes to: turns, room, reserve, broken ones."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.partition.directories import LEFT_OUT_SECONDS, Directories, DirectorySpace, choose, look


def spaces(*free: int | str) -> list[DirectorySpace]:
    """Directories with so many bytes free, or with a problem."""
    named = enumerate(free)
    return [
        DirectorySpace(Path(f"/d{at}"), problem=each)
        if isinstance(each, str)
        else DirectorySpace(Path(f"/d{at}"), each)
        for at, each in named
    ]


def turns(of: list[DirectorySpace], reserve: int, count: int) -> list[int]:
    """The choices of so many partitions, one after another."""
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(choose(of, reserve, chosen[-1] + 1 if chosen else 0))
    return chosen


def test_equal_directories_take_turns() -> None:
    """Three disks of about one size share the partitions evenly."""
    assert turns(spaces(100, 90, 80), 0, 6) == [0, 1, 2, 0, 1, 2]


def test_the_fuller_half_is_spared() -> None:
    """A disk with less than half the room of the roomiest waits until they are as full; the reserve is not room."""
    assert turns(spaces(100, 40, 90), 0, 4) == [0, 2, 0, 2]
    assert turns(spaces(100, 60, 90), 0, 3) == [0, 1, 2]
    assert turns(spaces(100, 60, 90), 40, 4) == [0, 2, 0, 2]


def test_broken_and_full_directories_are_passed_over() -> None:
    """Neither a problem nor a reached reserve stops the others."""
    assert turns(spaces("gone", 100, 10, 100), 10, 4) == [1, 3, 1, 3]


def test_none_left_names_all() -> None:
    """The error says of each what is wrong with it, and what may be done."""
    with pytest.raises(PenstockError) as caught:
        choose(spaces("it is gone", 5), 10, 0)
    for part in (
        "/d0: it is gone",
        "/d1: 5 bytes are free",
        "10 bytes kept free",
        "spark.penstock.blocking.directories",
    ):
        assert part in str(caught.value)
    with pytest.raises(PenstockError, match="there is none"):
        choose([], 0, 0)


@given(free=st.lists(st.integers(0, 1000) | st.just("broken"), min_size=1, max_size=6), reserve=st.integers(0, 500))
def test_whatever_is_chosen_keeps_the_reserve(free: list[int | str], reserve: int) -> None:
    """A choice is sound and has half of the best's room above the reserve; there is one if any has room."""
    of = spaces(*free)
    fit = [each - reserve for each in free if isinstance(each, int) and each > reserve]
    if not fit:
        with pytest.raises(PenstockError):
            choose(of, reserve, 0)
        return
    for at in turns(of, reserve, 12):
        assert not of[at].problem
        assert of[at].free - reserve >= max(fit) // 2


def test_real_directories(tmp_path: Path) -> None:
    """Looked at each time: one that goes away is passed over from then on, until none is left."""
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths[:2]:
        path.mkdir()
    paths[2].write_text("a file")
    directories = Directories(paths, reserve=1)
    assert Counter(directories.choose() for _ in range(10)) == {paths[0]: 5, paths[1]: 5}
    assert [bool(space.problem) for space in map(look, paths)] == [False, False, True]
    shutil.rmtree(paths[0])
    assert {directories.choose() for _ in range(3)} == {paths[1]}
    shutil.rmtree(paths[1])
    with pytest.raises(PenstockError) as caught:
        directories.choose()
    for path, problem in zip(paths, ("No such file", "No such file", "no directory"), strict=True):
        assert f"{path}: " in str(caught.value)
        assert problem in str(caught.value)
    assert look(tmp_path).free > 0
    with pytest.raises(PenstockError, match="bytes are free"):
        Directories([tmp_path], reserve=1 << 62).choose()


def test_a_directory_in_which_a_write_failed_is_left_out_for_a_while(tmp_path: Path) -> None:
    """Although it looks well; unless there is no other. After five minutes it gets another chance."""
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.mkdir()
    now = [0.0]
    directories = Directories(paths, clock=lambda: now[0])
    assert directories.note_failure(paths[0])
    assert not directories.note_failure(paths[0]), "it is said once"
    assert not directories.note_failure(tmp_path), "it is none of these"
    assert {directories.choose() for _ in range(4)} == {paths[1]}
    directories.note_failure(paths[1])
    assert {directories.choose() for _ in range(4)} == set(paths), "better one that has failed than none"
    now[0] += LEFT_OUT_SECONDS + 1
    directories.note_failure(paths[1])
    assert {directories.choose() for _ in range(4)} == {paths[0]}
