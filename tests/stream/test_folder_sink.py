# SPDX-License-Identifier: Apache-2.0
"""The sink of files: readers of the folder see what complete checkpoints hold, each row once."""

from __future__ import annotations

import errno
import functools
import itertools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgpack
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import PlanError, SettingError
from penstock.graph.streaming import StreamingOptions
from penstock.job.query_storage import QueryStorage
from penstock.machine import durable
from penstock.machine.durable import sync_file
from penstock.stream.chain import StepContext
from penstock.stream.folder_sink import FolderSink, FolderWriter
from penstock.stream.noop import NoopSink
from penstock.stream.sinks import SinkOperator
from penstock.stream.steps import refuse_rows_again
from penstock_torture.local_query import linear_graph
from penstock_torture.passing_files import PassingFiles
from underway import listed

SCHEMA = pa.schema([("n", pa.int64())])
MARK = ".folder-query1"


def batch(*values: int) -> pa.RecordBatch:
    """A batch of these numbers."""
    return pa.record_batch({"n": list(values)}, SCHEMA)


ATTEMPTS = itertools.count()


def stored(writer: FolderWriter, checkpoint: int) -> bytes:
    """The state of a checkpoint that was stored."""
    state = writer.prepare(checkpoint)
    writer.sync(state)
    return state


def sink(folder: Path, kind: str = "parquet", files: pafs.FileSystem | None = None) -> FolderSink:
    """The sink, as the tasks of the next attempt get it."""
    made = FolderSink(files or pafs.LocalFileSystem(), str(folder), SCHEMA, "query1", kind)
    copy: FolderSink = pickle.loads(pickle.dumps(made))  # noqa: S301 - made here
    return copy.owned(f"000001-0123456789abcdef-{next(ATTEMPTS):06d}")


def names(folder: Path) -> list[str]:
    """The files in a folder, but for its mark."""
    return sorted(path.name for path in listed(folder) if not path.name.startswith(MARK))


def moved_on(folder: Path) -> None:
    """A consumer takes all that it sees to a place of its own."""
    taken = folder.with_name("taken")
    taken.mkdir(exist_ok=True)
    for path in listed(folder, "part-*"):
        path.rename(taken / path.name)


def seen(folder: Path, kind: str = "parquet") -> list[int]:
    """The numbers that a plain reader of the folder sees."""
    return sorted(
        ds.dataset(folder, SCHEMA, format="feather" if kind == "arrow" else kind).to_table()["n"].to_pylist()
    )


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows_are_seen_when_their_checkpoint_is_complete(tmp_path: Path, kind: str) -> None:
    """Neither when they are written nor when they are prepared; a later checkpoint publishes what an earlier left."""
    writer = sink(tmp_path, kind).open(0, 1, [])
    writer.write(batch(1, 2))
    writer.prepare(1)
    writer.write(batch(3))
    assert seen(tmp_path, kind) == []
    writer.prepare(2)
    writer.write(batch(4))
    writer.commit(2)
    assert seen(tmp_path, kind) == [1, 2, 3]
    writer.commit(2)
    writer.close()
    assert seen(tmp_path, kind) == [1, 2, 3]
    assert [name for name in names(tmp_path) if name.startswith(".")] == []


def test_a_late_task_of_an_earlier_driver_leaves_the_files_of_the_next_one(tmp_path: Path) -> None:
    """A driver has taken over, its sink has prepared a file; a task of the former one begins only now.

    Their clocks do not matter, nor whether it is an attempt of the same driver, or one that claimed the location at
    the same moment.
    """
    for former, present in itertools.combinations(
        ["000001-ff-000007", "000002-0a-000000", "000002-0b-000000", "000002-0b-000001", "000010-00-000000"], 2
    ):
        folder = tmp_path / f"{former} {present}"
        writer = sink(folder).owned(present).open(0, 1, [])
        writer.write(batch(1))
        state = stored(writer, 1)
        late = sink(folder).owned(former).open(0, 1, [])
        late.commit(1)
        late.close()
        sink(folder).owned(f"{present}1").open(0, 1, [state]).close()
        assert seen(folder) == [1]


@pytest.mark.parametrize("published", [True, False])
def test_an_attempt_begins_by_publishing_what_its_checkpoint_names(tmp_path: Path, published: bool) -> None:
    """It does so even if the one before had got to it; files written after that checkpoint are removed."""
    first = sink(tmp_path).open(0, 1, [])
    first.write(batch(1))
    state = stored(first, 1)
    first.write(batch(2))
    stored(first, 2)
    first.write(batch(3))
    if published:
        first.commit(1)
    again = sink(tmp_path).open(0, 1, [state])
    assert seen(tmp_path) == [1]
    again.write(batch(2))
    again.prepare(2)
    again.commit(2)
    assert len(names(tmp_path)) == 2
    assert seen(tmp_path) == [1, 2]
    first.close()
    again.close()


