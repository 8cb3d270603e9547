# SPDX-License-Identifier: Apache-2.0
"""The manager places files, remembers across restarts, and loses exactly what a lost worker had."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.errors import (
    NoStorageError,
    PartitionLostError,
    PenstockError,
    ProtocolError,
    QuotaError,
    SettingError,
    StaleError,
    StorageError,
)
from penstock.lifecycle.table import as_markdown
from penstock.remote import kept_names, manager_core
from penstock.remote import messages as ask
from penstock.remote.known_workers import ManagerLimits
from penstock.remote.log_history import read_word, sealed_word
from penstock.remote.logged_state import LoggedState
from penstock.remote.manager_core import ManagerCore
from penstock.remote.manager_state import ManagerState
from penstock.remote.partition_states import REMOTE_TABLE, RemoteEvent, RemoteState
from penstock.remote.placement import Candidate, placed
from penstock.remote.state_log import StateLog
from penstock.shuffle import DatasetId, PartitionId
from source import ROOT

APP = "app-1"
GIB = 1 << 30
SECRET = b"of manager and workers"


def partition(index: int, attempt: int = 0, dataset: int = 0) -> PartitionId:
    """A partition of a job's dataset."""
    return PartitionId(DatasetId("job", dataset), index, attempt)


class Managed:
    """A core with workers, as their shells would call it."""

    def __init__(self, workers: int = 3, limits: ManagerLimits | None = None) -> None:
        self.core = ManagerCore(ManagerState(), limits or ManagerLimits(), 0.0)
        for number in range(workers):
            self.core.workers.enroll(ask.Enroll(f"w{number}", f"tcp://h:{number + 1}", (f"start of w{number}",)), 0.0)
            self.beat(f"w{number}")

    def beat(self, worker: str, now: float = 0.0, *held: tuple[str, str, tuple[int, ...]]) -> ask.Orders:
        """A worker lives."""
        return self.core.workers.beat(worker, ask.Beat(GIB, 0.0, False, held), now)

    def begin(self, which: PartitionId, files: int = 4, writer: int = 1) -> ask.Located:
        """Name a partition, and begin to write it."""
        self.core.name(APP, ask.NamePartition(which, files), 0.0)
        return self.core.begin(APP, ask.StartPartition(which, "host", writer), 0.0)

    def finish(self, which: PartitionId, *workers: str, writer: int = 1) -> None:
        """Finish it with rows at these workers."""
        self.core.finish(APP, ask.FinishPartition(which, writer, workers))

    def state(self, which: PartitionId) -> str:
        """The state that a reader is told."""
        return self.core.find(APP, ask.FindPartitions((which,)), 0.0).stories[0].state


def test_the_files_of_a_dataset_go_where_room_is() -> None:
    """By free space and load, in proportion, none to one without room, and the same for the same input."""
    candidates = [Candidate("a", 3 * GIB), Candidate("b", GIB), Candidate("c", 3 * GIB, load=1.0), Candidate("d", 0)]
    found = placed(430, candidates)
    counts = {name: found.count(name) for name in "abcd"}
    assert counts == {"a": 300, "b": 100, "c": 30, "d": 0}
    assert placed(430, candidates) == found
    assert placed(3, [Candidate("d", 0)]) == []


def test_the_name_of_a_job_has_so_many_bytes() -> None:
    """Letters have up to four, and the manager has a name for each partition."""
    managed = Managed()
    for letter, count in (("a", 1000), ("\N{GRINNING FACE}", 250)):
        managed.begin(PartitionId(DatasetId(letter * count, 0), 0, 0))
        with pytest.raises(ProtocolError, match=r"has 1,00\d bytes: 1,000 is the limit"):
            managed.begin(PartitionId(DatasetId(letter * (count + 1), 0), 0, 0))


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1)), min_size=1, max_size=6), st.integers(0, 60))
def test_no_worker_is_far_from_its_share(workers: list[tuple[int, float]], files: int) -> None:
    """Each gets its share, give or take one file."""
    candidates = [Candidate(f"w{number}", free, load) for number, (free, load) in enumerate(workers)]
    found = placed(files, candidates)
    assert len(found) == files
    total = sum(each.weight for each in candidates)
    for each in candidates:
        assert abs(found.count(each.worker) - files * each.weight / total) <= len(candidates)


