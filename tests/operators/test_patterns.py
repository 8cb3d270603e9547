# SPDX-License-Identifier: Apache-2.0
"""Java's regular expressions by RE2: what is refused when the stream is built, and what for single texts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.operators.expressions import Call, ColumnRef, Constant, UnsupportedError, ValuesError, evaluate, probe

TEXT = pa.string()
S = ColumnRef("s", TEXT)


def rows(*texts: str | None) -> pa.RecordBatch:
    """Rows with these texts in column s."""
    return pa.RecordBatch.from_pydict({"s": pa.array(texts, TEXT)})


def of(function: str, *arguments: str | int) -> Call:
    """A function of column s."""
    kinds = {"RLike": pa.bool_(), "StringSplit": pa.list_(TEXT)}
    constants = [Constant(pa.array([item], TEXT if isinstance(item, str) else pa.int32())) for item in arguments]
    return Call(function, kinds.get(function, TEXT), (S, *constants))


REFUSED = [
    *(
        "a++",
        "a*+b",
        "(?=a)",
        "(?<=a)b",
        "(?>a)",
        "(?m)^b",
        "(?x) a",
        "(?u)é",
        "(?U)\\w",
        "(?d)b$",
        "(?P<x>a)",
        "\\1",
    ),
    *(
        "[a-c&&[^b]]",
        "[[a]b]",
        "[]a]",
        "[^]a]",
        "[a-\\d]",
        "[z-a]",
        "a{,2}",
        "{",
        "a**",
        "(a*)*",
        "(|a)+",
        "b$c",
        "$*",
    ),
    *("\\G", "\\R", "\\X", "\\N", "\\B", "\\C", "\\y", "\\k<n>", "\\p{IsLatin}", "\\p{C}", "(?i)\\p{Lu}", "\\ud83d"),
    *("(a", "a)", "a\\", "[a", "b$|c\\z", "(?<n>a", "\\x{110000}", "\\b{g}"),
]


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_java_and_re2_read_differently_is_refused(pattern: str) -> None:
    """Syntax that only one of them has, or that means something else to each, is refused with the pattern."""
    with pytest.raises(UnsupportedError, match="of the regular expression"):
        probe(of("RLike", pattern), rows().slice(0, 0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (of("RegExpReplace", "b*", "X"), r"regexp_replace of 'b\*', which matches nothing at all"),
        (of("RegExpReplace", "\\s*$", "X"), "matches nothing at all"),
        (of("RegExpReplace", "(a)", "$2"), r"the replacement '\$2'"),
        (of("RegExpReplace", "(a)", "${n}"), "the replacement"),
        (of("RegExpReplace", "a", "X\\"), "the replacement"),
        (of("RegExpReplace", "a", "$10"), "the replacement"),
        (of("RegExpExtract", "(a)", 2), "group 2 of the regular expression"),
        (of("StringSplit", "^a"), "split by '.a', which matches by what is around it"),
        (of("StringSplit", "\\bb"), "matches by what is around it"),
        (of("StringSplit", "x*"), "matches by what is around it"),
        (Call("Like", pa.bool_(), (S, Constant(pa.array(["a\\b"])))), "stands ahead of what needs no escape"),
        (Call("Like", pa.bool_(), (S, Constant(pa.array(["a\\"])))), "stands ahead of what needs no escape"),
    ],
)
def test_uses_that_would_give_other_rows_are_refused(call: Call, message: str) -> None:
    """Empty matches, unknown groups and pieces that lose what is around them: refused before any row is seen."""
    with pytest.raises(UnsupportedError, match=message):
        probe(call, rows().slice(0, 0))


def test_texts_that_only_java_could_tell_are_errors() -> None:
    r"""`$` ahead of a last line end, and `\b` among letters beyond ASCII, name the text; `rlike` knows the first."""
    with pytest.raises(ValuesError, match=r"'ab\\n' ends with a line end"):
        evaluate(of("RegExpReplace", "b$", "X"), rows("ab", "ab\n"))
    with pytest.raises(ValuesError, match="'été' has letters beyond ASCII"):
        evaluate(of("RegExpReplace", "\\bt", "X"), rows("a t", "été"))
    assert evaluate(of("RegExpReplace", "\\bt$", "X"), rows("a t", "€t", None)).to_pylist() == ["a X", "€X", None]
    assert evaluate(of("RLike", "b$"), rows("ab\n", "ab\r\n", "ab\n\n")).to_pylist() == [True, True, False]


def test_a_refused_text_is_no_error_where_no_row_asks() -> None:
    """CASE keeps a pattern from texts that its condition leaves out, though it would be refused for them."""
    cut = of("RegExpReplace", "b$", "X")
    is_clean = Call("Not", pa.bool_(), (Call("EndsWith", pa.bool_(), (S, Constant(pa.array(["\n"])))),))
    found = evaluate(Call("CaseWhen", TEXT, (is_clean, cut, S)), rows("ab", "ab\n"))
    assert found.to_pylist() == ["aX", "ab\n"]