def test_nothing_is_removed_before_the_first_checkpoint_of_an_attempt(tmp_path: Path) -> None:
    """A plan that has lost the state of the sink's stage is refused, but another task may say so: later."""
    state = prepared(tmp_path, 1)
    sink(tmp_path).open(0, 1, []).close()
    again = sink(tmp_path).open(0, 1, [state])
    assert seen(tmp_path) == [1]
    again.close()


def test_a_checkpoint_without_rows_has_no_file(tmp_path: Path) -> None:
    """Nothing is written for nothing."""
    writer = sink(tmp_path).open(0, 1, [])
    writer.prepare(1)
    writer.commit(1)
    writer.close()
    assert names(tmp_path) == []


class Dropping(PassingFiles):
    """Lists nothing, as a mount that has dropped, or all but hidden files of rows."""

    lacks: ClassVar[str] = ""

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Those that it does not lack."""
        infos = super().get_file_info_selector(selector)
        return [info for info in infos if not self.lacks or self.lacks not in info.path]


@pytest.mark.parametrize("lacks", ["/", "/.part"])
def test_leftovers_that_a_list_did_not_show_are_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """At the first checkpoint the mount had dropped, or the list was not whole: an empty one does not say enough."""
    prepared(tmp_path, 1)
    writer = sink(tmp_path, files=pafs.PyFileSystem(Dropping(pafs.LocalFileSystem()))).open(0, 1, [])
    monkeypatch.setattr(Dropping, "lacks", lacks)
    writer.commit(1)
    monkeypatch.setattr(Dropping, "lacks", "")
    assert len(names(tmp_path)) == 1
    if lacks == "/":
        writer.commit(2)
        assert names(tmp_path) == []
    writer.close()
    assert names(tmp_path) == []


def test_leftovers_of_others_stay(tmp_path: Path) -> None:
    """A subtask removes its own, and those of subtasks that are no more; other queries' and users' files stay."""
    for subtask in range(3):
        writer = sink(tmp_path).open(subtask, 3, [])
        writer.write(batch(subtask))
        stored(writer, 1)
    other = ".part-query2-00000-000000-0123456789abcdef.parquet"
    for name in (other, ".hidden"):
        (tmp_path / name).write_bytes(b"")
    last = sink(tmp_path).open(0, 2, [])
    last.commit(2)
    last.close()
    left = names(tmp_path)
    assert left[0] == ".hidden"
    assert [name[:19] for name in left[1:]] == [".part-query1-00001-", other[:19]]


def test_files_are_on_the_disk_before_their_checkpoint_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that stores the checkpoint waits for the disk, and the task's does not; again changes nothing."""
    synced: list[str] = []

    def sync(path: str) -> None:
        sync_file(path)
        if not Path(path).name.startswith(MARK):
            synced.append(Path(path).name)

    monkeypatch.setattr(durable, "sync_file", sync)
    step = SinkOperator(sink(tmp_path)).step()
    step.open(StepContext(0, 1, 128, "sink"), [])
    list(step.process(batch(1)))
    ((_, first),) = step.snapshot(1)
    assert synced == []
    first()
    assert len(synced) == 1
    ((_, second),) = step.snapshot(2)
    step.completed(1)
    second()
    assert len(synced) == 1
    assert seen(tmp_path) == [1]
    step.close()


def prepared(folder: Path, *values: int) -> bytes:
    """The state that an attempt leaves that wrote these, and died after its checkpoint 1."""
    writer = sink(folder).open(0, 1, [])
    writer.write(batch(*values))
    return stored(writer, 1)


@pytest.mark.parametrize("times", [1, 2])
def test_a_published_file_that_a_consumer_moved_on_is_done(tmp_path: Path, times: int) -> None:
    """The checkpoint names it still: the next attempt leaves it to the consumer, and goes on."""
    out = tmp_path / "out"
    state = prepared(out, 1)
    for _ in range(times):
        sink(out).open(0, 1, [state])
        moved_on(out)
    writer = sink(out).open(0, 1, [state])
    writer.write(batch(2))
    writer.sync(writer.prepare(2))
    writer.commit(2)
    assert seen(out) == [2]
    assert seen(tmp_path / "taken") == [1]