def test_a_lost_worker_takes_what_it_has_rows_of_and_nothing_else() -> None:
    """Complete partitions with rows there and open ones are lost; the driver is told exactly these."""
    managed = Managed()
    for index in range(4):
        managed.begin(partition(index))
    managed.finish(partition(0), "w0", "w1")
    managed.finish(partition(1), "w0", "w2")
    managed.finish(partition(2))
    managed.core.workers.lose("w1", "it burned")
    states = [managed.state(partition(index)) for index in range(4)]
    assert states == ["lost", "complete", "complete", "lost"]
    losses = managed.core.losses(APP, 0, 1.0)
    assert losses is not None
    assert set(losses.partitions) == {partition(0), partition(3)}
    assert "it burned" in losses.cause
    assert managed.core.losses(APP, losses.last, 1.0) is None
    with pytest.raises(PartitionLostError):
        managed.finish(partition(3), "w0")
    with pytest.raises(StaleError):
        managed.beat("w1")
    again = managed.begin(partition(3, attempt=1))
    assert "w1" not in {places[-1] for places in again.places}, "its files have moved"


def test_silent_workers_and_drivers_are_given_up() -> None:
    """A worker after its silence, an application after its lease."""
    managed = Managed(limits=ManagerLimits(silence=10, lease=100))
    managed.begin(partition(0))
    managed.finish(partition(0), "w0")
    for worker in ("w1", "w2"):
        managed.beat(worker, 11.0)
    assert managed.core.pass_time(11.0) == ["w0"]
    assert managed.state(partition(0)) == "lost"
    managed.core.losses(APP, 0, 11.0)
    for now in (20.0, 30.0):
        managed.beat("w1", now)
    managed.core.pass_time(110.0)
    assert managed.core.state.partitions
    managed.core.pass_time(112.0)
    assert not managed.core.state.partitions
    assert not managed.core.state.datasets


def test_the_first_to_finish_has_it_and_late_ones_are_stale() -> None:
    """Of two writers of one attempt the first wins; one that was released or failed meanwhile can't finish."""
    managed = Managed()
    managed.begin(partition(0), writer=1)
    managed.begin(partition(0), writer=2)
    managed.finish(partition(0), "w0", writer=2)
    managed.finish(partition(0), "w0", writer=2)
    with pytest.raises(StaleError):
        managed.finish(partition(0), "w0", writer=1)
    managed.begin(partition(1))
    managed.core.release(APP, [partition(1)])
    with pytest.raises(StaleError, match="released"):
        managed.finish(partition(1), "w0")
    managed.begin(partition(2), writer=5)
    managed.core.fail(APP, ask.FailPartition(partition(2), 5, "ValueError: no"))
    assert managed.state(partition(2)) == "failed"
    with pytest.raises(StaleError, match="failed"):
        managed.core.begin(APP, ask.StartPartition(partition(2), "host", 6), 0.0)


def kept(name: str, result: str, *partitions: PartitionId) -> ask.KeepResult:
    """Keep these under a name."""
    return ask.KeepResult(name, result, result.encode(), ask.packed_partitions(partitions))


def test_a_name_outlives_its_application_and_is_the_users() -> None:
    """Another application of the user finds and reads it, one of another user does not; it goes with its lease."""
    managed = Managed(limits=ManagerLimits(lease=100, kept_lease=1000, silence=1e9))
    core = managed.core
    mine, other, stranger = "alice/one", "alice/two", "bob/one"
    for index in (0, 1):
        core.name(mine, ask.NamePartition(partition(index), 1), 0.0)
        core.begin(mine, ask.StartPartition(partition(index), "host", index + 1), 0.0)
        core.finish(mine, ask.FinishPartition(partition(index), index + 1, ("w0",)))
    core.names.keep(mine, kept("n", "a1", partition(0)), 0.0)
    with pytest.raises(PartitionLostError, match="under another name"):
        core.names.keep(mine, kept("m", "a2", partition(0)), 0.0)
    core.release(mine, [partition(0)])
    core.end_job(mine, "job")
    core.end_application(mine)
    core.take_records()
    find = ask.FindPartitions((partition(0), partition(1)), "a1")
    assert core.names.find(other, "n", 900.0) == ask.FoundResult("a1", b"a1")
    assert [story.state for story in core.find(other, find, 900.0).stories] == ["complete", "released"]
    assert core.find(other, find, 900.0).located["job-e0"].owner == mine
    assert core.names.find(stranger, "n", 900.0) == ask.FoundResult()
    assert {story.state for story in core.find(stranger, find, 900.0).stories} == {"released"}
    assert managed.beat("w0", 0.0, (mine, "job-e0", (1, 2))).drops == ((mine, "job-e0", (2,)),)
    core.workers.lose("w0", "it burned")
    assert core.find(other, find, 900.0).stories[0].state == "complete", "it may come back"
    core.pass_time(1800.0)
    assert core.names.find(other, "n", 1800.0).result
    core.pass_time(2900.0)
    assert not core.names.find(other, "n", 2900.0).result
    assert not core.state.partitions


