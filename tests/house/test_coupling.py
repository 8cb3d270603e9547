# SPDX-License-Identifier: Apache-2.0
"""The imports inside a room: no circles, no object that everybody takes whole."""

from __future__ import annotations

import re
import tokenize

from coupling import circles, class_figures, import_graph
from source import Module, modules

WIDE = 12
"""Public members from which on a class that keeps state is a room of its own and no part."""
TAKERS = 2
"""So many classes may take such a one in their constructors; a third needs a protocol with what it uses."""

API_CIRCLE = {
    *("api.stream", "api.keyed_stream", "api.pairs", "api.sorting"),
    *("api.duplicates", "api.event_time", "api.stream_joins", "api.windows", "api.group_verbs"),
    "api.key_types",
}
"""The one circle that stays: a verb of a stream gives streams, and its classes are in several modules."""

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def _short(names: set[str]) -> set[str]:
    return {name.removeprefix("penstock.") for name in names}


def test_no_import_circle_inside_a_room() -> None:
    """Imports for types and inside functions count: modules that need each other are one module."""
    found = [_short(circle) for circle in circles(import_graph())]
    new = [sorted(circle) for circle in found if not circle <= API_CIRCLE]
    assert not new, "\n".join(map(str, new))


def test_the_circle_of_the_api_is_what_is_written_down() -> None:
    """The one exception names its modules, and all of them are needed."""
    assert API_CIRCLE in [_short(circle) for circle in circles(import_graph())]


def test_no_constructor_takes_the_whole_of_something() -> None:
    """An object with many members that many others take joins them all: each of them may change all of it.

    This is measured, not named: a class counts that is no value (frozen dataclass, enum, error) and no protocol, has
    more than `WIDE` public members, and is taken by more than `TAKERS` constructors. A class that needs a part of it
    takes a protocol of that part, a narrower object, or a value.
    """
    wholes = [
        f"{figures.module}: {figures.name} ({figures.public} members) is taken by {figures.holders}"
        for figures in class_figures()
        if not figures.is_value and figures.public > WIDE and len(figures.holders) > TAKERS
    ]
    assert not wholes, "\n".join(wholes)


def test_nothing_is_left_to_do_in_a_comment() -> None:
    """Work that is not done is an issue, not a mark in the code; a module says what it is for."""
    wrong = [
        f"{module.name}:{line}: {text.strip()[:60]}"
        for module in modules("src", "tools", "examples")
        if UNFINISHED.search(module.text)
        for line, text in _prose(module)
        if UNFINISHED.search(text)
    ]
    assert not wrong, "\n".join(wrong)


def _prose(module: Module) -> list[tuple[int, str]]:
    """Comments and strings that stand alone, docstrings among them."""
    with module.path.open("rb") as file:
        return [
            (token.start[0], token.string)
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""'))
        ]


def test_test_files_import_no_test_files() -> None:
    """Code that two test files need is a module with a name of its own."""
    imported = {
        f"{module.name}:{line}": name.split(".")[0]
        for module in modules("tests")
        for name, line in module.imports()
        if name.startswith(("test_", "conftest."))
    }
    assert not imported, "\n".join(f"{place} imports {name}" for place, name in imported.items())


def test_circles_are_found_whatever_their_length() -> None:
    """Of two modules, of three with a tail, of two that share one; a chain is none."""
    graph = {"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c", "f"}, "f": {"g"}, "g": set()}
    assert sorted(map(sorted, circles(graph))) == [["a", "b"], ["c", "d", "e"]]
    assert circles({"a": {"b", "c"}, "b": {"a"}, "c": {"a"}}) == [{"a", "b", "c"}]
