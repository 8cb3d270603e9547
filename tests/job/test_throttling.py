# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's flags: against a model, in any order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.job.core.throttling import Flags
from penstock.link.commands import PauseSources

JOBS, ENVIRONMENTS, GATES = ("j1", "j2"), ("a", "b"), ("g1", "g2")

_EVENTS = st.one_of(
    st.tuples(st.sampled_from(ENVIRONMENTS), st.sampled_from(JOBS), st.sampled_from(GATES), st.booleans()),
    st.tuples(st.just("lost"), st.sampled_from(ENVIRONMENTS)),
    st.tuples(st.just("ended"), st.sampled_from(JOBS)),
)


@settings(max_examples=examples(200), deadline=None)
@given(happened=st.lists(_EVENTS, max_size=60))
def test_environments_know_which_jobs_have_a_flag(happened: list[tuple[object, ...]]) -> None:
    """One that was told everything, and one that attaches now, know what a set of flags says."""
    flags, model, known = Flags(), set[tuple[object, ...]](), set[str]()
    for event in happened:
        match event:
            case ("lost", str(name)):
                told = flags.lost(name)
                model = {each for each in model if each[0] != name}
            case ("ended", str(job)):
                told = flags.ended(job)
                model = {each for each in model if each[1] != job}
            case (str(name), str(job), str(flag), bool(is_raised)):
                told = flags.put(name, job, flag, is_raised=is_raised)
                (model.add if is_raised else model.discard)((name, job, flag))
        for word in told:
            assert (word.job in known) is not word.is_raised  # nobody is told twice
            (known.add if word.is_raised else known.discard)(word.job)
        assert known == {job for _, job, _ in model}
        assert {word.job for word in flags.attached()} == known
        assert all(word == PauseSources(word.job, is_raised=True) for word in flags.attached())
