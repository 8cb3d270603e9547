# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on a real file system: complete or absent, damage found and named, one owner at a time."""

from __future__ import annotations

import errno
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgpack
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from failing_files import gated
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError, FencedError, NewerFormatError
from penstock.checkpoint.metadata import CheckpointMetadata, Chunk, PartHandle, decode, encode
from penstock.checkpoint.newest import NOTE, NewestNote
from penstock.checkpoint.ownership import Ownership
from penstock.checkpoint.removal import METADATA
from penstock.checkpoint.stamps import Owner, Stamp
from penstock.checkpoint.storage import CheckpointStorage, PartStorage
from penstock.machine.disk import Disk
from penstock.machine.locations import FILESYSTEMS
from penstock_torture.passing_files import PassingFiles
from underway import listed


def _taken(storage: CheckpointStorage, number: int, tasks: int = 2) -> CheckpointMetadata:
    """A whole checkpoint, committed."""
    stamp = storage.stamp(number)
    parts = {}
    for index in range(tasks):
        chunks = [(f"group-{g}", f"{number}/{index}/{g}".encode() * 50) for g in range(3)]
        parts[f"count.{index}"] = storage.write(stamp, f"count.{index}", chunks)
    metadata = CheckpointMetadata(number, 12.5, parts, ("source.0",), {"count": tasks}, 128, "splitmix")
    storage.commit(metadata)
    return metadata


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A folder that is not there yet."""
    return str(tmp_path / "deep" / "location")


def test_an_empty_location_has_nothing_to_go_on_from(location: str) -> None:
    """A first owner begins with epoch one and no checkpoint."""
    storage = CheckpointStorage(location)
    assert storage.claim().stamp is None
    assert str(storage.stamp(1)).startswith("chk-000000000001-000001-")


def test_a_file_is_no_location(tmp_path: Path) -> None:
    """The error names the option and says what it wants."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"checkpointLocation .*file' is a file: give the query a folder"):
        CheckpointStorage(str(tmp_path / "file")).claim()


def test_what_was_committed_comes_back(location: str) -> None:
    """A new driver finds the newest checkpoint, with every chunk as it was written; a task can read only some."""
    first = CheckpointStorage(location)
    first.claim()
    _taken(first, 1)
    metadata = _taken(first, 2)
    found = CheckpointStorage(location).claim()
    assert (found.stamp, found.metadata, found.unusable) == (first.stamp(2), metadata, ())
    part = metadata.parts["count.1"]
    assert dict(PartStorage(location).read(part))["group-2"] == b"2/1/2" * 50
    assert [name for name, _ in PartStorage(location).read(part, ["group-1"])] == ["group-1"]


def test_a_uri_and_a_path_are_the_same_place(location: str) -> None:
    """Locations are URIs of any file system Arrow knows; a plain path is this machine's."""
    storage = CheckpointStorage(location)
    storage.claim()
    _taken(storage, 1)
    assert CheckpointStorage(Path(location).as_uri()).claim().stamp == storage.stamp(1)
    with pytest.raises(CheckpointError, match="checkpointLocation 'nosuch://x/y'"):
        CheckpointStorage("nosuch://x/y")


def test_a_checkpoint_without_metadata_does_not_exist(location: str) -> None:
    """Parts alone, or metadata under its first name, are nothing to restore from."""
    storage = CheckpointStorage(location)
    storage.claim()
    _taken(storage, 1)
    storage.write(storage.stamp(2), "count.0", [("group-0", b"x")])
    Path(location, str(storage.stamp(2)), f"{METADATA}.new").write_bytes(b"half")
    assert storage.newest().stamp == storage.stamp(1)
    assert storage.newest().unusable == ()


