# SPDX-License-Identifier: Apache-2.0
"""A manager's state on a disk that is full: nothing is known that the log does not say, but what was let go."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import SettingError, StorageError
from penstock.remote import messages as ask
from penstock.remote.known_workers import ManagerLimits
from penstock.remote.logged_state import LoggedState
from penstock.remote.manager_state import ManagerState
from penstock.remote.state_log import StateLog, read_records
from penstock.shuffle import DatasetId, PartitionId
from small_disks import small_disk
from underway import listed

APP = "alice/one"


def partition(index: int) -> PartitionId:
    """A partition of the only dataset."""
    return PartitionId(DatasetId("job", 0), index, 0)


def fill(path: Path) -> None:
    """Take all the room of a disk."""
    with path.open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)):
            pass


def on_disk(folder: Path) -> list[object]:
    """The state that a manager would have that is started now."""
    state = ManagerState()
    for record in read_records(folder / "manager.log"):
        state.apply(record)
    return list(state.records())


def begin(kept: LoggedState, index: int) -> None:
    """A writer begins a partition."""
    kept.decided(lambda: kept.core.name(APP, ask.NamePartition(partition(index), 4), 0.0))
    kept.decided(lambda: kept.core.begin(APP, ask.StartPartition(partition(index), "host", index), 0.0))


def begin_until_full(kept: LoggedState) -> None:
    """Begin partitions until one is refused: a log's last page has room for some."""
    with pytest.raises(StorageError, match="See that the disk has room"):  # noqa: PT012 - which one nobody knows
        for index in range(10, 10_000):
            begin(kept, index)


def test_what_the_disk_has_no_room_for_was_never_decided(tmp_path: Path) -> None:
    """Refusals change nothing, questions are answered, what is let go counts, and all of it is written later."""
    with small_disk(tmp_path / "disk", 1) as disk:
        kept = LoggedState(disk, ManagerLimits(), 0.0)
        core = kept.core
        for worker in ("w0", "w1"):
            enroll = ask.Enroll(worker, f"tcp://h:{worker[1]}", ("start",))
            kept.decided(lambda enroll=enroll: core.workers.enroll(enroll, 0.0))  # type: ignore[misc]
        for index in (0, 1):
            begin(kept, index)
        kept.decided(lambda: core.finish(APP, ask.FinishPartition(partition(0), 0, ("w0",))))
        fill(disk / "ballast")
        begin_until_full(kept)
        assert kept.has_failed
        assert list(core.state.records()) == on_disk(disk)
        before = on_disk(disk)
        for refused in (
            lambda: core.finish(APP, ask.FinishPartition(partition(1), 1, ("w0",))),
            lambda: core.name(APP, ask.NamePartition(PartitionId(DatasetId("job", 1), 0, 0), 4), 0.0),
            lambda: core.names.keep(APP, ask.KeepResult("n", "a", b"", ask.packed_partitions([partition(0)])), 0.0),
            lambda: core.workers.enroll(ask.Enroll("w2", "tcp://h:2", ("start",)), 0.0),
        ):
            with pytest.raises(StorageError, match="See that the disk has room"):
                kept.decided(refused)
        assert list(core.state.records()) == on_disk(disk) == before
        kept.decided(lambda: core.begin(APP, ask.StartPartition(partition(1), "host", 1), 1.0))
        kept.freed(lambda: core.workers.lose("w1", "it burned"))
        kept.freed(lambda: core.release(APP, [partition(0)]))
        assert core.find(APP, ask.FindPartitions((partition(0),)), 1.0).stories[0].state == "released"
        kept.look()
        assert kept.has_failed
        assert on_disk(disk) == before
        (disk / "ballast").unlink()
        kept.look()
        assert not kept.has_failed
        assert list(core.state.records()) == on_disk(disk) != before
        begin(kept, 5000)
        kept.close()
        again = LoggedState(disk, ManagerLimits(), 0.0)
        *known, history = again.core.state.records()
        assert known == list(core.state.records())[:-1]
        assert history[1] == core.state.history.records + 1, "it has been started once more"  # type: ignore[index]
        again.close()


def test_a_log_that_can_t_be_made_anew_goes_on(tmp_path: Path) -> None:
    """The new one is removed, the old one is whole and takes more; so it is after a kill in the middle of a write."""
    with small_disk(tmp_path / "disk", 1) as disk:
        log = StateLog(disk)
        log.append([("worker", "w0", "tcp://h:1")])
        fill(disk / "ballast")
        with pytest.raises(StorageError):
            log.replace([("worker", f"w{number}", "tcp://h:1") for number in range(1000)])
        with pytest.raises(StorageError):
            log.append([("worker", f"w{number}", "tcp://h:1") for number in range(1000)])
        assert sorted(path.name for path in listed(disk)) == ["ballast", "lock", "manager.log"]
        (disk / "ballast").unlink()
        log.append([("worker", "w1", "tcp://h:2")])
        log.try_room()
        log.append([("leaving", "w0")])
        log.close()
        assert [record[1] for record in read_records(disk / "manager.log")] == ["w0", "w1", "w0"]
        with (disk / "manager.log").open("ab") as torn:
            torn.write(bytes(5))
        log = StateLog(disk)
        log.read()
        log.append([("leaving", "w1")])
        log.close()
        assert [record[1] for record in read_records(disk / "manager.log")] == ["w0", "w1", "w0", "w1"]


def test_damage_is_told_from_an_end_that_was_cut(tmp_path: Path) -> None:
    """Whichever bit of a length flips, the log is refused and stays; zeros after the last record are cut off."""
    log, path = StateLog(tmp_path), tmp_path / "manager.log"
    log.append([("leaving", f"w{number}") for number in range(20)])
    log.close()
    whole = path.read_bytes()
    size = len(whole) // 20
    for bit in range(32):
        damaged = bytearray(whole)
        damaged[size * 3 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        log = StateLog(tmp_path)
        with pytest.raises(StorageError, match="is damaged at byte"):
            log.read()
        log.close()
        assert path.read_bytes() == damaged
    for tail in (bytes(4096), bytes(12), whole[: size - 1], whole[: size - 1] + bytes(3)):
        path.write_bytes(whole + tail)
        log = StateLog(tmp_path)
        if tail.endswith(bytes(3)) and any(tail):
            with pytest.raises(StorageError, match="damaged"):
                log.read()
        else:
            assert len(log.read()) == 20
            assert path.read_bytes() == whole
        log.close()


def test_a_log_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """As the folder is: whoever writes to it decides what the manager knows."""
    StateLog(tmp_path).close()
    for name in ("manager.log", "lock"):
        (tmp_path / name).chmod(0o666)
        with pytest.raises(SettingError, match=f"{name} is refused: others may use it"):
            StateLog(tmp_path)
        (tmp_path / name).chmod(0o600)
    StateLog(tmp_path).close()
