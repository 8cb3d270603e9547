# SPDX-License-Identifier: Apache-2.0
"""Every row that a bench can report: its label, what it means, and the section of the page it stands in.

An outcome has a row of this catalogue and no text of its own, so each figure has a meaning, and no label stands for
two of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_bench.page_rows import Row, Section
from penstock_bench.service_rows import LOOPBACK, LOOPBACK_ROWS, SERVICE_ROWS, SERVICES

BESIDE_SPARK = Section(
    "Beside Spark's own shuffle",
    "Both sides run the same Python functions on the same rows in one warm session, in turns, and both answers are "
    "checked. A figure is the median of whole actions, from the call to the last row in the driver. Spark has the "
    "settings that suit it best here, and that one of 2, 4 and 8 shuffle partitions (in brackets) with which it was "
    "fastest on a tenth of the rows. *Times* says how many times faster Penstock is.",
)
WIDE = Section(
    "Blocking exchanges of many subpartitions",
    "Two tasks make the rows in memory and write a blocking partition each, eight tasks read ranges of subpartitions "
    "and count. A figure is the median of whole jobs, without the start of the session.",
)
HYBRID = Section(
    "Hybrid exchanges beside blocking ones",
    "The modes run in turns in one session, so compare within this table only: the times of one mode differ more "
    "between two sessions than the modes do within one.",
)
ENVIRONMENT = Section(
    "Memory of an environment process",
    "The most that the environment process holds by itself while rows made in memory go through a pipelined "
    "exchange. The shared pool (`spark.penstock.network.memory`) is not counted.",
)
LATENCY = Section(
    "Latency",
    "A source gives one row, waits five milliseconds, gives the next one. `spark.penstock.network.flushTimeout` is "
    "a millisecond. A figure is the time from the function that gives the row to the function that gets it.",
)
STREAMING = Section(
    "Streaming queries",
    "Two sources make numbers as fast as they go, two counters keep a count for each of 100,000 keys, and what they "
    "give is dropped. The rate is the median over the seconds of one query, without its first ones.",
)
CHECKPOINTS = Section(
    "Checkpoints under back-pressure",
    "Four sources give rows as fast as they go, through an exchange by key and one in turns, each to four tasks; the "
    "last operator is busy for some microseconds with each row, in steps of 100 to 1,000 rows. Checkpoints are asked "
    "for once the sources stand still for four fifths of the time; a figure is the median of them.",
)
LONE = Section(
    "Tasks that restart alone",
    "A source of 6,000 rows a second, six mappers and a sink on two executors; one mapper is killed, and its "
    "successor comes when Spark has started it. A figure is the 99th percentile of the gaps between the batches of "
    "all others.",
)
COPIES = Section(
    "Copies after functions",
    "A function may write into what it gave when it is asked for more, so what is held longer is copied. A job "
    "runs with and without the copy in turns; a function makes all columns again, so all are copied. A figure is the "
    "share by which the CPU seconds of all processes are more, the median of the turns.",
)
METRICS = Section(
    "Metrics",
    "The same work in turns in two sessions: one with the endpoints of driver and environments, the figures of each "
    "channel and the event log on, one with none of them. A figure is the share by which the CPU seconds of all "
    "processes are more, the median of the turns.",
)
TLS = Section(
    "TLS between hosts",
    "The first exchange of this page on two executors, half of whose rows go from one to the other, in turns in two "
    "sessions: one encrypted, one in plain text. A figure is the share by which the CPU seconds of all processes are "
    "more, the median of the turns.",
)
PAGE = Section(
    "The web page",
    "The streaming count with a checkpoint each second runs on; in turns the page is closed, and open with three "
    "visitors. Real browsers (Chromium without a window) have little more than the query leaves of its processors "
    "(nice 19), as a colleague's browser takes none of them; once they are as good as its tasks. Readers take what "
    "the page sends, and drop it. The cost of the page to the query is that by CPU second: it counts no work of the "
    "visitors. A figure is the median of the turns.",
)
SECTIONS = (
    BESIDE_SPARK,
    WIDE,
    HYBRID,
    SERVICES,
    LOOPBACK,
    ENVIRONMENT,
    LATENCY,
    COPIES,
    METRICS,
    TLS,
    PAGE,
    STREAMING,
    LONE,
    CHECKPOINTS,
)
"""In the order of the page."""

PIPELINED = Row(
    "exchange by an integer, pipelined",
    "Tasks read Parquet files and send each row to one of four others by a random 64-bit key; those count. "
    "A row has 32 bytes: two integers and two doubles.",
    BESIDE_SPARK,
)
BLOCKING = Row(
    "exchange by an integer, blocking",
    "The same rows. The counting tasks start when the reading ones have written everything to files.",
    BESIDE_SPARK,
)
GROUPS = Row(
    "groupBy().applyInArrow",
    "The same rows, grouped by a key of 2,000 values; a Python function gives the mean of each group.",
    BESIDE_SPARK,
)
STRINGS = Row(
    "exchange by a string",
    "Rows of a key of 12 characters, a number and a text of 64 characters, sent by the key.",
    BESIDE_SPARK,
)
DATAFRAME = Row(
    "groupBy().applyInArrow of a DataFrame",
    "The groups again, but a DataFrame of the JVM is the source on both sides, so that all rows leave the JVM first.",
    BESIDE_SPARK,
)
SLOPE = Row(
    "exchange alone",
    "Rows are made in memory once and sent again and again. The rate is the slope of the time over four sizes (of "
    "Spark over the two smallest), so the cost of starting a job is not in it.",
    BESIDE_SPARK,
)
FEW_ROWS = Row(
    "a whole action on few rows",
    "The exchange by an integer with a thousand rows: what a job costs before its first row.",
    BESIDE_SPARK,
)
WORDS = Row(
    "word count, Spark's in the JVM",
    "Penstock counts the words of this Python's text and source files in Python. Spark's side has no Python stage: "
    "it splits and counts in the JVM, and reads the same text joined to a few files.",
    BESIDE_SPARK,
)
HYBRID_ALL = Row(
    "exchange by an integer, hybrid, memory for all rows",
    "The exchange by an integer with a network memory of twice the rows' bytes: nothing has to be stored meanwhile.",
    BESIDE_SPARK,
)
HYBRID_TENTH = Row(
    "exchange by an integer, hybrid, memory for a tenth",
    "The same with a network memory of a tenth of the rows' bytes: the producers store the rest.",
    BESIDE_SPARK,
)

WIDE_FEW = Row("8 subpartitions", "Hash files: the time to compare the others with.", WIDE)
WIDE_MANY = Row(
    "1,000 subpartitions, sort-merge", "The writers sort into one file each; each reader takes a range of 125.", WIDE
)
WIDE_MANY_MEMORY = Row(
    "1,000 subpartitions, sort-merge: memory",
    "The most that all Python workers together held beyond what they had before the job.",
    WIDE,
)
WIDE_MANY_FILES = Row(
    "1,000 subpartitions, sort-merge: open files", "The most at once, of all workers together.", WIDE
)
WIDE_MANY_WRITES = Row("1,000 subpartitions, sort-merge: write calls", "Of all workers together, in one job.", WIDE)
WIDE_TWICE = Row("1,000 subpartitions, sort-merge, twice the rows", "The time should double.", WIDE)
WIDE_TWICE_MEMORY = Row(
    "1,000 subpartitions, sort-merge, twice the rows: memory", "It should not grow with the rows.", WIDE
)
WIDE_HASH = Row("1,000 subpartitions, hash", "The writers keep a file for each subpartition open.", WIDE)
WIDE_HASH_MEMORY = Row("1,000 subpartitions, hash: memory", "The same of the hash writers' job.", WIDE)
WIDE_HASH_FILES = Row("1,000 subpartitions, hash: open files", "A file for each subpartition and writer.", WIDE)
WIDE_HASH_WRITES = Row("1,000 subpartitions, hash: write calls", "Each block is a write of its own.", WIDE)
WIDE_STORED = Row(
    "1,000 subpartitions, sort-merge: bytes on disk over bytes of rows",
    "Heads, padding and the index make the difference.",
    WIDE,
)
LITTLE_MEMORY = Row(
    "1,000 subpartitions in 64 MB of network memory", "Sort-merge where a writer gets a small sort buffer.", WIDE
)
LITTLE_MEMORY_TASKS = Row(
    "1,000 subpartitions in 64 MB of network memory: memory", "The most that all workers together held.", WIDE
)

SERVICE_PAGE = (SERVICE_ROWS, LOOPBACK_ROWS)
"""The rows of `service_rows`, beside those that are here."""
MODES = ("hybrid", "hybrid_selective", "blocking")
MEMORIES = {
    "all": "a network memory of twice the rows' bytes",
    "a tenth": "a network memory of a tenth of the rows' bytes",
}
"""The share of the rows that the network memory has room for, and its meaning."""
MODE_ROWS = {
    (mode, share): Row(
        f"{mode}, memory for {share}",
        f'The exchange by an integer, in `mode="{mode}"`, with {meaning}.',
        HYBRID,
    )
    for share, meaning in MEMORIES.items()
    for mode in MODES
}
_OVERLAP = "Three exchanges one after the other; the stages wait for each batch as for a service that they call"
OVERLAP_ROWS = {
    "blocking": Row("a slow middle stage, blocking", f"{_OVERLAP}. The stages' times add up.", HYBRID),
    "hybrid": Row("a slow middle stage, hybrid", f"{_OVERLAP}. The stages overlap.", HYBRID),
}
OVERLAP_MEMORY_ROWS = {
    mode: Row(f"{row.label}: environment's memory", "The most beside its shared pool.", HYBRID)
    for mode, row in OVERLAP_ROWS.items()
}

ENVIRONMENT_ROWS = (
    Row("few rows", "Through the exchange in one job.", ENVIRONMENT),
    Row("eight times the rows", "The environment should hold no more.", ENVIRONMENT),
)

_WAY = "From one Python function to the next, through one writer, the environment and one gate"
LATENCY_ROWS = {
    1: (
        Row("one row, one exchange: median", f"{_WAY}.", LATENCY),
        Row("one row, one exchange: 99 %", "One row in a hundred takes longer.", LATENCY),
    ),
    2: (
        Row("one row, two exchanges: median", f"{_WAY}, twice.", LATENCY),
        Row("one row, two exchanges: 99 %", "One row in a hundred takes longer.", LATENCY),
    ),
}
"""By number of exchanges: the row of the median, and of the 99th percentile."""

_INTERVAL = "The upper end of the 95 % interval of the median."
COPY_STORED = (
    Row("blocking exchange", "Each batch waits in its writer's memory, so each is copied.", COPIES),
    Row("blocking exchange: at most", _INTERVAL, COPIES),
)
COPY_AGGREGATED = (
    Row(
        "aggregation",
        "A count, a mean and a maximum by a key of 2,000 values; batches are copied ahead of it.",
        COPIES,
    ),
    Row("aggregation: at most", _INTERVAL, COPIES),
)
"""The share, and how much it may be."""

METRICS_EXCHANGE = (
    Row("metrics: exchange by an integer, pipelined", "The first exchange of this page.", METRICS),
    Row("metrics: exchange: at most", _INTERVAL, METRICS),
)
TLS_EXCHANGE = (
    Row("TLS: exchange by an integer, pipelined", "Two executors, an environment process of its own each.", TLS),
    Row("TLS: exchange: at most", _INTERVAL, TLS),
)
METRICS_STREAM = (
    Row("metrics: two sources, two counters", "A streaming count with a checkpoint each second.", METRICS),
    Row("metrics: counters: at most", _INTERVAL, METRICS),
)
"""The share, and how much it may be."""


def _visited(by: str) -> tuple[tuple[Row, Row], ...]:
    return (
        (
            Row(f"page, {by}", "The share of the rate that seconds with an open page lack.", PAGE),
            Row(f"page, {by}: at most", _INTERVAL, PAGE),
        ),
        (
            Row(f"page, {by}: by CPU second", "The same of the rows in a CPU second of the session.", PAGE),
            Row(f"page, {by}: by CPU second: at most", _INTERVAL, PAGE),
        ),
        (
            Row(
                f"page, {by}: the driver",
                "The CPU seconds that the driver takes more, as a share of those of the whole session.",
                PAGE,
            ),
            Row(f"page, {by}: the driver: at most", _INTERVAL, PAGE),
        ),
        (
            Row(f"page, {by}: themselves", "The CPU seconds that the visitors take, as the same share.", PAGE),
            Row(f"page, {by}: themselves: at most", _INTERVAL, PAGE),
        ),
    )


@dataclass(frozen=True, slots=True)
class PageForm:
    """The kind of a page's visitors, the seconds between two looks of theirs, and the pairs of turns.

    `is_idle`: they have little more than the query leaves of the processors, as if they had some of their own.
    """

    kind: str
    every: int
    turns: int
    is_idle: bool = False


PAGE_ROWS = {
    PageForm("browsers", 2, 20, is_idle=True): _visited("three browsers"),
    PageForm("streams", 1, 5): _visited("three readers each second"),
    PageForm("browsers", 2, 5): _visited("browsers beside tasks"),
}
"""By the form of the visits: the share of the rate and how much it may be, then of the driver's and of their work."""

