# SPDX-License-Identifier: Apache-2.0
"""A folder on a mount that drops: listings that lack files, files that come back, old ones that are renamed in."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dropping_mount import Mount
from effort import examples
from penstock.api.line_formats import TextLines
from penstock.errors import SettingError
from penstock.stream import known_files
from penstock.stream.arriving_files import FilesReader, FilesSource, World
from penstock.stream.file_progress import FileProgress
from penstock.stream.file_rows import LineFileFormat
from penstock.stream.folder_looks import LooksAtOnce, LooksBeside
from penstock.stream.known_files import DAY_SECONDS, KEPT_DAYS
from penstock.testing import VirtualClock, wait_until
from underway import listed

BEGIN = 20_000 * DAY_SECONDS
"""A day long after the epoch."""


class Folder:
    """A folder of text files, its mount, and the time there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mount = Mount()
        self.clock = VirtualClock()
        self.rows: list[str] = []
        """Of all files that were put there."""

    @property
    def wall(self) -> float:
        """Seconds since the epoch."""
        return BEGIN + self.clock()

    def put(self, name: str, rows: int = 2, days: float = 0) -> None:
        """A file, renamed in, that was changed so many days ago."""
        lines = [f"{name}:{row}" for row in range(rows)]
        hidden = self.path / f".{name}"
        hidden.write_text("".join(f"{line}\n" for line in lines))
        os.utime(hidden, (self.wall - days * DAY_SECONDS,) * 2)
        hidden.rename(self.path / name)
        self.rows += lines

    def reader(
        self, states: Sequence[bytes] = (), share: tuple[int, int] = (0, 1), *, is_bounded: bool = False
    ) -> FilesReader:
        """A subtask's reader, which looks whenever it has nothing to read."""
        source = FilesSource(
            pafs.PyFileSystem(self.mount),
            str(self.path),
            LineFileFormat(TextLines()),
            is_bounded,
            listing_seconds=0.0,
        )
        progress = FileProgress.restored(states, *share)
        world = World(LooksAtOnce(), self.clock, lambda: self.wall)
        return FilesReader(source, share, progress, world)


def taken(reader: FilesReader, polls: int = 50, most: int = 100) -> list[str]:
    """The rows that so many polls give."""
    found: list[str] = []
    for _ in range(polls):
        batch = reader.poll(most)
        found += [] if batch is None else batch.column(0).to_pylist()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """One that has nothing yet."""
    return Folder(tmp_path)


def test_a_folder_that_lists_empty_is_not_read_again(folder: Folder) -> None:
    """The mount drops for some looks, in the reader that has read and in one that is restored meanwhile."""
    for name in "abcd":
        folder.put(name)
    reader = folder.reader()
    found = taken(reader)
    folder.mount.lacks = lambda _: True
    found += taken(reader)
    restored = folder.reader([reader.snapshot()])
    found += taken(restored)
    folder.mount.lacks = lambda _: False
    found += taken(reader)
    found += taken(restored)
    assert found == folder.rows


def test_new_files_are_read_while_others_are_not_listed(folder: Folder) -> None:
    """A part of the folder is away."""
    folder.put("a")
    reader = folder.reader()
    found = taken(reader)
    folder.mount.lacks = "a".__eq__
    folder.put("b")
    found += taken(reader)
    folder.mount.lacks = lambda _: False
    found += taken(reader)
    assert found == folder.rows


def test_an_old_file_that_is_renamed_in_is_read(folder: Folder) -> None:
    """It keeps its time, which is before that of all files that were read."""
    folder.put("a")
    reader = folder.reader()
    found = taken(reader)
    folder.put("b", days=400)
    folder.put("c", days=400)
    found += taken(folder.reader([reader.snapshot()]))
    assert found == folder.rows