@pytest.mark.parametrize(
    "harm", ["truncated", "flipped", "empty", "other file", "part missing", "part cut", "part flipped"]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(location: str, harm: str) -> None:
    """For any fault of the newest, a recovery begins with the one before and says which file is to blame."""
    storage = CheckpointStorage(location)
    storage.claim()
    _taken(storage, 1)
    _taken(storage, 2)
    folder = Path(location, str(storage.stamp(2)))
    metadata, part = folder / METADATA, folder / "count.1"
    data = metadata.read_bytes()
    match harm:
        case "truncated":
            metadata.write_bytes(data[:-5])
        case "flipped":
            metadata.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
        case "empty":
            metadata.write_bytes(b"")
        case "other file":
            metadata.write_bytes(b"PAR1" * 20)
        case "part missing":
            part.unlink()
        case "part cut":
            part.write_bytes(part.read_bytes()[:-1])
        case "part flipped":
            part.write_bytes(b"?" + part.read_bytes()[1:])
    found = CheckpointStorage(location).claim()
    assert found.stamp == storage.stamp(1)
    (unusable,) = found.unusable
    assert unusable.stamp == storage.stamp(2)
    assert str(part if harm.startswith("part") else metadata) in unusable.cause


def test_a_damaged_chunk_is_found_when_it_is_read(location: str) -> None:
    """One flipped bit in a part of the right size: the error names file and chunk."""
    storage = CheckpointStorage(location)
    storage.claim()
    metadata = _taken(storage, 1)
    part = Path(location, metadata.parts["count.0"].path)
    data = bytearray(part.read_bytes())
    data[metadata.parts["count.0"].pieces("group-1")[0].offset] ^= 4
    part.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=r"count\.0: chunk group-1"):
        dict(storage.read(metadata.parts["count.0"]))
    part.unlink()
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        dict(storage.read(metadata.parts["count.0"]))


def _refers(storage: CheckpointStorage, number: int, to: PartHandle) -> PartHandle:
    """A checkpoint of one task, committed: a chunk of its own between two of another part."""
    own = storage.write(storage.stamp(number), "slow.0", [("rows", b"own")])
    theirs = [replace(each, name="rows", file=to.path) for each in to.chunks]
    part = replace(own, chunks=(theirs[0], *own.chunks, theirs[2]))
    storage.commit(CheckpointMetadata(number, 0.0, {"slow.0": part}))
    return part


def test_a_chunk_may_lie_in_another_file_and_in_pieces(location: str) -> None:
    """Chunks of one name come in their order, wherever they are; a file that others refer to may grow."""
    storage = CheckpointStorage(location)
    storage.claim()
    other = _taken(storage, 1).parts["count.1"]
    part = _refers(storage, 2, other)
    assert [data for _, data in storage.read(part, ["rows"])] == [b"1/1/0" * 50, b"own", b"1/1/2" * 50]
    assert part.referred == {other.path: other.size}
    assert storage.newest().metadata == CheckpointMetadata(2, 0.0, {"slow.0": part})
    with Path(location, other.path).open("ab") as file:
        file.write(b"more")
    assert [str(each.stamp) for each in storage.newest(9).kept] == [str(storage.stamp(2))]


@pytest.mark.parametrize("harm", ["missing", "cut", "flipped"])
def test_damage_of_a_file_that_is_referred_to_is_named(location: str, harm: str) -> None:
    """The checkpoint that refers to it can't be restored from, and the one before it is taken."""
    storage = CheckpointStorage(location)
    storage.claim()
    other = _taken(storage, 1).parts["count.1"]
    _taken(storage, 2)
    part = _refers(storage, 3, other)
    path = Path(location, other.path)
    match harm:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case "flipped":
            path.write_bytes(b"?" + path.read_bytes()[1:])
    found = CheckpointStorage(location).claim()
    assert found.stamp == storage.stamp(2)
    (unusable,) = found.unusable
    assert (unusable.stamp, str(path) in unusable.cause) == (storage.stamp(3), True)
    with pytest.raises(CorruptCheckpointError, match=str(path)):
        list(storage.read(part))