STREAM_RATE = Row("two sources, two counters, no checkpoints", "Rows that the counters took in a second.", STREAMING)
STREAM_RATE_CHECKPOINTS = Row(
    "two sources, two counters, a checkpoint each second",
    "The same with checkpoints on a local disk. Spark's side is Structured Streaming: `applyInPandasWithState` over "
    "micro-batches of four million rows as fast as they go, two shuffle partitions.",
    STREAMING,
)
IN_README = (PIPELINED, BLOCKING, GROUPS, STREAM_RATE_CHECKPOINTS, FEW_ROWS)
"""The five rows that the README shows."""

STREAM_BYTEWAX = Row(
    "the same in Bytewax",
    "`stateful_map` over lists of rows, two processes with a worker each, no recovery store; the extra `bench`.",
    STREAMING,
)
STREAM_BYTEWAX_TIMES = Row(
    "times Bytewax", "The first row's rate by Bytewax's, out of one run of this bench.", STREAMING
)
STREAM_STATE_SIZE = Row("state of 10,000,000 counts", "The files of one checkpoint.", STREAMING)
STREAM_STATE_SECONDS = Row(
    "state of 10,000,000 counts: checkpoint",
    "From its trigger to its metadata, the median of nine.",
    STREAMING,
)
STREAM_STATE_DIP = Row(
    "state of 10,000,000 counts: dip",
    "The share of the rate that a checkpoint's worst second lacks, the median of nine checkpoints. Seconds are "
    "counted from its trigger until it is complete; the rate is the median of the three seconds before it.",
    STREAMING,
)
STREAM_STATE_RESTORED = Row(
    "state of 10,000,000 counts: restored",
    "From `start` at its location until rows flow.",
    STREAMING,
)
STREAM_CHECKPOINT_COST = Row(
    "two sources, two counters: what a checkpoint each second costs",
    "The share of the rate that seconds with a checkpoint lack. One query has four seconds without and four with "
    "them in turns; the median of six turns.",
    STREAMING,
)
STREAM_CHECKPOINT = Row("a checkpoint of 100,000 counts", "From its trigger to its metadata, the median.", STREAMING)
STREAM_LATENCY = Row(
    "10,000 rows a second, one exchange: median",
    "From the moment at which a row is due to the function after the exchange; `bufferTimeout` is 1 ms.",
    STREAMING,
)
STREAM_LATENCY_TAIL = Row("10,000 rows a second, one exchange: 99 %", "One row in a hundred takes longer.", STREAMING)
STREAM_RECOVERY = Row(
    "recovery from a killed task in `local[N]`",
    "The longest time without a row after the exchange, around a SIGKILL. Spark ends all tasks' processes there.",
    STREAMING,
)
STREAM_RECOVERY_CLUSTER = Row(
    "recovery from a killed task, two executors", "The same where each executor has processes of its own.", STREAMING
)


