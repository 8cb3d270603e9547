# SPDX-License-Identifier: Apache-2.0
"""Random steps through files: Parquet that each side writes and reads, CSV and JSON that Spark wrote for both.

A program may begin with a folder of Parquet files of several writers, layouts and calendars, in which one schema has
several versions (`penstock_torture.tables.folder`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql.types import BinaryType, StructField, StructType

from penstock_torture.programs.expressions import has_odd_map, is_flat, quoted
from penstock_torture.programs.program import Program
from penstock_torture.programs.values import spelled
from penstock_torture.tables.folder import FolderHistory


def folder_of(spark: Any, path: str, seed: int, files: int) -> str:
    """The path of a folder with so many files of several writers; what is in it is a matter of the seed."""
    Path(path).mkdir()
    FolderHistory(Path(path), seed, spark).fill(files - 1)
    return f"{path}/f{seed}"


def a_folder(program: Program) -> str:
    """A new frame over a folder of Parquet files; its number."""
    number = program.fresh("")
    seed, files = program.draw.randrange(10**6), program.draw.randint(1, 4)
    program.define(f"p{number} = folder_of(spark, folder + '/p{number}', {seed}, {files})")
    program.step(number, f"penstock.readParquet(spark, p{number})", f"spark.read.parquet(p{number})")
    return number


def through_parquet(program: Program, number: str) -> None:
    """`writeParquet` and `readParquet`: each side's own files, or each the other's."""
    name = program.fresh("p")
    ours, theirs = f"folder + '/ours-{name}'", f"folder + '/theirs-{name}'"
    ours_read, theirs_read = (ours, theirs) if program.draw.random() < 0.5 else (theirs, ours)
    wrote = program.both_run(f"s{number}.writeParquet({ours})", f"d{number}.write.parquet({theirs})")
    if wrote:
        program.step(number, f"penstock.readParquet(spark, {ours_read})", f"spark.read.parquet({theirs_read})")


def through_csv(program: Program, number: str) -> None:
    """Spark writes CSV, both read it: typed, or as strings, with a header or without."""
    draw, schema = program.draw, program.schema(number)
    fields = [one for one in schema.fields if is_flat(one.dataType) and not isinstance(one.dataType, BinaryType)]
    if not fields:
        return
    shown = ", ".join(repr(quoted(one.name)) for one in fields)
    path = f"folder + '/{program.fresh('csv')}'"
    header = draw.random() < 0.5
    if not program.prepared(f"d{number}.select({shown}).write.csv({path}, header={header})"):
        return
    typed = StructType([StructField(one.name, one.dataType, one.nullable) for one in fields])
    if draw.random() < 0.7:
        program.step(
            number,
            f"penstock.readCsv(spark, {path}, {spelled(typed)}, header={header})",
            f"spark.read.csv({path}, {spelled(typed)}, header={header})",
        )
    else:
        text = f"{path}, header={header}"
        program.step(number, f"penstock.readCsv(spark, {text})", f"spark.read.csv({text})")


def through_json(program: Program, number: str) -> None:
    """Spark writes JSON, both read it with the schema."""
    schema = program.schema(number)
    if any(has_odd_map(one.dataType) for one in schema.fields):
        return  # Spark reads no maps with such keys
    path = f"folder + '/{program.fresh('json')}'"
    if program.prepared(f"d{number}.write.json({path})"):
        program.step(
            number,
            f"penstock.readJson(spark, {path}, {spelled(schema)})",
            f"spark.read.json({path}, {spelled(schema)})",
        )
