# SPDX-License-Identifier: Apache-2.0
"""The session's part in reading files: the case of names, and the shifts of old calendars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.operators.parquet_read import AS_SPARK, FileReading


def is_case_sensitive(session: Any) -> bool:
    """Tell whether names that differ in case are two to a session; Spark's own default where there is none."""
    conf = getattr(session, "conf", None)
    return conf is not None and str(conf.get("spark.sql.caseSensitive")).lower() == "true"


def reading_of(session: Any, zones: Iterable[str] | None = None) -> FileReading:
    """The session's; Spark's own where there is none. With `zones` their shifts are looked up, and the session's."""
    if getattr(session, "conf", None) is None:
        return AS_SPARK
    from penstock.spark.calendars import calendars_of

    return FileReading(is_case_sensitive(session), calendars_of(session, zones))
