# SPDX-License-Identifier: Apache-2.0
"""The parts of the reference's entries that docstrings leave out: arguments with types, errors, an example.

Types and values are those of the signatures. What an argument means, and which errors it may cause, stands in
`reference.toml`, once for all verbs that have it; examples are cut out of `examples/reference.py`, which tests run.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "reference.py"
_HEAD = re.compile(r"^# ([A-Za-z_]+(?:\.\w+)?(?:, [A-Za-z_]+(?:\.\w+)?)*)$", re.MULTILINE)
_ENTRY = re.compile(r"^\.\. auto(class|function):: penstock\.(\w+)$((?:\n   :.*$)*)", re.MULTILINE)
_EXCLUDED = re.compile(r":exclude-members: (.*)")
_WORDS = {"PathLike": "str | Path"}
"""Names of ours in annotations that say less than what they stand for."""


@cache
def told() -> dict[str, Any]:
    """What is written down about arguments and errors."""
    return tomllib.loads((HERE / "reference.toml").read_text())


@cache
def examples() -> dict[str, str]:
    """The code of each name that the program's lines announce."""
    parts = _HEAD.split(EXAMPLES.read_text())[1:]
    found = {}
    for heads, code in zip(parts[::2], parts[1::2], strict=True):
        found |= dict.fromkeys(heads.split(", "), code.strip())
    return found


def entries() -> Iterator[tuple[str, Any]]:
    """Each function, class and method of the reference by its name in `penstock`, and itself."""
    for kind, name, options in _ENTRY.findall((HERE / "reference.rst").read_text()):
        thing = resolve_name(f"penstock.{name}")
        yield name, thing
        if kind == "function":
            continue
        excluded = {each.strip() for each in "".join(_EXCLUDED.findall(options)).split(",")}
        base = re.search(r":inherited-members: (\w+)", options)
        for member in dir(thing):
            found = inspect.getattr_static(thing, member)
            owner = next(each for each in thing.__mro__ if member in vars(each))
            is_other = owner is not thing and (
                ":inherited-members:" not in options or (base is not None and owner.__name__ == base[1])
            )
            if not (member.startswith("_") or member in excluded or is_other) and _is_shown(found):
                yield f"{name}.{member}", found


def _is_shown(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property)


def arguments(thing: Any) -> list[inspect.Parameter]:
    """The arguments that a user gives; none of what can't be called."""
    if isinstance(thing, property) or not callable(thing) or inspect.isclass(thing):
        return []
    return [each for each in inspect.signature(thing).parameters.values() if each.name != "self"]


def written(annotation: object) -> str:
    """An annotation as it stands in the code, with words that a reader of the page knows."""
    text = "" if annotation is inspect.Parameter.empty else str(annotation)
    for name, meant in _WORDS.items():
        text = re.sub(rf"\b{name}\b", meant, text)
    return text


def meaning(entry: str, argument: str) -> str:
    """What an argument of an entry means; nothing where that is not written down."""
    found: str = told()["of"].get(entry, {}).get(argument) or told()["arguments"].get(argument, "")
    return found


def errors(entry: str, thing: Any) -> list[tuple[str, str]]:
    """The errors of an entry, each with when it is raised; those of its arguments, then its own."""
    texts = [(f"`{each.name}`: ", told()["errors"].get(each.name, "")) for each in arguments(thing)]
    texts.append(("", told()["of"].get(entry, {}).get("raises", "")))
    texts += [("", text) for text in told()["running"]["raises"] if entry in told()["running"]["entries"]]
    found: dict[str, list[str]] = {}
    for subject, text in texts:
        names, _, when = text.partition(": ")
        for name in names.split(", ") if text else ():
            found.setdefault(name, []).append(subject + when.rstrip("."))
    return [(name, "; ".join(whens) + ".") for name, whens in found.items()]


def fields(entry: str, thing: Any) -> Iterator[str]:
    """Lines for the end of an entry's docstring."""
    for argument in arguments(thing):
        yield f":param {argument.name}: {meaning(entry, argument.name)}"
        if said := written(argument.annotation):
            yield f":type {argument.name}: {said}"
    for name, when in errors(entry, thing):
        yield f":raises {name}: {when}"
    if entry in examples():
        yield ""
        yield ".. code-block:: python"
        yield ""
        yield from (f"   {line}" for line in examples()[entry].splitlines())


def result(thing: Any) -> str | None:
    """The type of what is given, as it stands in the code."""
    if isinstance(thing, property) or not callable(thing) or inspect.isclass(thing):
        return None
    if inspect.isgeneratorfunction(inspect.unwrap(thing)):
        return "AbstractContextManager[None]"
    return written(inspect.signature(thing).return_annotation) or None


def _complete(_: Any, what: str, name: str, thing: Any, __: Any, lines: list[str]) -> None:
    if name.startswith("penstock.") and what in ("class", "function", "method", "property"):
        lines += ["", *fields(name.removeprefix("penstock."), thing)]


def _without_types(_: Any, what: str, __: str, thing: Any, ___: Any, signature: str | None, ____: Any) -> Any:
    """Signatures have names and values; the types stand below, with what each argument means."""
    if what == "class":
        return "", None
    return (signature, result(thing)) if what in ("function", "method") else None


def setup(app: Any) -> None:
    """Sphinx calls it."""
    app.connect("autodoc-process-docstring", _complete)
    app.connect("autodoc-process-signature", _without_types)
