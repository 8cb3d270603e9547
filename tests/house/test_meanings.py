# SPDX-License-Identifier: Apache-2.0
"""Names use a word in the one sense that the glossary gives it, or not at all."""

from __future__ import annotations

import re

import pytest

from source import Function, modules

WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
NOWHERE = {  # as the noun of a name
    "stand": "a subtask has a status, a partition a state",
    "stands": "a subtask has a status, a partition a state",
}
IN_ROOMS = {
    "abort": ({"checkpoint", "job"}, "a task declines a checkpoint, and it is given up"),
    "aborted": ({"checkpoint", "job", "shuffle"}, "a task declines a checkpoint, and it is given up"),
    "abandoned": ({"checkpoint", "job"}, "a checkpoint is given up"),
}
"""Words that these rooms do without."""
MEANT = {
    "line": {
        *("CsvLines", "JsonLines", "TextLines", "BadLines", "_Lines"),  # of text
        *("HostLine", "ManagerLine", "MasterLine", "ServiceLine", "WorkerLine", "WorkerLines"),  # made anew
    },
    "frame": {
        *("BulkFrame", "OutgoingFrame", "TaskFrames"),  # on a connection
        *("CoGroupedDataFrame", "ConfirmDataFrame", "DropDataFrame", "GroupedDataFrame", "JobFrames", "QueryFrames"),
        "AsFrames",  # of pandas
    },
    "part": {
        *("DiscardPart", "HandOverPart", "HandedPart", "SavedParts", "_Part"),  # of a checkpoint
        *("GateParts", "JobParts", "LayoutParts", "Part", "SlowPart", "StoredPart", "TaskParts"),  # a share
        "_PatternPart",
    },
    "place": {"_FixedPlaces"},
}
"""The classes that are called so, in the sense of the glossary."""
DEVIATING = {
    "place": {
        *("HttpPlace", "PagePlace"),  # an address
        *("Place", "Places", "RowPlaces", "_Places"),  # a folder's name, positions of rows
    }
}
"""Those in another sense. The list grows shorter, never longer."""
DATAFRAME = re.compile(r"(?<!data)(?<!Data)frames?(?![a-z])|(?<!Data)Frames?(?![a-z])")


def _named() -> list[tuple[str, str, str]]:
    """Each class, function and attribute of the package: its room, where it is, and its name."""
    found = []
    for module in modules("src/penstock"):
        for node in (*module.classes(), *module.functions()):
            names = [node.name]
            if isinstance(node, Function):
                names += [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
            found += [(module.room, f"{module.name}:{node.lineno}", name) for name in names]
    return found


def test_names_have_words_in_one_sense() -> None:
    """Words that are none of ours, and those that a room does without."""
    wrong = []
    for room, where, name in _named():
        *before, last = map(str.lower, WORD.findall(name) or ["_"])
        for word in (*before, last):
            if word in NOWHERE and word is last:
                wrong.append(f"{where}: {name}: {NOWHERE[word]}")
            rooms, why = IN_ROOMS.get(word, (set(), ""))
            if room in rooms:
                wrong.append(f"{where}: {name}: {why}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("word", MEANT)
def test_a_class_is_called_so_in_the_sense_of_the_glossary(word: str) -> None:
    """A new one is entered with its sense, or gets another name; one that is gone leaves the list."""
    found = {
        node.name
        for module in modules("src/penstock")
        for node in module.classes()
        if WORD.findall(node.name)[-1].lower() in (word, f"{word}s")
    }
    assert found == MEANT[word] | DEVIATING.get(word, set())


def test_a_frame_is_no_dataframe() -> None:
    """The JobMaster's core sees no connection: what it would call a frame is a DataFrame."""
    wrong = [f"{where}: {name}" for _, where, name in _named() if "/job/core/" in where and DATAFRAME.search(name)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "is_wrong"),
    [("open_frames", True), ("DropFrame", True), ("ConfirmDataFrame", False), ("dataframe_slots", False)],
)
def test_frames_are_noticed(name: str, is_wrong: bool) -> None:
    """Those that are DataFrames say so."""
    assert (DATAFRAME.search(name) is not None) is is_wrong
