# SPDX-License-Identifier: Apache-2.0
"""The rows of `penstock_bench services`, and their sections."""

from __future__ import annotations

from penstock_bench.page_rows import Row, Section

SERVICES = Section(
    "Blocking exchanges through services",
    "The same exchange through one service and another in turns, in one session, and Spark's own exchange in the "
    "same turns; the services are on the same host. Compare within this table only.",
)
LOOPBACK = Section(
    "The least that fetching takes",
    "A process sends the bytes of the exchange from a file by `sendfile`, in the pieces that the host service is "
    "asked for, another one receives them by `recv_into`; nobody looks at them. A figure is the CPU time of both "
    "processes, the median of the turns.",
)
SERVICE_ROWS = {
    "local": Row("exchange by an integer, `local`", "Readers map the files of their host.", SERVICES),
    "external": Row(
        "exchange by an integer, `external`",
        "Tasks write into files of the host service, and fetch all rows from its port, on loopback "
        "(`spark.penstock.external.lending=false`).",
        SERVICES,
    ),
    "external, lent": Row(
        "exchange by an integer, `external`, files lent",
        "Tasks write into files of the host service, and read those that it lends them: its readers' way on its own "
        "host.",
        SERVICES,
    ),
    "spark_ess": Row(
        "exchange by an integer, `spark_ess`",
        "Tasks write files, and fetch all rows from Spark's own shuffle service, on loopback.",
        SERVICES,
    ),
    "remote": Row(
        "exchange by an integer, `remote`",
        "Tasks push all rows to a worker, and fetch them from it, on loopback.",
        SERVICES,
    ),
}
_FAMILIES = {"AF_INET": "loopback", "AF_UNIX": "a Unix socket"}
_MEMORIES = {
    "fresh": ("fresh memory", "Memory of its own for each piece, as rows need it that somebody may keep."),
    "again": ("memory used again", "The same memory for each piece."),
}
LOOPBACK_ROWS = {
    (family, memory): Row(f"bytes over {words}, {label}", meaning, LOOPBACK)
    for family, words in _FAMILIES.items()
    for memory, (label, meaning) in _MEMORIES.items()
}