def _checkpoint(micros: float, ways: str) -> Row:
    return Row(f"{micros:g} µs a row, {ways}", "From the trigger of a checkpoint until it is complete.", CHECKPOINTS)


ALIGNED = "aligned"
UNALIGNED = "unaligned"
CONTINUOUS = "unaligned, continuous"
"""The ways to take a checkpoint; the last one logs rows in flight as they are given out (`persistInFlight`)."""
CHECKPOINTS_WHOLE = {
    (10.0, ALIGNED): _checkpoint(10, f"whole segments, {ALIGNED}"),
    (10.0, UNALIGNED): _checkpoint(10, f"whole segments, {UNALIGNED}"),
    (10.0, CONTINUOUS): _checkpoint(10, f"whole segments, {CONTINUOUS}"),
    (100.0, UNALIGNED): _checkpoint(100, f"whole segments, {UNALIGNED}"),
}
"""With `inFlightTime` 0, by the microseconds of a row, then by the way."""
CHECKPOINTS_TARGET = {
    (10.0, ALIGNED): _checkpoint(10, ALIGNED),
    (10.0, UNALIGNED): _checkpoint(10, UNALIGNED),
    (10.0, CONTINUOUS): _checkpoint(10, CONTINUOUS),
}
"""The same with the `inFlightTime` that a query has where nobody says one."""
CHECKPOINTS_HELD = Row(
    "whole segments: bytes in flight", "Of one unaligned checkpoint, in all tasks, the most.", CHECKPOINTS
)
CHECKPOINTS_BOUND = Row("the bound of these", "The query's handle says it at its start.", CHECKPOINTS)
CHECKPOINTS_TARGET_HELD = Row("bytes in flight", "The same as a query is where nobody says otherwise.", CHECKPOINTS)
CHECKPOINTS_SHORTER = Row("whole segments: aligned by unaligned", "How many times shorter.", CHECKPOINTS)
CHECKPOINTS_TARGET_SHORTER = Row("aligned by unaligned", "How many times shorter.", CHECKPOINTS)
CHECKPOINTS_FLAT = Row(
    "unaligned: 100 µs a row by 10 µs", "How many times longer; one step is the floor.", CHECKPOINTS
)


