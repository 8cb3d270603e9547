# SPDX-License-Identifier: Apache-2.0
"""Tables of values at the edges of expressions, and expressions over them: ties, odd letters, patterns, casts."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import zip_longest

import pyarrow as pa

_TIES = [
    *(1.0049999999999997, 1.005, 2.675, -2.675, 0.125, 23.865000000000002, 5.374999999999999, 24.580499999999997),
    *(0.49999999999999994, -0.49999999999999994, 0.5, -0.5, 1.5, 2.5, -663791352218262.4, 149.99999999999997),
    *(2.0**53, 2.0**53 + 2, 6.886786931126303e16, 1e22, 1.7976931348623157e308, 5e-324, 3150584783.5502143),
    *(-0.0, 0.0, float("nan"), float("inf"), -float("inf"), 25.0, -15.0, 12345678901234565.0, -526.8873858859984),
    *(math.nextafter(step / 8 + 0.005, side * math.inf) for step in range(8) for side in (-1, 1)),
]
_TEXTS = [
    *(
        "",
        " ",
        "A b",
        "b",
        "bb",
        "abcABC",
        "été ÉTÉ",
        "Straße",
        "\u017fK\u212a",
        "ΟΔΥΣΣΕΥΣ Σ ΑΣ.Σ",
        "x1-y22",
        " pad ",
    ),
    *("\tt\n", "a\nb", "a\nb\n", "a\r\n", "b\r\nc\r", "\x0bx\x85", "a\u2028", "١٢", "--a-b-", "%_", "a%b_c"),
    *("a\\b", "$1", "\\d", "😀a😀", "aaa", "a,,b,", "[x]|(a)", "^a$", "aXbX", "\x00a"),
]


def table() -> pa.Table:
    """Columns x (doubles), f (floats) and s (text)."""
    x, s = zip(*zip_longest(_TIES, _TEXTS), strict=True)
    floats = [None if value is None or 3e38 < abs(value) < math.inf else value for value in x]
    return pa.table(
        {"x": pa.array(x, pa.float64()), "f": pa.array(floats, pa.float32()), "s": pa.array(s, pa.string())}
    )


_PATTERNS = [
    *(
        "b",
        "a|b",
        "(a)(b)?",
        "^b",
        "(?s)^.",
        ".",
        ".+",
        "[a-c]+",
        "[^a-c]",
        "(?i)ABC",
        "(?i)[j-l]",
        "(?i)s",
        "(?i:B)b",
    ),
    *(r"\\d+", r"\\w+", r"\\W", r"\\s", r"\\S+", r"\\h", r"\\v", r"[\\s,-]+", r"\\p{L}+", r"\\p{Lu}", r"\\p{Punct}"),
    *(r"\\Qa%\\E", r"\\x41", r"\\u0041", r"\\x{1F600}", r"a{2}", r"a{1,2}?", r"(?<n>a)X", r"\\$", "[.$]", r"\\\\"),
]
_REPLACEMENTS = ["<$0>", "[$1]", r"\\$", r"\\\\", ""]
_LIKE = ["%", "_", "a%", "%a%", r"\\%\\_", "%b", "%é%", r"a\\\\b", r"%\n", "a.b"]

EXPRESSIONS = [
    *(
        f"{name}({column}, {digits})"
        for name in ("round", "bround")
        for column in "xf"
        for digits in (0, 2, 5, -1, -2)
    ),
    *("round(x, 12)", "round(x, 15)", "sign(x)", "sqrt(f)"),
    *(f"s rlike '{pattern}'" for pattern in [*_PATTERNS, "b*", "b$", ".$", "^$", "a$|b", r"a\\Z", r"b\\z", r"\\n$"]),
    *(f"regexp_replace(s, '{pattern}', 'X')" for pattern in _PATTERNS),
    *(f"regexp_extract(s, '{pattern}', 0)" for pattern in [*_PATTERNS, "b*", r"^\\s*"]),
    *(f"split(s, '{pattern}', {limit})" for pattern in (",", "a|b", r"\\s", "-+") for limit in (-1, 0, 1, 2)),
    *(f"regexp_replace(s, '(a)(b)?', '{replacement}')" for replacement in _REPLACEMENTS),
    *(f"s like '{pattern}'" for pattern in _LIKE),
    *("s like '!%!_' escape '!'", "s like 'a!%%' escape '!'", "lower(s)", "upper(s)", "s ilike 'A%'"),
]
"""All are computed; each row has Spark's value."""


