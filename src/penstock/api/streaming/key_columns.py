# SPDX-License-Identifier: Apache-2.0
"""`option("keyColumns", "user,day")` of sinks: the columns by whose values a newer row replaces an older one."""

from __future__ import annotations

import pyarrow as pa

from penstock.api.schemas import column_arguments
from penstock.api.streaming.options import Options
from penstock.operators.keys import refuse_ungroupable

KEY_COLUMNS = "keyColumns"


def key_columns(options: Options, schema: pa.Schema) -> tuple[str, ...]:
    """The names that the option has, each a plain column of the rows; none where it is left out."""
    names = [name.strip() for name in (options.text(KEY_COLUMNS) or "").split(",")]
    keys = column_arguments([name for name in names if name], schema, f"writeStream: {KEY_COLUMNS}")
    refuse_ungroupable(schema, keys)
    return keys