def test_an_owner_that_was_replaced_may_not_commit(location: str) -> None:
    """The first driver finds out at its next commit, and nothing of that commit counts."""
    first, second = CheckpointStorage(location), CheckpointStorage(location)
    first.claim()
    _taken(first, 1)
    assert second.claim().stamp == first.stamp(1)
    with pytest.raises(FencedError, match="epoch 2, ours was 1"):
        _taken(first, 2)
    _taken(second, 2)
    assert CheckpointStorage(location).claim().stamp == second.stamp(2)


def test_a_late_write_of_a_replaced_owner_changes_nothing(location: str) -> None:
    """A driver paused between its check and its move: its checkpoint is there, and nobody goes on from it."""
    first, second = CheckpointStorage(location), CheckpointStorage(location)
    first.claim()
    _taken(first, 1)
    _taken(first, 2)
    held, note = Path(location, str(first.stamp(2))), Path(location, NOTE)
    held.rename(held.with_name("away"))  # not there yet, as the second driver looks
    note.rename(note.with_name("note"))
    assert second.claim().stamp == first.stamp(1)
    held.with_name("away").rename(held)
    note.with_name("note").rename(note)
    assert CheckpointStorage(location).claim().stamp == first.stamp(1)
    third = CheckpointStorage(location)
    third.claim()
    _taken(third, 2)
    assert third.newest().stamp == third.stamp(2)


def test_an_owner_that_was_replaced_removes_nothing(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was replaced as its checkpoint became complete: it takes that for failed, the new one goes on from it."""
    first, second = CheckpointStorage(location), CheckpointStorage(location)
    first.claim()
    _taken(first, 1)
    looks = []
    check = Ownership.check

    def replaced(self: Ownership) -> None:
        looks.append(self)
        if len(looks) == 2:
            monkeypatch.setattr(Ownership, "check", check)
            assert second.claim().stamp == first.stamp(2)
        check(self)

    monkeypatch.setattr(Ownership, "check", replaced)
    with pytest.raises(FencedError):
        _taken(first, 2)
    with pytest.raises(FencedError):
        first.discard(first.stamp(2))
    with pytest.raises(FencedError):
        first.discard_logs(3)
    assert CheckpointStorage(location).claim().stamp == first.stamp(2)


def test_the_previous_owners_checkpoints_are_there_if_the_newest_fails(location: str) -> None:
    """The lineage goes back over owners: each one's checkpoints up to where its successor went on."""
    first = CheckpointStorage(location)
    first.claim()
    _taken(first, 1)
    second = CheckpointStorage(location)
    second.claim()
    _taken(second, 2)
    Path(location, str(second.stamp(2)), METADATA).write_bytes(b"")
    found = CheckpointStorage(location).claim()
    assert found.stamp == first.stamp(1)
    assert [unusable.stamp for unusable in found.unusable] == [second.stamp(2)]


def test_checkpoints_without_their_owners_are_refused_and_left(location: str) -> None:
    """A location of which only the checkpoints were copied: to begin anew there would remove all of them."""
    first = CheckpointStorage(location)
    first.claim()
    _taken(first, 1)
    first.write(first.stamp(2), "count.0", [("group-0", b"x")])
    for file in listed(Path(location, "owners")):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"owners does not say who made chk-0.*copy or move .* as a whole"):
        CheckpointStorage(location).claim()
    assert Path(location, str(first.stamp(1)), METADATA).is_file()


def test_what_is_no_checkpoint_is_no_owners_concern(location: str) -> None:
    """A folder of an unknown owner without metadata is what somebody left: it refuses nothing."""
    Path(location, str(Stamp(9, Owner(9)))).mkdir(parents=True)
    assert CheckpointStorage(location).claim().stamp is None


