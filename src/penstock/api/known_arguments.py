# SPDX-License-Identifier: Apache-2.0
"""A keyword that a verb does not have gets the one that it resembles, as a verb does that a stream does not have."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, TypeVar

_T = TypeVar("_T")


def suggests_arguments(known: _T) -> _T:
    """Of a function, or of each public method of a class: a wrong keyword is a TypeError that names a near one."""
    if isinstance(known, type):
        for name, member in list(vars(known).items()):
            if inspect.isfunction(member) and not name.startswith("_"):
                setattr(known, name, _watched(member))
        return known
    watched: _T = _watched(known)
    return watched


def _watched(verb: Any) -> Any:
    @functools.wraps(verb)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except TypeError:
            if wrong := _wrong_keyword(verb, kwargs):
                raise TypeError(wrong) from None
            raise

    return call


def _wrong_keyword(verb: Any, kwargs: dict[str, Any]) -> str:
    """A sentence where one of these is no argument of the verb, else nothing."""
    parameters = inspect.signature(verb).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return ""
    names = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL and each.name != "self"]
    for keyword in kwargs:
        if keyword not in names:
            close = difflib.get_close_matches(keyword, names, 1) or _without_case(keyword, names)
            hint = f"did you mean {close[0]!r}?" if close else f"its arguments are {', '.join(names) or 'none'}"
            return f"{verb.__name__} has no argument {keyword!r}: {hint}"
    return ""


def _without_case(keyword: str, names: list[str]) -> list[str]:
    return [name for name in names if name.lower() == keyword.replace("_", "").lower()]
