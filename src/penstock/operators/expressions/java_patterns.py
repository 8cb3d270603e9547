# SPDX-License-Identifier: Apache-2.0
r"""Regular expressions of Java in the syntax of RE2, meaning the same for every text; others are refused by name.

The two agree on much and differ silently on the rest: in Java `.` ends at five kinds of line ends, `\s` has the
vertical tab, `\v` is a class, `(?i)` means ASCII's letters alone, `(?U)` is another flag. So a pattern is parsed,
and written anew in what both define alike.

Limits: no look-around, back references, possessive quantifiers, `(?m)`, `\B`, nor intersections of classes. A
repeated group may not match nothing, and `$` may only end the pattern or an alternative. Two properties depend on the
text: `$` also holds ahead of a line end that ends the text, and `\b` beside letters beyond ASCII depends on Java's
version; a `Pattern` says whether it has such places, and kernels look at the texts then.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock.operators.expressions.tree import UnsupportedError

_NOT_A_LINE_END: Final = r"[^\n\r\x{85}\x{2028}\x{2029}]"
_VERTICAL: Final = r"\n\x{b}\x{c}\r\x{85}\x{2028}\x{2029}"
_HORIZONTAL: Final = r" \t\x{a0}\x{1680}\x{180e}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}"
_CLASSES = {
    "d": r"\d", "D": r"\D", "w": r"\w", "W": r"\W", "s": "[:space:]", "S": "[:^space:]",
    "h": _HORIZONTAL, "v": _VERTICAL,
}  # fmt: skip
"""Between brackets, by the letter behind the backslash."""
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_POSIX = ("Lower", "Upper", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print", "Blank", "Cntrl", "XDigit", "Space")
_CATEGORY = re.compile("L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?")
_NUMBERED = (
    (re.compile(r"0([0-3][0-7][0-7]|[0-7][0-7]|[0-7])"), 8),
    (re.compile(r"x([0-9a-fA-F]{2})"), 16),
    (re.compile(r"x\{([0-9a-fA-F]{1,6})\}"), 16),
    (re.compile(r"u([0-9a-fA-F]{4})"), 16),
)
_QUANTIFIER = re.compile(r"[*+?]|\{(\d+)(?:(,)(\d*))?\}")
_FLAGS = re.compile(r"\(\?([is]*)(?:-([is]+))?([:)])")
_NAME = re.compile(r"\(\?<[a-zA-Z][a-zA-Z0-9]*>")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)|\\[^Q]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern for RE2, and what its user must know of it."""

    text: str
    groups: int
    matches_nothing: bool
    """True if an empty part of some text matches."""
    is_anchored: bool
    """True if it matches at the begin of a text only."""
    looks_around: bool
    """True if it asks for the begin of the text or a word, which a part of the text may have elsewhere."""
    ends_text: bool
    """True if it asks for the end, which Java also sees ahead of a line end."""
    ends_word: bool
    """True if it asks for the end of a word."""


@dataclass(frozen=True, slots=True)
class _PatternPart:
    text: str
    matches_nothing: bool = False
    is_anchored: bool = False
    ends_text: bool = False


@lru_cache
def translated(pattern: str, group: int | None = None) -> Pattern:
    """The pattern, with one group named `found` (0: all of it) and none else; raises UnsupportedError."""
    plain = _QUOTED.sub(lambda found: found[0] if found[1] is None else "".join(map(literal, found[1])), pattern)
    parser = _PatternParser(plain, group)
    try:
        part = parser.whole()
    except UnsupportedError as error:
        raise UnsupportedError(f"{error} of the regular expression {pattern!r}") from None
    if group is not None and group > parser.groups:
        raise UnsupportedError(f"group {group} of the regular expression {pattern!r}, which has {parser.groups}")
    text = f"(?P<found>{part.text})" if group == 0 else part.text
    seen = parser.seen
    if "\\z" in seen and "$" in seen:
        raise UnsupportedError(f"both $ and \\z of the regular expression {pattern!r}")
    return Pattern(
        text,
        parser.groups,
        part.matches_nothing,
        part.is_anchored,
        bool(seen & {"^", "\\b"}),
        "$" in seen,
        "\\b" in seen,
    )