def test_a_checkpoint_waits_for_no_file_that_was_published_and_moved_on(tmp_path: Path) -> None:
    """Its state was taken before the last one was complete."""
    out = tmp_path / "out"
    writer = sink(out).open(0, 1, [])
    writer.write(batch(1))
    writer.prepare(1)
    state = writer.prepare(2)
    writer.commit(1)
    moved_on(out)
    writer.sync(state)


def test_a_prepared_file_that_is_gone_declines_its_checkpoint(tmp_path: Path) -> None:
    """Its rows would be lost, and nobody would know."""
    writer = sink(tmp_path).open(0, 1, [])
    writer.write(batch(1))
    state = stored(writer, 1)
    (hidden,) = listed(tmp_path, ".part*")
    hidden.unlink()
    with pytest.raises(FileNotFoundError, match="a prepared file is gone, and was not published"):
        writer.sync(state)


def test_no_row_waits_for_the_encoding_of_those_in_front_of_a_barrier(tmp_path: Path) -> None:
    """The task gives a file its name and goes on; the checkpoint's thread writes it, with one that was given up."""
    writer = sink(tmp_path).open(0, 1, [])
    writer.write(batch(1))
    writer.prepare(1)
    writer.write(batch(2))
    state = writer.prepare(2)
    writer.write(batch(3))
    assert names(tmp_path) == []
    writer.sync(state)
    assert len(names(tmp_path)) == 2
    writer.commit(2)
    assert seen(tmp_path) == [1, 2]
    writer.prepare(3)
    writer.close()
    assert len(names(tmp_path)) == 2


def test_rows_that_could_not_be_written_end_their_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint is declined, and each later call of the task says why: the next one would lack the rows."""
    writer = sink(tmp_path).open(0, 1, [])
    writer.write(batch(1))
    state = writer.prepare(1)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as full:
        full.setattr("penstock.stream.sink_files.FileForm.open", refuse)
        with pytest.raises(OSError, match="no space left"):
            writer.sync(state)
    for call in (lambda: writer.sync(state), lambda: writer.write(batch(2)), lambda: writer.prepare(2)):
        with pytest.raises(OSError, match="no space left"):
            call()
    writer.close()
    assert names(tmp_path) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_an_empty_folder_in_the_place_of_a_mount_says_nothing(tmp_path: Path, is_there: bool) -> None:
    """Neither is a file that was prepared taken for one that was published, nor is the folder made anew."""
    out = tmp_path / "out"
    state = prepared(out, 1)
    mounted = out.rename(tmp_path / "mounted")
    if is_there:
        out.mkdir()
    with pytest.raises(OSError, match="is the folder's file system away"):
        sink(out).open(0, 1, [state])
    assert not is_there or listed(out) == []
    if is_there:
        out.rmdir()
    mounted.rename(out)
    sink(out).open(0, 1, [state])
    assert seen(out) == [1]


def test_a_mark_that_was_made_below_a_mount_point_speaks_for_nothing_later(tmp_path: Path) -> None:
    """The first attempt began while the mount was away, the next one while it was there; then it drops once more."""
    out = tmp_path / "out"
    sink(out).open(0, 1, []).close()
    below = out.rename(tmp_path / "below")
    state = prepared(out, 1)
    mounted = out.rename(tmp_path / "mounted")
    below.rename(out)
    with pytest.raises(OSError, match="is the folder's file system away"):
        sink(out).open(0, 1, [state])
    out.rename(tmp_path / "below")
    mounted.rename(out)
    sink(out).open(0, 1, [state])
    assert seen(out) == [1]


def test_a_checkpoint_is_declined_while_the_folder_is_away(tmp_path: Path) -> None:
    """Nobody would see rows that are written into the folder below a mount point when the mount is back."""
    out = tmp_path / "out"
    prepared(out, 1)
    writer = sink(out).open(0, 1, [])
    out.rename(tmp_path / "mounted")
    out.mkdir()
    writer.write(batch(2))
    with pytest.raises(OSError, match="is the folder's file system away"):
        writer.sync(writer.prepare(2))


class Forgetful(PassingFiles):
    """Says of hidden files that they are not there, where it is asked for them by name."""

    def move(self, src: str, dest: str) -> None:
        """As it does with names that it forgot."""
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", src)

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """Not those of hidden files."""
        infos = super().get_file_info(paths)
        return [pafs.FileInfo(info.path, pafs.FileType.NotFound) if "/.part" in info.path else info for info in infos]


def test_a_name_that_only_the_listing_has_is_no_published_file(tmp_path: Path) -> None:
    """A client that remembers for a while that a name was not there (NFS) is asked for the folder's list too."""
    state = prepared(tmp_path, 1)
    with pytest.raises(FileNotFoundError, match="No such file"):
        sink(tmp_path, files=pafs.PyFileSystem(Forgetful(pafs.LocalFileSystem()))).open(0, 1, [state])
    sink(tmp_path).open(0, 1, [state])
    assert seen(tmp_path) == [1]