def test_names_are_forgotten_by_age_and_then_refused(folder: Folder) -> None:
    """A name that left long ago takes no room; a file of its time is refused, until it is touched."""
    folder.put("a")
    reader = folder.reader()
    taken(reader)
    (folder.path / "a").rename(folder.path.parent / "away")
    folder.clock.advance((KEPT_DAYS - 1) * DAY_SECONDS)
    folder.put("b")
    taken(reader)
    assert FileProgress.restored([reader.snapshot()], 0, 1).known.count == 2
    folder.clock.advance(3 * DAY_SECONDS)
    folder.put("c")
    taken(reader)
    taken(reader)
    state = reader.snapshot()
    assert FileProgress.restored([state], 0, 1).known.count == 2
    (folder.path.parent / "away").rename(folder.path / "a")
    with pytest.raises(SettingError, match=r"text files of .*: a was changed on 20\d\d-.*touch it"):
        taken(folder.reader([state]))
    os.utime(folder.path / "a", (folder.wall, folder.wall))
    assert taken(folder.reader([state])) == ["a:0", "a:1"]


def test_the_first_young_file_of_an_old_folder_makes_no_name_old(folder: Folder) -> None:
    """The folder's time jumps while an old file that was read is not listed."""
    folder.put("a", days=400)
    reader = folder.reader()
    found = taken(reader)
    folder.mount.lacks = "a".__eq__
    folder.put("b")
    found += taken(reader)
    folder.mount.lacks = lambda _: False
    found += taken(reader)
    assert found == folder.rows


def test_clocks_that_are_wrong_make_no_name_old(folder: Folder) -> None:
    """A file of the year 2099, and a reader's clock that is ten years ahead for a while."""
    for name, days in (("a", 0.0), ("future", -25_000.0), ("b", 0.0)):
        folder.put(name, days=days)
    reader = folder.reader()
    found = taken(reader)
    folder.clock.advance(3650 * DAY_SECONDS)
    found += taken(reader)
    folder.mount.lacks = lambda _: True
    found += taken(reader)
    reader = folder.reader([reader.snapshot()])
    folder.mount.lacks = "future".__eq__
    found += taken(reader)
    folder.mount.lacks = lambda _: False
    found += taken(reader)
    folder.put("c", days=3650)
    found += taken(reader)
    assert Counter(found) == Counter(folder.rows)


def test_a_file_that_is_half_read_and_gone_is_waited_for(folder: Folder) -> None:
    """Others are read meanwhile, and the rest of it when it is back; all over a restart, and no row twice."""
    folder.put("a", rows=4)
    reader = folder.reader()
    found = taken(reader, polls=1, most=2)
    folder.mount.away, folder.mount.lacks = {"a"}, "a".__eq__
    restored = folder.reader([reader.snapshot()])
    folder.put("b")
    found += taken(restored)
    assert found == ["a:0", "a:1", "b:0", "b:1"]
    wake = restored.wake_at
    assert wake is not None
    assert wake <= folder.clock() + 0.5
    folder.clock.advance(100)
    restored = folder.reader([restored.snapshot()])
    found += taken(restored)
    folder.mount.away = set()
    folder.clock.advance(100)
    found += taken(restored)
    assert Counter(found) == Counter(folder.rows)


def test_a_file_that_is_half_read_and_stays_away_is_an_error(folder: Folder) -> None:
    """After minutes, which go on over restarts; never silence."""
    folder.put("a", rows=4)
    reader = folder.reader()
    taken(reader, polls=1, most=2)
    folder.mount.away, folder.mount.lacks = {"a"}, lambda _: True
    reader = folder.reader([reader.snapshot()])
    assert not taken(reader)
    folder.clock.advance(299)
    assert not taken(reader)
    reader = folder.reader([reader.snapshot()])
    assert not taken(reader)
    folder.clock.advance(2)
    with pytest.raises(SettingError, match="a is not read to its end, and could not be found for 301 s"):
        taken(reader)
    with pytest.raises(SettingError, match="could not be found"):
        taken(folder.reader([reader.snapshot()]))


def test_a_file_that_leaves_before_it_is_read_is_left_out(folder: Folder) -> None:
    """And read when it comes back."""
    folder.put("a")
    folder.mount.away = {"a"}
    reader = folder.reader()
    assert not taken(reader, polls=2)
    folder.mount.away = set()
    folder.clock.advance(1)
    assert taken(reader) == folder.rows