def _ways(label: str, meaning: str, *ways: str) -> dict[str, Row]:
    return {way: Row(f"{label}, {way}", meaning, CHECKPOINTS) for way in ways or (ALIGNED, UNALIGNED)}


CHECKPOINTS_VISIBLE = _ways(
    "10 µs a row: until a row is visible",
    "From a row's making until its Parquet file has its name, the median; a checkpoint each quarter of a second, or "
    "as soon as the last one is complete.",
)
CHECKPOINTS_REPLAYED = _ways(
    "10 µs a row: rows replayed",
    "Rows that the sources give again when the last operator has failed, with checkpoints one after the other.",
)
CHECKPOINTS_RATE = _ways(
    "no back-pressure",
    "Rows that reach the last stage in a second, with a checkpoint each second; the sources' stage is the busy one.",
    ALIGNED,
    UNALIGNED,
    CONTINUOUS,
)
CHECKPOINTS_FULL = _ways(
    "as fast as it goes",
    "The same where the sources cost nothing, so all wait for the exchanges.",
    ALIGNED,
    UNALIGNED,
    CONTINUOUS,
)
"""These four by the way."""
CHECKPOINTS_PRESSED = Row(
    "no back-pressure: sources held back", "The share of their time, in the queries above.", CHECKPOINTS
)
LOGGED = "with a log of rows"
LONE_WAYS = ("without a log", LOGGED)


def _lone(label: str, meaning: str) -> dict[str, Row]:
    return {way: Row(f"{label}, {way}", meaning, LONE) for way in LONE_WAYS}


LONE_CALM = _lone("gaps while nothing happens", "The ten seconds before the kill.")
LONE_KILLED = _lone("gaps around a kill", "From the kill until two seconds after its successor's first rows.")
LONE_TIMES = _lone("around a kill by calm", "The median of the runs.")