def test_a_state_of_an_earlier_version_is_taken(tmp_path: Path) -> None:
    """Its files are published; where one is under neither name nobody can tell, and that is said."""
    state = prepared(tmp_path, 1)
    earlier = msgpack.packb(msgpack.unpackb(state)["files"])
    sink(tmp_path).check([earlier])
    sink(tmp_path).open(0, 1, [earlier])
    assert seen(tmp_path) == [1]
    listed(tmp_path, "part-*")[0].unlink()
    with pytest.raises(CheckpointError, match="of an earlier version and is gone"):
        sink(tmp_path).open(0, 1, [earlier])


def test_another_path_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """And so is the folder without its mark: somebody has removed it, or its file system is away."""
    state = prepared(tmp_path / "out", 1)
    sink(tmp_path / "out").check([state])
    with pytest.raises(PlanError, match=r"files to publish in .*/out, and this query writes into .*/other"):
        sink(tmp_path / "other").check([state])
    assert [sink(tmp_path / name).is_elsewhere([state]) for name in ("out", "other")] == [False, True]
    assert not replace(sink(tmp_path / "other"), has_epochs=True).is_elsewhere([state])
    assert not replace(sink(tmp_path / "other"), epoch_column="epoch").is_elsewhere([state])
    (tmp_path / "out").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match="is not as the query left it"):
        sink(tmp_path / "out").check([state])


def test_a_query_without_a_checkpoint_that_has_published_is_refused(tmp_path: Path) -> None:
    """Its location is empty, as where a mount has dropped: all rows would come again. Others' files say nothing."""
    location, out = tmp_path / "checkpoints", sink(tmp_path / "out")
    plan = linear_graph(None, [(1, (SinkOperator(out),), SCHEMA, None)])
    options = StreamingOptions("q", "q", str(location))
    storage = QueryStorage(options, begin_anew=functools.partial(refuse_rows_again, plan))
    storage.look({})
    writer = out.open(0, 1, [])
    (tmp_path / "out" / "part-query2-00000-x.parquet").touch()
    writer.write(batch(1))
    writer.prepare(1)
    storage.look({})
    writer.commit(1)
    with pytest.raises(CheckpointError, match=r"checkpointLocation is empty, and .*/out has files .*part-query1-"):
        storage.look({})
    with pytest.raises(CheckpointError, match="is the location away"):
        storage.claim({})
    assert not location.exists(), "it was not claimed"


def test_a_task_that_had_finished_makes_no_folder(tmp_path: Path) -> None:
    """It begins without a state: a mark that it made below a mount point would speak for the folder."""
    step = SinkOperator(sink(tmp_path / "out")).step()
    step.open(StepContext(0, 1, 128, "sink", is_finished=True), [])
    list(step.end_input(stopped=False))
    step.close()
    assert listed(tmp_path) == []


def test_what_can_name_no_file_is_refused(tmp_path: Path) -> None:
    """An unknown format, and a uid with a slash."""
    with pytest.raises(SettingError, match="one of parquet, arrow"):
        FolderSink(pafs.LocalFileSystem(), str(tmp_path), SCHEMA, "q", "xml")
    with pytest.raises(SettingError, match="uid"):
        FolderSink(pafs.LocalFileSystem(), str(tmp_path), SCHEMA, "../q")


def test_a_sink_is_the_last_step_of_a_chain(tmp_path: Path) -> None:
    """It gives no rows; without checkpoints both phases come at once; a batch job can't have one."""
    operator = SinkOperator(sink(tmp_path))
    step = operator.step()
    step.open(StepContext(0, 1, 128, "stage 1"), [])
    assert list(step.process(batch(7))) == []
    step.publish(1)
    assert seen(tmp_path) == [7]
    step.close()
    with pytest.raises(PlanError, match="sink of a streaming query"):
        operator.apply(iter(()))


def test_noop_takes_everything() -> None:
    """And has nothing to publish."""
    step = SinkOperator(NoopSink()).step()
    step.open(StepContext(0, 1, 128, "stage 1"), [])
    assert list(step.process(batch(7))) == []
    ((name, make),) = step.snapshot(1)
    assert (name, make()) == ("sink", b"")
    step.completed(1)
    step.close()