def test_a_file_that_comes_late_keeps_no_folder(location: str) -> None:
    """A task has not heard yet that its checkpoint was given up: the folder is removed with what it has written."""
    late = iter([1, 2])

    def grown(name: str, path: str) -> None:
        """A removal finds the folder grown meanwhile, twice."""
        if name == "delete_dir" and (number := next(late, 0)):
            Path(path, f"count.{number}").touch()
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

    storage = gated(location, grown)
    storage.claim()
    stamp = storage.stamp(1)
    storage.write(stamp, "count.0", [("group-0", b"x")])

    storage.discard(stamp)
    assert not Path(location, str(stamp)).exists()
    assert next(late, 0) == 0


def test_sweeping_leaves_what_is_kept(location: str) -> None:
    """Old, abandoned and fenced checkpoints go, kept ones stay whole."""
    storage = CheckpointStorage(location)
    storage.claim()
    for number in (1, 2, 3):
        metadata = _taken(storage, number)
    storage.write(storage.stamp(4), "count.0", [("group-0", b"x")])
    assert [stamp.number for stamp in storage.sweep([storage.stamp(3)])] == [1, 2], "the newest one is under way"
    assert storage.newest().metadata == metadata
    for number in (3, 3, 4):
        storage.discard(storage.stamp(number))
    assert sorted(p.name for p in listed(Path(location))) == ["owners"]


def test_a_full_file_system_leaves_no_checkpoint(tmp_path: Path) -> None:
    """No space for a part or for the metadata: an OSError, and the checkpoint before still counts."""
    disk = Path("/dev/full")
    assert disk.exists()
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    _taken(storage, 1)
    folder = tmp_path / str(storage.stamp(2))
    folder.mkdir()
    (folder / "count.0").symlink_to(disk)
    with pytest.raises(OSError, match="No space left"):
        storage.write(storage.stamp(2), "count.0", [("group-0", b"x" * 100_000)])
    (folder / f"{METADATA}.new").symlink_to(disk)
    with pytest.raises(OSError, match="No space left"):
        storage.commit(CheckpointMetadata(2, 0.0, {}))
    assert storage.newest().stamp == storage.stamp(1)


def test_metadata_of_another_version_is_refused() -> None:
    """A newer format is named, and is no damage: it is not guessed at, and no older checkpoint is taken for it."""
    data = bytearray(encode(CheckpointMetadata(1, 0.0, {})))
    data[8] = 9
    with pytest.raises(NewerFormatError, match="format version 9"):
        decode(bytes(data), "somewhere")
    data[-1] ^= 1
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        decode(bytes(data), "somewhere")


def test_metadata_of_the_version_before_is_read() -> None:
    """Its chunks name no file: they are their part's own."""
    part = PartHandle("chk-1/count.0", 9, (Chunk("rows", 0, 9, 7),))
    data = encode(CheckpointMetadata(1, 0.0, {"count.0": part}))
    body = msgpack.unpackb(data[28:])
    body["parts"]["count.0"][2] = [chunk[:4] for chunk in body["parts"]["count.0"][2]]
    old = msgpack.packb(body)
    written = struct.pack("<8sIQQ", data[:8], 2, len(old), xxhash.xxh3_64_intdigest(old)) + old
    assert decode(written, "somewhere") == decode(data, "somewhere") == CheckpointMetadata(1, 0.0, {"count.0": part})


_SHOWN: dict[str, Callable[[fs.FileSystem], PassingFiles]] = {}


def shown(below: fs.FileSystem) -> fs.FileSystem:
    """A location as a test shows it."""
    return fs.PyFileSystem(_SHOWN["now"](below))


def _show(monkeypatch: pytest.MonkeyPatch, handler: Callable[[fs.FileSystem], PassingFiles]) -> None:
    """All locations that are opened from now on are seen through this."""
    monkeypatch.setitem(_SHOWN, "now", handler)
    monkeypatch.setenv(FILESYSTEMS, f"{__name__}:shown")


