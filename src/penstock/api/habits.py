# SPDX-License-Identifier: Apache-2.0
"""The words of PySpark that a stream does not have: for each a sentence that says what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

_DATAFRAME = "go on with Spark's own after toDF()"

_KEYED = "key the stream first: .groupBy('k').{}(processor, schema)"

INSTEAD: dict[str, str] = {
    "write": "write .writeParquet(path), .writeCsv or .writeJson, or .toDF().write for Spark's other formats",
    "writeTo": "write .toDF().writeTo(table)",
    "writeCsv": "write .toDF().write.csv(path)",
    "writeJson": "write .toDF().write.json(path)",
    "writeText": "write .toDF().write.text(path)",
    "start": "write .writeStream.format('parquet').start(path)",
    "saveAsTable": "write .toDF().write.saveAsTable(name)",
    "cache": "write .persist(): the rows stay in Penstock's environments until .unpersist()",
    "checkpoint": "write .persist(), or .writeParquet(path) and readParquet",
    "localCheckpoint": "write .persist()",
    "rdd": "write .mapInArrow(fn, schema), which sees whole Arrow batches",
    "foreach": "write .mapInArrow(fn, schema).run()",
    "foreachPartition": "write .mapInArrow(fn, schema).run()",
    "map": "write .mapInArrow(fn, schema) or .withColumn(name, expression)",
    "mapPartitions": "write .mapInArrow(fn, schema)",
    "flatMap": "write .mapInArrow(fn, schema) or .explode(column)",
    "transform": "call the function on the stream: fn(stream)",
    "orderBy": "write .sortBy('column', ascending=True)",
    "sort": "write .sortBy('column', ascending=True)",
    "sortWithinPartitions": "write .mapInArrow with pyarrow's sort_by, or .sortBy for a global order",
    "repartition": "write .rebalance(n), .keyBy('column', numPartitions=n) or penstock.repartition(df, n, 'column')",
    "repartitionByRange": "write .sortBy('column', numPartitions=n)",
    "coalesce": "write .rescale(n), which joins neighbouring partitions",
    "join": "key both sides by what must be equal: left.keyBy('k').join(right.keyBy('k'), how='inner'); "
    "what is no equality goes into a .filter after it",
    "crossJoin": "there is no join without equal keys: .broadcast() a small side, or " + _DATAFRAME,
    "agg": "write .toOne().agg(...) for one row of all, .groupBy('k').agg(...) for one of each group",
    "cogroup": "key both sides first: left.keyBy('k').cogroup(right.keyBy('k'))",
    "applyInArrow": "group first: .groupBy('k').applyInArrow(fn, schema)",
    "applyInPandas": "group first: .groupBy('k').applyInPandas(fn, schema)",
    "pivot": "aggregate by both columns, then " + _DATAFRAME,
    "rollup": "there are no grouping sets: " + _DATAFRAME,
    "cube": "there are no grouping sets: " + _DATAFRAME,
    "createOrReplaceTempView": "write .toDF().createOrReplaceTempView(name)",
    "createTempView": "write .toDF().createTempView(name)",
    "getNumPartitions": "see .explain(): it shows each stage's number of tasks",
    "randomSplit": "write .filter over a column of your own for each part, or " + _DATAFRAME,
    "sample": "write .filter over a column of your own, or .mapInArrow(fn, schema)",
    "intersect": "key both sides by all columns and join with how='left_semi', then .distinct()",
    "subtract": "key both sides by all columns and join with how='left_anti', then .distinct()",
    "exceptAll": "key both sides by all columns and join with how='left_anti'",
    "na": "write .withColumn(name, \"coalesce(name, 0)\") or .filter('name IS NOT NULL')",
    "fillna": 'write .withColumn(name, "coalesce(name, 0)")',
    "replace": "write .withColumn(name, \"CASE WHEN name = 'a' THEN 'b' ELSE name END\")",
    "dropna": "write .filter('name IS NOT NULL')",
    "stat": "write .toOne().agg(...), or " + _DATAFRAME,
    "describe": "write .toOne().agg(...), or .toDF().describe()",
    "summary": "write .toOne().agg(...), or .toDF().summary()",
    "dtypes": "see .schema, the rows' Arrow schema",
    "printSchema": "print(stream) shows the columns, .schema is their Arrow schema",
    "tail": "sort the other way round and take the first: .sortBy('column', ascending=False).take(n)",
    "toLocalIterator": "write .toDF().toLocalIterator()",
    "toJSON": "write .toDF().toJSON()",
    "hint": "mode= and service= of each exchange say how rows travel",
    "alias": "rename columns: .withColumnRenamed(old, new)",
    "melt": "write .mapInArrow(fn, schema)",
    "transformWithState": _KEYED.format("transformWithState"),
    "transformWithStateInPandas": _KEYED.format("transformWithStateInPandas"),
    "applyInPandasWithState": "write .groupBy('k').transformWithStateInPandas(processor, schema), its heir in "
    "PySpark",
    "unpivot": "write .mapInArrow(fn, schema)",
}
"""By the name that PySpark's DataFrame or GroupedData has for it."""

