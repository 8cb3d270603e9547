# SPDX-License-Identifier: Apache-2.0
"""A keyword that a verb does not have gets the one that it resembles, as a verb does that a stream does not have.

An argument that a verb needs and was not given is named with those around it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, TypeVar

_T = TypeVar("_T")
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def suggests_arguments(known: _T) -> _T:
    """Of a function, or of each public method of a class: a wrong keyword is a TypeError that names a near one.

    So is an argument that is missing, and it is shown where it belongs.
    """
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
            if wrong := _wrong_keyword(verb, kwargs) or _missing(verb, args, kwargs):
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


def _missing(verb: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A sentence where arguments are missing that the verb needs, else nothing."""
    try:
        given = inspect.signature(verb).bind_partial(*args, **kwargs).arguments
    except TypeError:  # there are too many
        return ""
    parameters = [each for each in inspect.signature(verb).parameters.values() if each.name != "self"]
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in _ANY_NUMBER]
    missing = [name for name in needed if name not in given]
    if not missing:
        return ""
    rest = ", ..." if len(parameters) > len(needed) else ""
    return f"{verb.__name__} needs {' and '.join(missing)}: {verb.__name__}({', '.join(needed)}{rest})"


def _without_case(keyword: str, names: list[str]) -> list[str]:
    return [name for name in names if name.lower() == keyword.replace("_", "").lower()]
