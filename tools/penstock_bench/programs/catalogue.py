# SPDX-License-Identifier: Apache-2.0
"""The programs, in the order in which they run."""

from __future__ import annotations

from penstock_bench.programs import (
    access_log,
    duplicates,
    flights,
    inference,
    latest_change,
    ledgers,
    page_rank,
    page_rank_arrays,
    regression,
    sensor_features,
    sessions,
    skewed_join,
    top_songs,
    word_count,
)

PROGRAMS = (
    word_count.PROGRAM,
    page_rank.PROGRAM,
    page_rank_arrays.PROGRAM,
    sessions.PROGRAM,
    sensor_features.PROGRAM,
    regression.PROGRAM,
    latest_change.PROGRAM,
    skewed_join.PROGRAM,
    access_log.PROGRAM,
    inference.PROGRAM,
    top_songs.PROGRAM,
    flights.PROGRAM,
    duplicates.PROGRAM,
    ledgers.PROGRAM,
)
