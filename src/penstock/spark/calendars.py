# SPDX-License-Identifier: Apache-2.0
"""Spark's table of the differences between its old calendar and the new one, zone by zone, out of its own jar.

The table is that of the JVM: its time zone data and Python's do not have the same history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from penstock.operators.old_calendar import CORRECTED, Calendars, ZoneShifts

_TABLE = "julian-gregorian-rebase-micros.json"
_MODES = ("spark.sql.parquet.datetimeRebaseModeInRead", "spark.sql.parquet.int96RebaseModeInRead")


def calendars_of(session: Any, zones: Iterable[str] | None = None) -> Calendars:
    """The session's knowledge of old files; with `zones` also the shifts of these and of its own."""
    jvm = getattr(session, "_jvm", None)
    if jvm is None:
        return Calendars()
    own = str(jvm.java.util.TimeZone.getDefault().getID())
    times, int96 = (str(session.conf.get(mode, CORRECTED)).upper() for mode in _MODES)
    found: dict[str, ZoneShifts] = {}
    if zones is not None:
        known = _table(jvm)
        wanted = {own, "UTC", str(session.conf.get("spark.sql.session.timeZone")), *zones}
        found = {zone: known[zone] for zone in sorted(wanted) if zone in known}
    return Calendars(found, own, times, int96)


@lru_cache(maxsize=1)
def _table(jvm: Any) -> dict[str, ZoneShifts]:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    stream = loader.getResourceAsStream(_TABLE)
    try:
        text = bytes(stream.readAllBytes())
    finally:
        stream.close()
    return {each["tz"]: ZoneShifts(tuple(each["switches"]), tuple(each["diffs"])) for each in json.loads(text)}