NUMBER_TEXTS = [
    *("1", "-0", "+5", " 7 ", "\x00\x7f8\x1f", "1.5", "", "+", "-", "99999999999", "9223372036854775808"),
    *("-9223372036854775808", "1e3", "1d", "1.5F", "0x10", "NaN", "nan", "+NaN", "-NaN", "-nan", "inf"),
    *("+INF", "Infinity", "-infinity", "1e400", "-1e400", "1e-400", "1e39", ".5", "1.", ".", "1e", "\xa05"),
    *("t", "TRUE", " y ", "yes", "no ", "0", "2", "tr", "null", None, "1_0"),
    *("000000000000000000000000000000000000000000000000001", "99999999999999999999999999999999999999"),
    *("999999999999999999999999999999999999999", "99999.994", "99999.995", "0.005"),
    *("0.0049999999999999999999999999999999999999999999999999", "1e-50", "1e2147483647", "0e37", "0e38"),
    *("0.0e38", "1e-2147483647", "1e-99999999999", "12345678901234567890.5e-18", "+.5e+1", "1E5\x7f"),
    *("\x7f1.5", "5 5"),
]
TIME_TEXTS = [
    *("2020-01-01", "2020", "2020-1", "2020-1-5", "+2020-1-05", "-0044-03-15", "0000-01-01", "2020-13"),
    *("2020-02-30", "2020-02-29", "2021-02-29", "2020-01-05T", "2020-01-05 xyz", "2020-01-05Txyz"),
    *("2020-01-05x", "2020-1 ", "2020-1 x", " 2020-01-01\n", "12345-02-01", "9999999-01-01", "1234567-12-31"),
    *("12345678-01-01", "999", "020-01-01", "2020-001-01", "2020-01-001", "2020--1", "2020-", "2020-01-"),
    *("-", "", "2020/01/01", "20200101", "202001", "2020-01-01 12", "2020-01-01 12:3", "2020-01-01 12:30:"),
    *("2020-01-01 12:30:5", "2020-01-01T12:30:15.", "2020-01-01 12:30:15.1", "2020-01-01 12:30:15.1234567"),
    *("2020-01-01 12:30:15.123456789012Z", "2020-01-01 12:30:15Z", "2020-01-01 12:30:15 Z"),
    *("2020-01-01 12:30:15+01:00", "2020-01-01 12:30:15 +1:00", "2020-01-01 12:30:15-08:3"),
    *("2020-01-01 12:30:15+01", "2020-01-01 12:30:15+1", "2020-01-01 12:30:15+18:00"),
    *("2020-01-01 12:30:15+18:01", "2020-01-01 12:30:15+01:60", "2020-01-01 12:30:15UTC"),
    *("2020-01-01 12:30:15 GMT", "2020-01-01 12:30:15UT", "2020-01-01 12:30:15 UTC+01:00"),
    *("2020-01-01 12:30:15xyz!", "2020-01-01 12:30:15.5 +01:00", "2020-01-01 12:30Z", "2020-01-01 24:00:00"),
    *("2020-01-01 23:60:00", "2020-01-01 23:59:60", "2020-01-01 1:2:3", "2020-01-01T1:2"),
    *("2020-01-01 012:00:00", "2020-01-01  12:00:00", "2020-03-29 02:30:00", "2020-10-25 02:30:00"),
    *("2020-10-25 02:30:00+00:00", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775807Z"),
    *("294247-01-10 04:00:54.775808Z", "-290308-12-21 19:59:05.224192Z", "-290308-12-21 19:59:05.224191Z"),
    *("12345-01-07 08:09:10", "0001-01-01 00:00:00", "0000-01-01 00:00:00", "-0044-03-15 12:00:00"),
    *("1880-01-01 00:00:00", "+2020-01-01 1:00:00", "2020 12:00", "2020-01 12:00", "2020-01-01 12:30:15-"),
    *("2020-01-01 12:30:15+", "2020-01-01 12:30:15.-08:00", None, "2020-01-01 12:30:15 ", "1582-10-10"),
    *("1582-10-10 00:00:00", "2020-01-01 12:30:15:5", "2020-01-01 12:30:15 5", "2020-01-01 12:30:15--8"),
    "2020-01-01 12:30:15\x7f",
]
_REALS = [
    *(float("nan"), math.inf, -math.inf, 2.0**63, -(2.0**63), -(2.0**63) - 2048, 2.0**31, 2147483647.9, None),
    *(-2147483648.9, -2147483649.0, 127.9, 128.0, -128.9, -129.0, 0.9, -0.9, -0.0, 32767.5, 1e300),
]
_WHOLES = [
    *(0, 1, -1, 127, 128, -128, -129, 32768, 99999, 100000, -100000),
    *(2**31, -(2**31) - 1, 2**63 - 1, -(2**63), None),
]
_EXACT = [
    *("0", "1.5", "-1.5", "127.999999999", "-128.999999999", "128", "99999.994", "99999.995", "-99999.995"),
    *(
        "9223372036854775807.9",
        "9223372036854775808",
        "-9223372036854775808.9",
        "-9223372036854775809",
        "0.005",
        None,
    ),
]


def cast_table() -> pa.Table:
    """Columns n and t (text as numbers and as times), x and f (reals), l, i (whole numbers), d (decimals)."""
    exact = [None if value is None else Decimal(value) for value in _EXACT]
    small = [value if value is None or abs(value) < 2**31 else 7 for value in _WHOLES]
    columns = list(zip(*zip_longest(NUMBER_TEXTS, TIME_TEXTS, _REALS, _WHOLES, small, exact), strict=True))
    kinds = (pa.string(), pa.string(), pa.float64(), pa.int64(), pa.int32(), pa.decimal128(38, 9))
    made = dict(zip("ntxlid", (pa.array(*pair) for pair in zip(columns, kinds, strict=True)), strict=True))
    return pa.table({**made, "f": made["x"].cast(pa.float32(), safe=False)})


_NUMBERS = ["tinyint", "smallint", "int", "bigint", "float", "double", "boolean"]
_EXACT_KINDS = [
    "decimal(7, 2)",
    "decimal(38, 0)",
    "decimal(38, 38)",
    "decimal(38, 19)",
    "decimal(20, 3)",
    "decimal(3, 3)",
]
TRIED = [
    *(f"try_cast({column} as {kind})" for column in "nxfid" for kind in _NUMBERS),
    *(f"try_cast({column} as {kind})" for column in "nlid" for kind in _EXACT_KINDS),
    *(f"try_cast(l as {kind})" for kind in (*_NUMBERS, "timestamp")),
    *("unix_date(try_cast(t as date))", "unix_micros(try_cast(t as timestamp))", "try_cast(t as timestamp_ntz)"),
    *("try_cast(n as string)", "try_cast(try_cast(n as timestamp) as bigint)", "try_cast('x' as int)"),
    *("try_cast(try_cast(t as timestamp) as int)", "unix_micros(try_cast(try_cast(t as date) as timestamp))"),
]
"""Casts that give null for what does not fit."""
