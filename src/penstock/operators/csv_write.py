# SPDX-License-Identifier: Apache-2.0
r"""Rows as lines of CSV that PySpark reads as the same rows, with the signs that it has unless told otherwise.

A field is quoted if it is empty, or has the separator, a quote, a backslash, the end of a line or space at an end.
Space is what Spark's reader takes off there, the signs up to the blank; a line of nothing else is no row to it, so
one of nulls alone gets a `""` where the separator is such a sign. Within quotes a backslash stands before quotes and
backslashes. Null is `nullValue`, which is nothing unless told otherwise; the empty string is `""`, which Spark's
reader takes for null where its `nullValue` is nothing. Text with the end of a line in it needs `multiLine` in its
reader, as files of Spark's own do; a string that equals `nullValue` comes back as null, there as here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.values import text_scalar
from penstock.operators.value_texts import as_lines, is_plain, joined, value_texts


@dataclass(frozen=True, slots=True)
class CsvSigns:
    """The separator of fields, the text of nulls, and True for a first line with the columns' names."""

    separator: str = ","
    null: str = ""
    header: bool = False


_BLANKS = "".join(map(chr, range(0x21)))
PLAIN_CSV = CsvSigns()


def csv_fault(schema: pa.Schema) -> str:
    """The reason why rows can't be lines of CSV; empty if they can."""
    wrong = next((field for field in schema if not is_plain(field.type)), None)
    return "" if wrong is None else f"column {wrong.name!r} is {wrong.type}, and fields of CSV hold plain values"


def signs_fault(form: CsvSigns) -> str:
    """The reason why nulls of this text don't come back; empty if they do."""
    null = form.null
    if null.strip(_BLANKS) != null or any(sign in null for sign in (form.separator, '"', "\r", "\n")):
        return (
            f"nullValue {null!r} has a blank at an end, or a sign that ends a field or a line; no reader finds it:"
            " name another"
        )
    return ""


def csv_lines(batch: pa.RecordBatch, form: CsvSigns) -> pa.Buffer:
    """The lines of a batch."""
    null = form.null
    if batch.num_columns == 1 and not null:
        null = '""'  # an empty line is no row to its reader
    fields = [pc.fill_null(_field(column, form), text_scalar(null)) for column in batch.columns]
    lines = joined(fields, form.separator) if len(fields) > 1 else fields[0]
    if len(fields) > 1 and form.separator <= " ":
        is_blank = pc.match_substring_regex(lines, r"\A[\x00-\x20]*\z")
        lines = pc.if_else(is_blank, joined([text_scalar('""'), lines]), lines)
    return as_lines(lines)


def csv_header(schema: pa.Schema, form: CsvSigns) -> bytes:
    """The line with the names."""
    names = (_quoted(name) if _needs_quotes(form).search(name) or not name else name for name in schema.names)
    return (form.separator.join(names) + "\n").encode()


def _field(column: pa.Array, form: CsvSigns) -> pa.Array:
    texts = value_texts(column)
    if not pt.is_string(column.type):
        return texts
    needs = pc.match_substring_regex(texts, _needs_quotes(form).pattern)
    needs = pc.or_(needs, pc.equal(texts, text_scalar("")))
    if not pc.any(needs).as_py():
        return texts
    quoted = pc.replace_substring_regex(texts, r'(["\\])', r"\\\1")
    return pc.if_else(needs, joined([text_scalar('"'), quoted, text_scalar('"')]), texts)


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _needs_quotes(form: CsvSigns) -> re.Pattern[str]:
    return re.compile(r'["\\\r\n]|^[\x00-\x20]|[\x00-\x20]$|' + re.escape(form.separator))
