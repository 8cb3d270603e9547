# SPDX-License-Identifier: Apache-2.0
"""Names of columns in another case."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.api.file_sink import refuse_one_name
from penstock.api.streaming.places import reader_of_rows
from penstock.errors import PlanError, SchemaError
from penstock.spark.names import place_names


@pytest.mark.parametrize("names", [("a", "A"), ("a", "a"), ("ß", "ẞ"), ("i", "\u0131"), ("s", "\u017f"), ("ß", "ss")])
def test_all_that_look_at_names_find_the_same_ones_twice(names: tuple[str, str]) -> None:
    """Writers of files, queries whose rows go through files, and Spark's lookups judge by one comparison."""
    schema = pa.schema([(name, pa.int64()) for name in names])
    session = SimpleNamespace(conf={"spark.sql.caseSensitive": "false"})
    with pytest.raises(SchemaError, match=f"columns {names[0]!r}, {names[1]!r} have one name"):
        refuse_one_name(schema, "writeParquet", case_sensitive=False)
    with pytest.raises(PlanError, match=f"columns {names[0]!r}, {names[1]!r} are one to Spark"):
        reader_of_rows(session, schema, "memory")
    assert place_names(names) == ["c0", "c1"]