class _Partly(PassingFiles):
    """Lists what `shown` lets through of the location itself."""

    def __init__(self, below: fs.FileSystem, shown: Callable[[str], bool]) -> None:
        super().__init__(below)
        self._shown = shown

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Some of a list."""
        return [info for info in super().get_file_info_selector(selector) if self._shown(info.base_name)]


def test_the_newest_is_found_by_its_name_where_a_list_lacks_it(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start behind a list in part goes on from the newest checkpoint all the same, and never from an older one."""
    first = CheckpointStorage(location)
    first.claim()
    for number in (1, 2):
        _taken(first, number)
    lacking = str(first.stamp(2))
    _show(monkeypatch, lambda below: _Partly(below, lacking.__ne__))
    assert CheckpointStorage(location).look().stamp == first.stamp(2)
    assert CheckpointStorage(location).claim().stamp == first.stamp(2)


def test_a_location_without_its_newest_is_away(location: str) -> None:
    """It is refused, with the way to go on from an older one; a replaced owner's late word does not count."""
    first, second = CheckpointStorage(location), CheckpointStorage(location)
    first.claim()
    for number in (1, 2):
        _taken(first, number)
    shutil.rmtree(Path(location, str(first.stamp(2))))
    with pytest.raises(CheckpointError, match=r"does not show .*its newest checkpoint.*remove the file newest"):
        CheckpointStorage(location).claim()
    held = Path(location, NOTE).read_bytes()
    Path(location, NOTE).unlink()
    assert second.claim().stamp == first.stamp(1)
    _taken(second, 2)
    Path(location, NOTE).write_bytes(held)  # as by one who was replaced, and is late
    assert CheckpointStorage(location).look().stamp == second.stamp(2)


def test_nobody_is_told_of_a_newest_that_was_removed(location: str) -> None:
    """One that can't be restored from is dropped; the next start goes on from the one before, without a word."""
    storage = CheckpointStorage(location)
    storage.claim()
    for number in (1, 2):
        _taken(storage, number)
    storage.discard(storage.stamp(2))
    assert not Path(location, NOTE).exists()
    assert CheckpointStorage(location).claim().stamp == storage.stamp(1)


class _FullForNotes(PassingFiles):
    """Takes no more bytes of a note while `is_full` says so."""

    is_full: ClassVar = [True]

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        """Fail as a full disk does."""
        if NOTE in path and self.is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().open_output_stream(path, metadata)


def test_a_disk_that_is_full_for_the_note_fails_one_checkpoint(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not exist then, and nobody waits for its note; the next one counts, and leaves nothing beside it."""
    _show(monkeypatch, _FullForNotes)
    storage = CheckpointStorage(location)
    storage.claim()
    with pytest.raises(OSError, match="No space left"):
        _taken(storage, 1)
    assert storage.newest().stamp is None
    _FullForNotes.is_full[0] = False
    _taken(storage, 2)
    assert CheckpointStorage(location).look().stamp == storage.stamp(2)
    assert [path.name for path in listed(Path(location), f"{NOTE}*")] == [NOTE]


@given(st.binary(max_size=90) | st.integers(0, 89).map(lambda cut: _NOTE_OF_SEVEN[:cut]))
def test_a_note_that_is_not_whole_says_nothing(data: bytes) -> None:
    """Any bytes in its place are a note that was written, or none."""
    with tempfile.TemporaryDirectory() as folder:
        here = fs.LocalFileSystem()
        note = NewestNote(here, folder, Disk(here))
        Path(folder, NOTE).write_bytes(data)
        assert note.read() == (_SEVEN if data == _NOTE_OF_SEVEN else None)
        note.write(_SEVEN)
        assert Path(folder, NOTE).read_bytes() == _NOTE_OF_SEVEN
        assert note.read() == _SEVEN


_SEVEN = Stamp(7, Owner(3, "ab12"))
_NOTE_OF_SEVEN = b"penstock-newest-1 chk-000000000007-000003-ab12 a91c804dda54926f\n"