def test_the_last_whole_result_has_the_name() -> None:
    """Of two who keep at once the second has it, and the first one's rows go; asking again changes nothing."""
    managed = Managed()
    for index in (0, 1):
        managed.begin(partition(index), writer=index + 1)
        managed.finish(partition(index), "w0", writer=index + 1)
    names = managed.core.names
    names.keep(APP, kept("n", "a1", partition(0)), 0.0)
    names.keep(APP, kept("n", "a2", partition(1)), 0.0)
    names.keep(APP, kept("n", "a2", partition(1)), 0.0)
    assert names.find(APP, "n", 0.0).result == "a2"
    assert managed.state(partition(0)) == "released"
    assert managed.state(partition(1)) == "complete"
    gone = managed.core.find(APP, ask.FindPartitions((partition(0),), "a1"), 0.0)
    assert gone.stories[0].state == "released"


def test_one_users_words_do_not_fill_the_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a partition, entries of a user, names in a question, results of a user: all have a limit."""
    managed = Managed()
    core = managed.core
    monkeypatch.setattr(manager_core, "MOST_ENTRIES", 60)
    monkeypatch.setattr(kept_names, "MOST_BYTES", 155)
    refused: list[tuple[type[PenstockError], str, Callable[[], object]]] = [
        (SettingError, "100,000,000 subpartitions", lambda: managed.begin(partition(0), files=100_000_000)),
        (
            QuotaError,
            "has 51 entries at the",
            lambda: managed.begin(partition(1), files=10),
        ),
        (
            QuotaError,
            "has 32,769 partitions",
            lambda: core.names.keep(APP, kept("m", "r", *[partition(0)] * 32_769), 0.0),
        ),
        (QuotaError, "user app-1 has 1 names", lambda: core.names.keep(APP, kept("m", "r" * 60), 0.0)),
        (StaleError, "64 writers", lambda: managed.begin(partition(0), 9, 65)),
    ]
    for index in range(3):
        managed.begin(partition(index, dataset=index), files=9)
    for writer in range(64):
        core.begin(APP, ask.StartPartition(partition(0), "host", writer), 0.0)
    core.names.keep(APP, ask.KeepResult("n", "1", bytes(150), {}), 0.0)
    core.take_records()
    for kind, words, question in refused:
        with pytest.raises(kind, match=words):
            question()
    assert not core.take_records()
    core.end_application(APP)
    assert not core.state.entries


def test_a_silent_writer_is_given_up() -> None:
    """One that says that it is there stays; of two the silent one goes, and with the last one the partition."""
    managed = Managed(limits=ManagerLimits(lease=100, silence=1e9))
    core = managed.core
    for writer in (1, 2):
        managed.begin(partition(0), writer=writer)
    core.losses(APP, 0, 90.0)
    core.begin(APP, ask.StartPartition(partition(0), "host", 2), 90.0)
    core.pass_time(110.0)
    assert managed.beat("w0", 110.0, (APP, "job-e0", (1, 2))).drops == ((APP, "job-e0", (1,)),)
    core.losses(APP, 0, 180.0)
    core.pass_time(200.0)
    assert managed.state(partition(0)) == "failed"
    assert managed.beat("w0", 200.0, (APP, "job-e0", (2,))).drops == ((APP, "job-e0", (2,)),)
    with pytest.raises(StaleError, match="nothing was heard of its writer for 100 s"):
        core.begin(APP, ask.StartPartition(partition(0), "host", 2), 200.0)


def test_a_driver_that_asks_after_its_end_is_not_remembered() -> None:
    """Its last question was on its way when it said that it is over; while it has something here it is known."""
    managed = Managed(limits=ManagerLimits(lease=100, silence=1e9))
    managed.begin(partition(0))
    managed.core.losses(APP, 0, 10.0)
    assert vars(managed.core)["_drivers"] == {APP: 10.0}
    managed.core.end_application(APP)
    managed.core.losses(APP, 0, 11.0)
    assert not vars(managed.core)["_drivers"]


def test_a_question_that_waits_is_no_sign_of_life() -> None:
    """The driver has asked for losses, and has gone: its application is over when its lease has ended, or before."""
    managed = Managed(limits=ManagerLimits(lease=100, silence=1e9))
    managed.begin(partition(0))
    assert managed.core.losses(APP, 0, 10.0) is None
    for now in (50.0, 105.0, 115.0):
        assert managed.core.losses_since(APP, 0) is None
        managed.core.pass_time(now)
    assert managed.state(partition(0)) == "named", "nothing is known of it"
    assert not managed.core.state.datasets


def test_a_tasks_word_about_a_worker_counts_for_its_application_alone() -> None:
    """Files move; it is served elsewhere for a while, if there is an elsewhere. Others notice nothing."""
    managed = Managed(2, ManagerLimits(leave_out=60, silence=1e9))

    def places(application: str, dataset: int, now: float) -> set[str]:
        for worker in ("w0", "w1"):
            managed.beat(worker, now)
        managed.core.name(application, ask.NamePartition(partition(0, dataset=dataset), 4), now)
        return {places[-1] for places in managed.core.state.datasets[application, f"job-e{dataset}"].places}

    first = managed.begin(partition(0), files=2)
    full = first.places[0][-1]
    other = ({"w0", "w1"} - {full}).pop()
    asked = ask.MoveFiles(partition(0), (0,), full, "its disk takes no more")
    moved = managed.core.move(APP, asked, 1.0)
    assert moved.places[0] == (full, other)
    assert managed.core.move(APP, asked, 1.0) == moved
    assert list(managed.core.workers.sights.out_of(APP, 1.0)) == [full]
    assert places(APP, 1, 2.0) == {other}
    assert places("bob/app", 1, 2.0) == {"w0", "w1"}
    managed.core.move(APP, ask.MoveFiles(partition(0), (1,), other, "a firewall"), 2.0)
    assert places(APP, 2, 3.0) == {"w0", "w1"}, "there is no elsewhere"
    with pytest.raises(NoStorageError, match="left out are w"):
        managed.core.move(APP, ask.MoveFiles(partition(0), (0,), other, "full too"), 3.0)
    assert places(APP, 3, 90.0) == {"w0", "w1"}


def test_a_worker_that_the_manager_misses_is_back_with_its_first_word() -> None:
    """Nobody listens there, or it is some beats late: files go elsewhere, until it beats."""
    managed = Managed(2, ManagerLimits(silence=1e9))

    def places(dataset: int, now: float) -> set[str]:
        managed.core.name(APP, ask.NamePartition(partition(0, dataset=dataset), 4), now)
        return {places[-1] for places in managed.core.state.datasets[APP, f"job-e{dataset}"].places}

    managed.core.workers.sights.miss("w0", "nobody listens")
    assert places(1, 1.0) == {"w1"}
    managed.beat("w0", 2.0)
    assert places(2, 2.0) == {"w0", "w1"}
    managed.beat("w1", 10.0)
    assert places(3, 10.0) == {"w1"}
    assert places(4, 30.0) == {"w0", "w1"}, "all are late: perhaps the manager stood still"
    managed.core.workers.sights.miss("w0", "nobody listens")
    managed.core.workers.sights.miss("w1", "nobody listens")
    with pytest.raises(NoStorageError, match=r"w0 \(nobody listens\), w1"):
        places(5, 30.0)


def test_a_folder_that_has_gone_another_way_is_refused() -> None:
    """A start that follows the last one is taken, also after starts that came to nothing; another line never is."""
    managed = Managed(1)
    core = managed.core

    def enroll(port: int, *lineage: str) -> None:
        core.workers.enroll(ask.Enroll("w0", f"tcp://h:{port}", lineage), 0.0)

    enroll(2, "start of w0", "never heard of", "b")
    with pytest.raises(SettingError, match=r"tcp://h:3 is refused.* as w0, .* at tcp://h:2.*--dir"):
        enroll(3, "start of w0", "c")
    enroll(2, "b")
    enroll(4, "b", "d")
    again = ManagerState()
    for record in core.state.records():
        again.apply(record)
    assert (again.workers["w0"].address, again.workers["w0"].incarnation) == ("tcp://h:4", "d")
    core.workers.lose("w0", "gone")
    enroll(3, "start of w0", "c")


def test_workers_hear_what_nobody_needs() -> None:
    """They drop writers that were released or are unknown, and datasets of jobs that are over."""
    managed = Managed()
    for index, writer in ((0, 10), (1, 11)):
        managed.begin(partition(index), writer=writer)
    managed.finish(partition(0), "w0", writer=10)
    held = (APP, "job-e0", (10, 11, 99)), ("another", "job-e0", (1,))
    orders = managed.beat("w0", 0.0, *held)
    assert orders.drops == ((APP, "job-e0", (99,)),)
    assert orders.forget == (("another", "job-e0"),)
    managed.core.end_job(APP, "job")
    assert managed.state(partition(0)) == "complete", "a result that is held stays"
    managed.core.release(APP, [partition(0)])
    assert managed.beat("w0", 0.0, held[0]).forget == ((APP, "job-e0"),)
    assert not managed.core.state.partitions


def test_an_old_copy_of_the_log_loses_what_it_does_not_know(tmp_path: Path) -> None:
    """Readers and drivers hear that it is lost; workers keep what they hold of it, and drop what goes later."""
    known, begun, newer = partition(0), partition(1), partition(2, dataset=1)
    kept_log = LoggedState(tmp_path, ManagerLimits(), 0.0)
    words: list[tuple[str, int]] = []

    def begin(log: LoggedState, which: PartitionId, writer: int, *, finishes: bool = True) -> None:
        log.decided(lambda: log.core.name(APP, ask.NamePartition(which, 1), 0.0))
        log.decided(lambda: log.core.begin(APP, ask.StartPartition(which, "host", writer), 0.0))
        words[:] = [read_word(SECRET, sealed_word(SECRET, log.core.state.history))]
        if finishes:
            log.decided(lambda: log.core.finish(APP, ask.FinishPartition(which, writer, ("w0",))))

    def enroll(log: LoggedState, token: str, *, heard: bool) -> None:
        enrolled = ask.Enroll(
            "w0", "tcp://h:1", tuple(dict.fromkeys(("first", token))), tuple(words) if heard else ()
        )
        log.decided(lambda: log.core.workers.enroll(enrolled, 20.0))

    enroll(kept_log, "first", heard=False)
    kept_log.core.workers.beat("w0", ask.Beat(GIB, 0.0, False, ()), 0.0)
    begin(kept_log, known, 10)
    begin(kept_log, begun, 11, finishes=False)
    copy = (tmp_path / "manager.log").read_bytes()
    begin(kept_log, newer, 12)
    kept_log.close()

    def restarted(data: bytes) -> LoggedState:
        (tmp_path / "manager.log").write_bytes(data)
        return LoggedState(tmp_path, ManagerLimits(), 0.0)

    whole = restarted((tmp_path / "manager.log").read_bytes())
    enroll(whole, "second", heard=True)
    assert not whole.core.state.history.is_old
    whole.close()

    old = restarted(copy)
    enroll(old, "second", heard=False)
    held = ((APP, "job-e0", (10, 11)), (APP, "job-e1", (12,)))
    assert old.core.workers.beat("w0", ask.Beat(GIB, 0.0, False, held), 1.0) == ask.Orders(), "others may know better"
    old.core.losses(APP, 0, 1.0)
    enroll(old, "second", heard=True)
    asked = ask.FindPartitions((known, begun, newer))
    stories = old.core.find(APP, asked, 20.0).stories
    assert [story.state for story in stories] == ["complete", "lost", "lost"]
    assert all("old copy of its log" in story.cause for story in stories[1:])
    lost = old.core.losses(APP, 0, 20.0)
    assert lost is not None
    assert lost.partitions == (begun,)
    with pytest.raises(PartitionLostError, match="old copy of its log"):
        old.core.finish(APP, ask.FinishPartition(newer, 12, ("w0",)))
    with pytest.raises(PartitionLostError, match="is lost, if it was kept"):
        old.core.names.find("alice/one", "prices", 20.0)
    assert old.core.find(APP, ask.FindPartitions((newer,), "a result"), 20.0).stories[0].state == "lost"
    assert old.core.workers.beat("w0", ask.Beat(GIB, 0.0, False, held), 20.0) == ask.Orders()
    orders = old.core.workers.beat("w0", ask.Beat(GIB, 0.0, False, (*held, (APP, "job-e2", (13,)))), 21.0)
    assert orders == ask.Orders(forget=((APP, "job-e2"),))
    leaving = old.core.workers.beat("w0", ask.Beat(GIB, 0.0, True, held), 20.0)
    assert leaving == ask.Orders(), "rows stay where an operator may put the right log back"
    old.close()


def test_a_worker_leaves_when_nothing_there_is_needed() -> None:
    """It gets no new files from its word on, and may go when what it has was released."""
    managed = Managed(2)
    managed.begin(partition(0))
    managed.finish(partition(0), "w0")
    leaving = ask.Beat(GIB, 0.0, True, ())
    assert not managed.core.workers.beat("w0", leaving, 0.0).may_leave
    assert {p[-1] for p in managed.begin(partition(0, dataset=1)).places} == {"w1"}
    managed.core.release(APP, [partition(0)])
    assert managed.core.workers.beat("w0", leaving, 0.0).may_leave


@settings(max_examples=examples(60), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 60))
def test_a_manager_that_reads_its_log_knows_what_it_knew(chance: random.Random, steps: int) -> None:
    """After any steps the log, and a snapshot of it, lead to the same state; no step breaks the table of states."""
    managed = Managed()
    log = list(managed.core.take_records())
    for _ in range(steps):
        which = partition(chance.randrange(3), chance.randrange(2), chance.randrange(2))
        writer = chance.randrange(3)
        worker = f"w{chance.randrange(3)}"
        try:
            match chance.randrange(10):
                case 0 | 1 | 2:
                    managed.begin(which, chance.randrange(1, 5), writer)
                case 3 | 4:
                    managed.finish(which, worker, writer=writer)
                case 5:
                    managed.core.fail(APP, ask.FailPartition(which, writer, "no"))
                case 6:
                    managed.core.release(APP, [which])
                case 8:
                    managed.core.names.keep(APP, kept(f"n{writer}", f"{chance.randrange(1 << 30):x}", which), 0.0)
                case 7 if chance.random() < 0.3:
                    managed.core.workers.lose(worker, "gone")
                case _ if chance.random() < 0.2:
                    managed.core.end_job(APP, "job")
        except PenstockError:
            pass
        log += managed.core.take_records()
    for records in (log, list(managed.core.state.records())):
        again = ManagerState()
        for record in records:
            again.apply(tuple(record))
        assert list(again.records()) == list(managed.core.state.records())
        now = Counter(places[-1] for dataset in again.datasets.values() for places in dataset.places)
        assert again.entries == managed.core.state.entries
        assert +again.files == +managed.core.state.files == now
        assert again.by_dataset.keys() == managed.core.state.by_dataset.keys()


def test_the_log_survives_a_kill_and_refuses_damage(tmp_path: Path) -> None:
    """A record that was cut is dropped, a damaged one with others after it is an error, and one manager has it."""
    log = StateLog(tmp_path)
    log.append([("worker", "w0", "tcp://h:1"), ("leaving", "w0")])
    with pytest.raises(StorageError, match="another manager"):
        StateLog(tmp_path)
    log.close()
    path = tmp_path / "manager.log"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:10])
    log = StateLog(tmp_path)
    assert log.read() == [("worker", "w0", "tcp://h:1"), ("leaving", "w0")]
    assert path.read_bytes() == whole
    log.replace([("worker", "w1", "tcp://h:2")])
    log.append([("leaving", "w1")])
    log.close()
    log = StateLog(tmp_path)
    assert [record[1] for record in log.read()] == ["w1", "w1"]
    log.close()
    damaged = bytearray(path.read_bytes())
    damaged[15] ^= 1
    path.write_bytes(bytes(damaged))
    log = StateLog(tmp_path)
    with pytest.raises(StorageError, match="damaged at byte 0"):
        log.read()
    log.close()


def test_each_step_of_a_partition_is_in_the_table() -> None:
    """A partition that is released stays so, and nothing leads out of a loss but its release."""
    after = {state: {REMOTE_TABLE.get((state, event)) for event in RemoteEvent} for state in RemoteState}
    ends = {state for state, found in after.items() if found <= {None, RemoteState.RELEASED}}
    assert ends == {RemoteState.FAILED, RemoteState.LOST, RemoteState.RELEASED}


def test_the_page_shows_the_table() -> None:
    """`docs/remote.md` has the states of a partition as the code has them."""
    page = (ROOT / "docs" / "remote.md").read_text()
    shown = page.partition("<!-- states:start -->\n")[2].partition("<!-- states:end -->")[0]
    assert shown == as_markdown(REMOTE_TABLE).replace(" (end)", "")
