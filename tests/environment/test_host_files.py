# SPDX-License-Identifier: Apache-2.0
"""Which parts of checkpoints share a file of their host: the core's rules, and random orders of what is said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.environment.tasks.host_files import Append, Decision, FileId, HostFiles, Seal

QUERY = ("/checkpoints", 1)
OTHER = ("/elsewhere", 1)
FULL = 100


def host(*tasks: str) -> HostFiles:
    """The files of a host on which these tasks of one query run."""
    files = HostFiles(FULL)
    for task in tasks:
        files.joined(task, QUERY)
    return files


def appended(decisions: list[Decision]) -> FileId:
    """The file into which a part goes."""
    (found,) = [each.file for each in decisions if isinstance(each, Append)]
    return found


def completed(decisions: list[Decision]) -> list[FileId]:
    """The files that are complete."""
    return [each.file for each in decisions if isinstance(each, Seal)]


def test_the_parts_of_all_tasks_share_one_file_which_is_complete_with_the_last() -> None:
    """The first task to come begins it; each checkpoint has a file of its own."""
    files = host("a", "b", "c")
    for checkpoint in (1, 2):
        first = files.handed_over("b", QUERY, checkpoint, 10)
        second = files.handed_over("a", QUERY, checkpoint, 10)
        third = files.handed_over("c", QUERY, checkpoint, 10)
        assert appended(first) == appended(second) == appended(third)
        assert [completed(each) for each in (first, second, third)] == [[], [], [appended(first)]]


def test_tasks_that_store_by_themselves_decline_or_are_gone_are_not_waited_for() -> None:
    """They may be missing before the file is begun or later."""
    files = host("a", "b", "c", "d")
    assert files.settled("d", 1) == []
    begun = files.handed_over("a", QUERY, 1, 10)
    assert files.settled("b", 1) == []
    assert files.left("c") == [Seal(appended(begun))]
    assert completed(files.handed_over("a", QUERY, 2, 10)) == []
    assert files.left("d") == []
    assert completed(files.settled("b", 2)) != []


def test_a_full_file_is_complete_and_the_next_part_begins_another() -> None:
    """Then two are written at once; a part that fills a file is alone in it."""
    files = host("a", "b", "c")
    first = files.handed_over("a", QUERY, 1, FULL - 1)
    second = files.handed_over("b", QUERY, 1, FULL)
    assert completed(second) == [appended(first)]
    assert appended(second) != appended(first)
    third = files.handed_over("c", QUERY, 1, 1)
    assert completed(third) == [appended(second), appended(third)]


def test_the_next_checkpoint_waits_for_nothing_of_the_one_before() -> None:
    """A task died or a checkpoint was given up in the middle: the file ends, and a late part has one for itself."""
    files = host("a", "b")
    begun = files.handed_over("a", QUERY, 1, 10)
    following = files.handed_over("a", QUERY, 2, 10)
    assert completed(following) == [appended(begun)]
    late = files.handed_over("b", QUERY, 1, 10)
    assert completed(late) == [appended(late)]
    assert appended(late) not in (appended(begun), appended(following))
    assert files.given_up("b", 2) == [Seal(appended(following))]
    behind = files.handed_over("b", QUERY, 2, 10)
    assert completed(behind) == [appended(behind)]


def test_a_file_that_waits_too_long_is_complete_and_others_go_on_in_another() -> None:
    """Nobody can hold a file open for ever; the word of a timer that is late changes nothing."""
    files = host("a", "b")
    begun = appended(files.handed_over("a", QUERY, 1, 10))
    assert files.waited_long(begun) == [Seal(begun)]
    assert files.waited_long(begun) == []
    last = files.handed_over("b", QUERY, 1, 10)
    assert completed(last) == [appended(last)] != [begun]


def test_queries_have_nothing_in_common() -> None:
    """Each has files of its own; one that has no task here any more is forgotten; a part of another one is alone."""
    files = host("a", "b")
    files.joined("z", OTHER)
    begun = files.handed_over("a", QUERY, 1, 10)
    alone = files.handed_over("z", OTHER, 1, 10)
    assert completed(alone) == [appended(alone)] != [appended(begun)]
    assert files.left("z") == []
    stranger = files.handed_over("z", OTHER, 2, 10)
    assert completed(stranger) == [appended(stranger)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("over", "settled", "left", "joined", "given up", "long")),
        st.sampled_from("abcd"),
        st.integers(1, 4),
        st.integers(0, FULL),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_part_is_in_one_file_and_each_file_is_complete_once(steps: list[tuple[str, str, int, int]]) -> None:
    """After any words in any order no file waits for nobody, is complete twice or takes a part after that."""
    files = host("a", "b")
    begun: dict[FileId, int] = {}
    ended: set[FileId] = set()
    for word, task, checkpoint, size in steps:
        if word == "joined":
            files.joined(task, QUERY)
            continue
        if word == "over":
            decisions = files.handed_over(task, QUERY, checkpoint, size)
            assert appended(decisions).checkpoint == checkpoint
        elif word == "settled":
            decisions = files.settled(task, checkpoint)
        elif word == "left":
            decisions = files.left(task)
        elif word == "given up":
            decisions = files.given_up(task, checkpoint)
        else:
            decisions = [each for file in begun for each in files.waited_long(file)]
        for decision in decisions:
            assert decision.file not in ended
            if isinstance(decision, Append):
                begun[decision.file] = begun.get(decision.file, 0) + 1
            else:
                ended.add(decision.file)
        files.check()
    for task in "abcd":
        ended |= set(completed(files.left(task)))
    assert ended == begun.keys()
