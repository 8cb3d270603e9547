# SPDX-License-Identifier: Apache-2.0
"""The source of user functions: they use memory again, give views, pieces, nothing, or keep what they get.

Each is the same on both sides. None depends on the rows' order or on how they are cut into batches, because these
may differ. `Made.schema` is None where the function gives the columns that it gets.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from textwrap import dedent

_SCRATCH = """
def {name}(batches):
    scratch = bytearray({size} << 20)
    for batch in batches:
        for start in range(0, batch.num_rows, {rows}):
            part = batch.slice(start, {rows})
            sink = pa.FixedSizeBufferWriter(pa.py_buffer(scratch))
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_batch(part)
            yield pa.ipc.open_stream(pa.py_buffer({view})).read_next_batch()
    scratch[:] = bytes(len(scratch))
"""

_ARROW = {
    "same": "yield from batches",
    "pieces": """
        for batch in batches:
            for start in range(0, batch.num_rows, 7):
                yield batch.slice(start, 7)""",
    "nothing": """
        for batch in batches:
            pass
        return
        yield""",
    "empties": """
        for batch in batches:
            yield batch.slice(0, 0)
            yield batch
            yield batch.slice(batch.num_rows)""",
    "keep": """
        kept = list(batches)
        yield from reversed(kept)""",
    "double": """
        for batch in batches:
            yield batch
            yield batch.slice(0, batch.num_rows)""",
    "views": """
        for batch in batches:
            twice = pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()
            for each in twice:
                yield each.slice(batch.num_rows // 2, batch.num_rows)
                yield each.slice(batch.num_rows // 2 + batch.num_rows)
                yield each.slice(0, batch.num_rows // 2)""",
    "taken": """
        for batch in batches:
            yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1), pa.int64()))""",
    "rebuilt": """
        for batch in batches:
            yield pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema)""",
}
_ARROW_BAD = {
    "raises": """
        for batch in batches:
            yield batch
            if batch.num_rows:
                raise ValueError("on purpose")""",
    "gives a number": """
        for batch in batches:
            yield 7""",
    "lacks a column": """
        for batch in batches:
            yield batch.select(batch.schema.names[1:])""",
    "another type": """
        for batch in batches:
            yield batch.set_column(0, batch.schema.names[0], pa.nulls(batch.num_rows, pa.list_(pa.duration("s"))))""",
    "another name": """
        for batch in batches:
            yield batch.rename_columns(["other", *batch.schema.names[1:]])""",
}
_ARROW_SHOWN = """
    for batch in batches:
        yield pa.record_batch({"shown": pa.array([repr(row) for row in batch.to_pylist()], pa.string())})"""

_PANDAS = {
    "same": "yield from frames",
    "pieces": """
        for frame in frames:
            for start in range(0, len(frame), 7):
                yield frame.iloc[start : start + 7]""",
    "nothing": """
        for frame in frames:
            pass
        return
        yield""",
    "empties": """
        for frame in frames:
            yield frame.iloc[:0]
            yield frame
            yield frame.iloc[len(frame) :]""",
    "keep": """
        kept = list(frames)
        yield from reversed(kept)""",
    "turned": """
        for frame in frames:
            yield frame.iloc[::-1]""",
    "written over": """
        for frame in frames:
            for start in range(0, len(frame), 5):
                part = frame.iloc[start : start + 5].copy()
                yield part
                for values in (part[name].values for name in part.columns):
                    if isinstance(values, np.ndarray) and values.flags.writeable:
                        values[:] = values[::-1].copy()""",
}
_EMPTY = ".replace('array([], dtype=float64)', 'array([], dtype=object)')"
"""An empty array of structs or times has another type in PySpark's frames: a difference that the pages name."""
_PANDAS_SHOWN = """
    for frame in frames:
        texts = [repr(row)EMPTY for row in frame[%r].itertuples(index=False, name=None)]
        yield pd.DataFrame({"shown": pd.Series(texts, dtype=object)})""".replace("EMPTY", _EMPTY)

_GROUP_ARROW = {
    "same": "return table",
    "empty": "return table.slice(0, 0)",
    "double": "return pa.concat_tables([table, table.slice(0)])",
    "turned": "return table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64()))",
}
_GROUP_ARROW_OTHER = {
    "shown": (
        """
        rows = sorted(repr(row) for row in table.to_pylist())
        return pa.table({"shown": pa.array(rows, pa.string())})""",
        "shown string",
    ),
    "rows": ('return pa.table({"n": pa.array([table.num_rows], pa.int64())})', "n long"),
}
_GROUP_PANDAS = {
    "same": "return frame",
    "empty": "return frame.iloc[:0]",
    "nothing": "return pd.DataFrame()",
    "double": "return pd.concat([frame, frame])",
    "turned": "return frame.iloc[::-1]",
}
_GROUP_PANDAS_OTHER = {
    "shown": (
        """
        rows = sorted(repr(row)EMPTY for row in frame.itertuples(index=False, name=None))
        return pd.DataFrame({"shown": rows})""".replace("EMPTY", _EMPTY),
        "shown string",
    ),
    "types": (
        """
        return pd.DataFrame({"shown": [repr([str(kind) for kind in frame.dtypes])]})""",
        "shown string",
    ),
    "rows": ('return pd.DataFrame({"n": [len(frame)]})', "n long"),
}


@dataclass(frozen=True, slots=True)
class Made:
    """A function's source, and the DDL of what it gives, where that is not what it gets."""

    text: str
    schema: str | None = None


def arrow_function(draw: random.Random, name: str, *, scratch_megabytes: int = 8) -> Made:
    """For `mapInArrow`."""
    chance = draw.random()
    if chance < 0.35:
        view = draw.choice(("scratch", "memoryview(scratch).toreadonly()"))
        rows = draw.choice((3, 37, 100_000))
        return Made(_SCRATCH.format(name=name, size=scratch_megabytes, rows=rows, view=view).strip())
    if chance < 0.45:
        return Made(_function(name, "batches", draw.choice(list(_ARROW_BAD.values()))))
    if chance < 0.6:
        return Made(_function(name, "batches", _ARROW_SHOWN), "shown string")
    return Made(_function(name, "batches", draw.choice(list(_ARROW.values()))))


def pandas_function(draw: random.Random, name: str, shown: list[str]) -> Made:
    """For `mapInPandas`; `shown` are columns whose values do not depend on how rows are cut into frames."""
    if shown and draw.random() < 0.35:
        return Made(_function(name, "frames", _PANDAS_SHOWN % (shown,)), "shown string")
    return Made(_function(name, "frames", draw.choice(list(_PANDAS.values()))))


def group_function(draw: random.Random, name: str, kind: str, *, scratch_megabytes: int = 8) -> Made:
    """For `applyInArrow` or `applyInPandas` of a group; `kind` is `table` or `frame`."""
    is_arrow = kind == "table"
    if is_arrow and draw.random() < 0.2:
        return Made(
            _SCRATCH.format(name=name, size=scratch_megabytes, rows=3, view="scratch")
            .strip()
            .replace("(batches)", "(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]")
        )
    if draw.random() < 0.25:
        return Made(_keyed(name, kind), "key string, n long")
    others = _GROUP_ARROW_OTHER if is_arrow else _GROUP_PANDAS_OTHER
    if draw.random() < 0.4:
        body, schema = draw.choice(list(others.values()))
        return Made(_function(name, kind, body), schema)
    bodies = _GROUP_ARROW if is_arrow else _GROUP_PANDAS
    return Made(_function(name, kind, draw.choice(list(bodies.values()))))


def cogroup_function(draw: random.Random, name: str, kind: str) -> Made:
    """For a cogroup's `applyInArrow` or `applyInPandas`."""
    is_arrow = kind == "table"
    if draw.random() < 0.4:
        return Made(_function(name, "left, right", "return left"))
    frame = "pa.table" if is_arrow else "pd.DataFrame"
    count = "{0}.num_rows" if is_arrow else "len({0})"
    names = "{0}.schema.names" if is_arrow else "list({0}.columns)"
    body = (
        f'return {frame}({{"n": [{count.format("left")}], "m": [{count.format("right")}], '
        f'"names": [repr({names.format("left")} + {names.format("right")})]}})'
    )
    return Made(_function(name, "left, right", body), "n long, m long, names string")


def _keyed(name: str, kind: str) -> str:
    if kind == "table":
        body = """
        return pa.table({"key": [repr(tuple(part.as_py() for part in key))], "n": [table.num_rows]})"""
    else:
        body = """
        return pd.DataFrame({"key": [repr(key)], "n": [len(frame)]})"""
    return _function(name, f"key, {kind}", body)


def _function(name: str, arguments: str, body: str) -> str:
    lines = dedent(body).strip().splitlines()
    return "\n".join([f"def {name}({arguments}):", *(f"    {line}" for line in lines)])