def literal(sign: str) -> str:
    """A character that stands for itself in RE2's patterns and in its classes."""
    return sign if sign in string.ascii_letters + string.digits else f"\\x{{{ord(sign):x}}}"


class _PatternParser:
    """Descends once through a pattern; `seen` has the assertions that it met."""

    def __init__(self, pattern: str, group: int | None) -> None:
        self._pattern = pattern
        self._group = group
        self._place = 0
        self._ignores_case = self._dot_is_all = False
        self.groups = 0
        self.seen: set[str] = set()

    def whole(self) -> _PatternPart:
        """Translate the whole pattern."""
        part = self._alternatives()
        if self._place < len(self._pattern):
            raise UnsupportedError("a closing bracket too many")
        return part

    def _next(self, count: int = 1) -> str:
        return self._pattern[self._place : self._place + count]

    def _take(self) -> str:
        sign = self._next()
        if not sign:
            raise UnsupportedError("an end that comes too early")
        self._place += 1
        return sign

    def _alternatives(self) -> _PatternPart:
        flags = self._ignores_case, self._dot_is_all
        parts = [self._sequence()]
        while self._next() == "|":
            self._place += 1
            parts.append(self._sequence())
        self._ignores_case, self._dot_is_all = flags
        return _PatternPart(
            "|".join(part.text for part in parts),
            any(part.matches_nothing for part in parts),
            all(part.is_anchored for part in parts),
            any(part.ends_text for part in parts),
        )

    def _sequence(self) -> _PatternPart:
        parts: list[_PatternPart] = []
        while self._next() not in ("", "|", ")"):
            part = self._quantified(self._atom())
            if part is None:  # flags
                continue
            if parts and parts[-1].ends_text:
                raise UnsupportedError("$ ahead of something else")
            parts.append(part)
        return _PatternPart(
            "".join(part.text for part in parts),
            all(part.matches_nothing for part in parts),
            bool(parts) and parts[0].is_anchored,
            bool(parts) and parts[-1].ends_text,
        )

    def _quantified(self, part: _PatternPart | None) -> _PatternPart | None:
        found = _QUANTIFIER.match(self._pattern, self._place)
        if found is None or part is None:
            if self._next() == "{" or (found is not None and part is None):
                raise UnsupportedError(f"{self._next()!r} that repeats nothing")
            return part
        if part.matches_nothing or part.ends_text:
            raise UnsupportedError(f"{found[0]} after a part that may match nothing")
        self._place = found.end()
        text = part.text + found[0]
        if self._next() == "?":
            self._place += 1
            text += "?"
        if self._next() in ("+", "*", "?", "{"):
            raise UnsupportedError(f"{found[0]}{self._next()}")
        least = int(found[1]) if found[1] else int(found[0] == "+")
        return _PatternPart(text, least == 0, part.is_anchored and least > 0)

    def _atom(self) -> _PatternPart | None:
        sign = self._take()
        if sign == "(":
            return self._in_brackets()
        if sign == "[":
            return _PatternPart(self._class())
        if sign == "\\":
            return self._escaped()
        if sign == ".":
            return _PatternPart("(?s:.)" if self._dot_is_all else _NOT_A_LINE_END)
        if sign == "^":
            return self._assertion("^")
        if sign == "$":
            return self._assertion("$")
        if sign in "*+?{":
            raise UnsupportedError(f"{sign!r} that repeats nothing")
        return _PatternPart(self._one(sign))

    def _assertion(self, sign: str) -> _PatternPart:
        r"""`^`, `$`, `\b` or `\z`."""
        self.seen.add(sign)
        text = {"^": "\\A", "$": "\\z"}.get(sign, sign)
        return _PatternPart(text, matches_nothing=True, is_anchored=sign == "^", ends_text=sign in ("$", "\\z"))

    def _in_brackets(self) -> _PatternPart | None:
        self._place -= 1
        flags, name = (each.match(self._pattern, self._place) for each in (_FLAGS, _NAME))
        within = self._ignores_case, self._dot_is_all
        if flags is not None:
            self._place = flags.end()
            self._ignores_case = (self._ignores_case or "i" in flags[1]) and "i" not in (flags[2] or "")
            self._dot_is_all = (self._dot_is_all or "s" in flags[1]) and "s" not in (flags[2] or "")
            if flags[3] == ")":
                return None
            opening = "(?:"
        elif self._next(2) == "(?" and name is None:
            raise UnsupportedError(f"{self._next(4)}")
        else:
            self._place = self._place + 1 if name is None else name.end()
            self.groups += 1
            opening = "(" if self._group is None else "(?P<found>" if self._group == self.groups else "(?:"
        part = self._alternatives()
        self._ignores_case, self._dot_is_all = within
        if self._take() != ")":
            raise UnsupportedError("a bracket that is not closed")
        return _PatternPart(f"{opening}{part.text})", part.matches_nothing, part.is_anchored, part.ends_text)

    def _one(self, sign: str) -> str:
        both = self._cases(sign)
        return f"[{''.join(both)}]" if len(both) > 1 else literal(sign)

    def _cases(self, sign: str) -> list[str]:
        is_letter = self._ignores_case and sign in string.ascii_letters
        return [sign.lower(), sign.upper()] if is_letter else [sign]

    def _escaped(self) -> _PatternPart:
        sign = self._next()
        if sign in ("b", "A", "z", "Z"):
            self._place += 1
            if self._next() == "{":  # \b{g}
                raise UnsupportedError(f"\\{sign}{{")
            return self._assertion({"A": "^", "Z": "$"}.get(sign, f"\\{sign}"))
        group = self._class_letter()
        return _PatternPart(f"[{group}]") if group is not None else _PatternPart(self._one(self._character()))

    def _class_letter(self) -> str | None:
        r"""The class `\d` or `\p{L}`, whose backslash is behind us, between brackets; None for what is no class."""
        sign = self._next()
        if sign in _CLASSES:
            self._place += 1
            return _CLASSES[sign]
        if sign not in ("p", "P") or not sign:
            return None
        found = re.compile(r"[pP](?:\{(\w+)\}|([A-Z]))").match(self._pattern, self._place)
        name = "" if found is None else found[1] or found[2]
        if found is not None and not self._ignores_case:
            self._place = found.end()
            if name in _POSIX:
                return f"[:{'^' if sign == 'P' else ''}{name.lower()}:]"
            if _CATEGORY.fullmatch(name.removeprefix("Is")):
                return f"\\{sign}{{{name.removeprefix('Is')}}}"
        raise UnsupportedError(f"\\{sign}{{{name}}}")

    def _character(self) -> str:
        """The character that an escape means whose backslash is behind us."""
        for form, base in _NUMBERED:
            found = form.match(self._pattern, self._place)
            if found is not None:
                self._place = found.end()
                code = int(found[1], base)
                if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
                    raise UnsupportedError(f"\\{found[0]}")
                return chr(code)
        sign = self._take()
        if sign in _CONTROLS:
            return _CONTROLS[sign]
        if sign in string.ascii_letters + string.digits:
            raise UnsupportedError(f"\\{sign}")
        return sign

    def _class(self) -> str:
        """A class whose opening bracket is behind us."""
        items = ["["]
        if self._next() == "^":
            self._place += 1
            items.append("^")
        if self._next() == "]":
            raise UnsupportedError("] as the first of a class")
        while self._next() != "]":
            items.append(self._item())
        self._place += 1
        return "".join([*items, "]"])

    def _item(self) -> str:
        """A character, range or class of a class."""
        first = self._member()
        if len(first) > 1:
            return first[1:]
        if self._next() != "-" or self._next(2)[1:] in ("]", ""):
            return "".join(map(literal, self._cases(first)))
        self._place += 1
        last = self._member()
        if len(last) > 1 or last < first:
            raise UnsupportedError(f"a range from {first!r} to {last!r}")
        within = f"{literal(first)}-{literal(last)}"
        if self._ignores_case:
            letters = (other for other in string.ascii_letters if first <= other.swapcase() <= last)
            within += "".join(letters)
        return within

    def _member(self) -> str:
        """One character; or, behind a mark, what a class is between brackets."""
        if self._next(2) == "&&" or self._next() == "[":
            raise UnsupportedError(f"{self._next(2)!r} within a class")
        sign = self._take()
        if sign != "\\":
            return sign
        group = self._class_letter()
        return self._character() if group is None else f"\\{group}"
