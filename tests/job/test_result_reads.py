# SPDX-License-Identifier: Apache-2.0
"""The memory of who has read which run of a result."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.job.results.reads import StageReads
from penstock.link.master import ReadResult
from penstock.shuffle import DatasetId, PartitionId


def request(job: str, index: int, stage: int = 1) -> ReadResult:
    """A question about a partition of that job."""
    return ReadResult("r1", index, PartitionId(DatasetId(job, 0, is_result=True), index, 1), stage, "gone", "j9")


STEPS = st.tuples(st.sampled_from(["note", "undo", "ask"]), st.sampled_from(["j1", "j2", "j3"]), st.integers(0, 5))


@given(st.lists(STEPS, max_size=40))
def test_it_knows_what_other_tasks_read(steps: list[tuple[str, str, int]]) -> None:
    """As a table of the run each partition was last read of, in one stage; another stage knows nothing of it."""
    reads = StageReads()
    last: dict[int, str] = {}
    for step, job, index in steps:
        asked = request(job, index)
        if step == "note":
            reads.note(asked, job)
            last[index] = job
        elif step == "undo":
            reads.undo(asked)
            if last.get(index) == job:
                del last[index]
        expected = any(run != job for other, run in last.items() if other != index)
        assert reads.has_read_another(asked, job) == expected
        assert not reads.has_read_another(request(job, index, stage=2), job)


def test_only_the_last_stages_are_kept() -> None:
    """So that a result that is read for ever takes a bounded place; a stage that is not known is not kept."""
    reads = StageReads()
    for stage in range(-1, 1000):
        reads.note(request("j1", 0, stage), "j1")
    assert not reads.has_read_another(request("j2", 1, 0), "j2")
    assert not reads.has_read_another(request("j2", 1, -1), "j2")
    assert reads.has_read_another(request("j2", 1, 999), "j2")