@pytest.mark.parametrize("number", [5, 110, 2])
def test_a_read_that_fails_neither_skips_nor_doubles(folder: Folder, number: int) -> None:
    """Of the folder or of a file, EIO, ETIMEDOUT or ENOENT; whether the reader is asked again or another goes on."""
    folder.put("a", rows=4)
    folder.put("b", rows=4)
    for is_restarted in (False, True):
        reader, found = folder.reader(), []
        for failing in range(12):
            if failing % 2:
                folder.mount.errors = [OSError(number, "broken")]
            try:
                found += taken(reader, polls=1, most=3)
            except OSError:
                assert not folder.mount.errors
            folder.mount.errors = []
            if is_restarted:
                reader = folder.reader([reader.snapshot()])
        folder.clock.advance(20)
        found += taken(reader)
        assert Counter(found) == Counter(folder.rows)


def test_a_bounded_source_reads_what_its_first_listing_had(folder: Folder) -> None:
    """Later ones may lack files or have more, over a restart with two subtasks."""
    for name in "abcdef":
        folder.put(name)
    expected = list(folder.rows)
    reader = folder.reader(is_bounded=True)
    found = taken(reader, polls=3, most=1)
    folder.mount.lacks = lambda _: True
    folder.put("g")
    for subtask in range(2):
        restored = folder.reader([reader.snapshot()], (subtask, 2), is_bounded=True)
        found += taken(restored)
        assert restored.is_ended
    assert Counter(found) == Counter(expected)


def test_a_snapshot_ahead_of_the_first_look_holds_no_others_positions(folder: Folder) -> None:
    """Two changes of the number of subtasks, one right after the other: the farthest positions count."""
    name = next(name for name in "abcdefghij" if known_files.hash_of(name) % 3 == 0)
    folder.put(name, rows=6)
    reader = folder.reader()
    found = taken(reader, polls=1, most=2)
    ahead = [folder.reader([reader.snapshot()], (subtask, 3)) for subtask in range(3)]
    readers = [folder.reader([state.snapshot()], (subtask, 3)) for subtask, state in enumerate(ahead)]
    found += taken(readers[0], polls=1, most=2)
    states = [reader.snapshot() for reader in readers]
    for subtask in range(2):
        found += taken(folder.reader(states, (subtask, 2)))
    assert Counter(found) == Counter(folder.rows)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_each_row_is_read_once_whatever_listings_lack(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """New and old files, listings with random gaps, files that leave, days that pass, restarts with other widths.

    A file may be refused if it is older than a week, and names were away for a week. It is new then: it is touched.
    """
    folder = Folder(tmp_path_factory.mktemp("files"))
    found: list[str] = []
    left: set[str] = set()
    readers = [folder.reader()]
    names = iter(range(1000))

    def poll(times: int) -> None:
        for reader in readers:
            try:
                found.extend(taken(reader, times, data.draw(st.integers(1, 3))))
            except SettingError as error:
                refused = str(error).partition(": ")[2].partition(" ")[0]
                age = folder.wall - (folder.path / refused).stat().st_mtime
                if age < (KEPT_DAYS - 1) * DAY_SECONDS:
                    raise
                os.utime(folder.path / refused, (folder.wall,) * 2)

    def settle() -> None:
        folder.mount.lacks = lambda _: False
        for _ in range(8):
            poll(20)

    steps = st.sampled_from(["new", "old", "gaps", "empty", "well", "leave", "days", "restart", "poll"])
    for step in data.draw(st.lists(steps, max_size=12)):
        if step in ("new", "old"):
            folder.put(
                f"f{next(names)}", data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20)) * (step == "old")
            )
        elif step == "gaps":
            hidden = data.draw(st.sets(st.integers(0, 7)))
            folder.mount.lacks = functools.partial(_is_hidden, hidden)
        elif step == "empty":
            folder.mount.lacks = lambda _: True
        elif step == "well":
            folder.mount.lacks = lambda _: False
        elif step == "leave":
            settle()  # what leaves was read: else its rows are nobody's
            for path in listed(folder.path)[: data.draw(st.integers(0, 2))]:
                path.unlink()
                left.add(path.name)
        elif step == "days":
            folder.clock.advance(data.draw(st.integers(1, 5)) * DAY_SECONDS)
        elif step == "restart":
            width = data.draw(st.integers(1, 3))
            states = [reader.snapshot() for reader in readers]
            for reader in readers:
                reader.close()
            readers = [folder.reader(states, (subtask, width)) for subtask in range(width)]
        poll(data.draw(st.integers(0, 3)))
    settle()
    assert Counter(found) == Counter(folder.rows)