_FUNCTION = "there is no function for each row: put the work into .mapInArrow(fn, schema) before .writeStream, say "
INSTEAD_OF_READER: dict[str, str] = {
    "table": "read the folder its files arrive in: .schema(...).parquet(path)",
    "orc": "there are parquet, text, csv, json and rate, and sources of your own: .format(source)",
    "changes": "read the folder its files arrive in: .schema(...).parquet(path)",
    "xml": "read lines with .text(path) and parse them in .mapInArrow(fn, schema), or write a Python data source",
    "name": "name the stream that .load() gives: .uid('orders')",
    "writeStream": "finish the source first: .load() gives the stream",
}
"""By the name that PySpark's DataStreamReader has for it, or that is one step too early."""
INSTEAD_OF_WRITER: dict[str, str] = {
    "foreach": _FUNCTION + ".foreachBatch(fn), or write a sink of your own: .format(sink)",
    "clusterBy": "a query writes into one folder: .keyBy('column') before .writeStream brings its rows together",
    "parquet": "write .format('parquet').start(path)",
    "save": "write .start(path), which gives the query",
    "mode": "write .outputMode('append'), 'update' for an aggregation, or leave it out",
    "awaitTermination": "write .start() first, which gives the query",
    "stop": "write .start() first, which gives the query",
}
"""By the name that PySpark's DataStreamWriter has for it, or that is one step too early."""

INSTEAD_OF_QUERY: dict[str, str] = {
    "processAllAvailable": "write .checkpoint(): when it returns, the sink has all rows that were read by then; "
    "sources that end (the option bounded, or numRows) and .awaitTermination() process all there is",
    "writeStream": "it runs already; a second sink is a second query",
}
"""By the name that PySpark's StreamingQuery has for it, or that is one step too late."""
INSTEAD_OF_QUERIES: dict[str, str] = {
    "listListeners": "keep the listeners that you add",
}
"""By the name that PySpark's StreamingQueryManager has for it."""


def missing_attribute(kind: str, name: str, columns: Sequence[str], verbs: Sequence[str]) -> AttributeError:
    """The error for a name that a stream does not have; `verbs` are those it has."""
    if name in INSTEAD:
        return AttributeError(f"a {kind} has no {name!r}: {INSTEAD[name]}")
    if name in columns:
        return AttributeError(
            f"a {kind} has no {name!r}; there is a column of that name: write it as a string, "
            f"filter('{name} > 0'), or as F.col('{name}')"
        )
    close = difflib.get_close_matches(name, [verb for verb in verbs if not verb.startswith("_")], 1)
    hint = f"did you mean {close[0]!r}?" if close else "its verbs are in docs/api.md; toDF() gives Spark's DataFrame"
    return AttributeError(f"a {kind} has no {name!r}: {hint}")


def missing_step(owner: str, name: str, instead: Mapping[str, str], steps: Sequence[str]) -> AttributeError:
    """The error for a name that a reader or writer of streams does not have; `steps` are those it has."""
    known = [step for step in steps if not step.startswith("_")]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    return AttributeError(f"{owner} has no {name!r}: {instead.get(name, hint)}")


def no_item(kind: str, item: object) -> TypeError:
    """The error for square brackets."""
    if isinstance(item, str):
        return TypeError(
            f"a {kind} has no [{item!r}]: write the column as a string, select({item!r}), or F.col({item!r})"
        )
    return TypeError(f"a {kind} has no [...]: write .select('a', 'b') for columns, .filter('a > 0') for rows")


def no_rows_here(kind: str) -> TypeError:
    """The error for a loop over a stream."""
    return TypeError(f"a {kind} is lazy and has no rows to loop over: write .collect(), .take(n) or .toArrow()")


def no_direction(given: object) -> TypeError:
    """The error for a Column where a sort takes names."""
    return TypeError(
        f"sortBy takes names of columns, not {given}: write sortBy('n', ascending=False) for F.desc('n'), and "
        "nulls='last' for nulls; make a column of an expression first, with withColumn"
    )


def no_stream(verb: str, given: object) -> TypeError:
    """The error for something else where a stream is needed."""
    return TypeError(
        f"{verb} takes streams, not {type(given).__name__}: write penstock.fromDataFrame(df) for a Spark DataFrame"
    )


def not_a_condition(verb: str, given: object) -> TypeError:
    """The error for a Column where names are needed."""
    return TypeError(
        f"{verb} takes names of columns, not the condition {given}: it joins rows with equal keys, so key both sides "
        "by these columns, left.keyBy('a').join(right.keyBy('b'), on=[('a', 'b')]); what is no equality goes into a "
        ".filter after it, or both groups to cogroup"
    )