def _is_hidden(hidden: set[int], name: str) -> bool:
    return int(name[1:]) % 8 in hidden


def test_files_without_rows_hold_up_nobody(folder: Folder) -> None:
    """A poll gives up after some of them, and the next one goes on."""
    for number in range(50):
        folder.put(f"empty-{number}", rows=0)
    folder.put("full")
    source = FilesSource(pafs.LocalFileSystem(), str(folder.path), LineFileFormat(TextLines()))
    times = itertools.count(step=0.005)
    reader = FilesReader(source, (0, 1), FileProgress(), World(LooksAtOnce(), lambda: next(times)))
    assert not taken(reader, polls=5)
    assert reader.wake_at is None
    assert taken(reader, polls=60) == folder.rows


def test_a_look_holds_up_nobody(folder: Folder) -> None:
    """While the listing hangs the reader answers at once, and goes away when it is closed."""
    folder.put("a")
    reader = FilesReader(
        FilesSource(pafs.PyFileSystem(folder.mount), str(folder.path), LineFileFormat(TextLines())),
        (0, 1),
        FileProgress(),
        World(LooksBeside("0")),
    )
    folder.mount.may_list.clear()
    assert not taken(reader, polls=20)
    assert folder.mount.listings == 0
    wake = reader.wake_at
    assert wake is not None
    reader.snapshot()
    folder.mount.may_list.set()
    found: list[str] = []

    def has_rows() -> bool:
        found.extend(taken(reader, polls=1))
        return found == folder.rows

    wait_until(has_rows, "the rows")
    reader.close()


def test_a_look_that_hangs_is_an_error_after_minutes(folder: Folder) -> None:
    """One of the world's: nobody would hear that nothing is read any more."""
    source = FilesSource(pafs.PyFileSystem(folder.mount), str(folder.path), LineFileFormat(TextLines()))
    reader = FilesReader(source, (0, 1), FileProgress(), World(LooksBeside("0"), folder.clock))
    folder.mount.may_list.clear()
    assert not taken(reader, polls=2)
    folder.clock.advance(599)
    assert not taken(reader, polls=2)
    folder.clock.advance(2)
    with pytest.raises(TimeoutError, match="was not listed within 600 s"):
        taken(reader, polls=1)
    folder.mount.may_list.set()
    reader.close()


def test_a_look_that_fails_beside_is_raised_in_the_task(folder: Folder) -> None:
    """And the next one is well."""
    folder.put("a")
    folder.mount.errors = [OSError(5, "broken")]
    source = FilesSource(
        pafs.PyFileSystem(folder.mount), str(folder.path), LineFileFormat(TextLines()), listing_seconds=0
    )
    reader = source.open(0, 1, [])

    def fails() -> bool:
        try:
            taken(reader, polls=1)
        except OSError:
            return True
        return False

    wait_until(fails, "the error")
    wait_until(lambda: taken(reader, polls=1) == folder.rows, "the rows")
    reader.close()


def test_many_new_files_are_taken_one_by_one(folder: Folder) -> None:
    """In their order, at a cost that does not grow with what was taken."""
    progress = FileProgress()
    names = {f"part-{number:08d}": number for number in range(200_000)}
    progress.hand_over()
    progress.looked(known_files.KnownFiles(), dict(reversed(names.items())))
    began = time.process_time()
    for number in range(100_000):
        assert progress.begin_next() == f"part-{number:08d}"
    assert time.process_time() - began < 5


def test_two_hundred_thousand_names_are_few_bytes(folder: Folder) -> None:
    """Eight bytes each, in any number of parts."""
    names = known_files.hashes_of([f"part-{number:08d}" for number in range(200_000)])
    progress = FileProgress(known_files.KnownFiles().plus([(20_000, names)]))
    state = progress.packed(is_bounded=False)
    assert len(state) < 1_601_000
    shares = [FileProgress.restored([state], subtask, 3).packed(is_bounded=False) for subtask in range(3)]
    assert FileProgress.restored(shares, 0, 1).packed(is_bounded=False) == state
