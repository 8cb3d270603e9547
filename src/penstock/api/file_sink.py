# SPDX-License-Identifier: Apache-2.0
"""`Stream.writeParquet`, `writeCsv`, `writeJson`: tasks write into a folder beside the target, the driver commits.

On a local file system the files that the job named go into a second folder, which is then renamed to the target in
one step, or with `overwrite` changes names with the old one. So a driver that is killed leaves the old folder or the
new one, and a task that outlives its job writes where none reads. Files and names are on the disk before that step.
On any other file system the files are moved one by one and taken out again should a move fail, so a reader may see
some of them before all are there; `_SUCCESS` is written last and says that all are, and that what `overwrite`
replaces is gone. Files of a job that failed or was cancelled are removed with the staging folder.

Limits: where tasks run on several hosts, a local path must be a mount that they share. A driver that is killed leaves
its own folders (`.<name>.penstock-<id>...`) behind. If a local file system cannot swap names (NFS), the folder that
`overwrite` replaces is moved aside first, so for a moment there is none. Two writers to one path are not kept apart,
but neither can end up in the other's folder on a local file system: the second rename fails.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.types as pt

from penstock.api.csv_quotes import quoting
from penstock.api.reading import is_case_sensitive
from penstock.api.schemas import column_arguments
from penstock.api.writing import WritableStream, WrittenFile, require_writer, write_files
from penstock.errors import SchemaError, SettingError
from penstock.graph import as_nullable, of_one_name, own_types, shown_type, unwritable
from penstock.machine.durable import swapped, sync_file, sync_folder
from penstock.machine.locations import at_uri, here, is_here, is_uri
from penstock.operators.csv_write import PLAIN_CSV, CsvSigns, csv_fault, signs_fault
from penstock.operators.file_forms import LINE_CODECS, FileForm
from penstock.operators.file_write import PartWriter, WriteFiles
from penstock.operators.json_write import json_fault
from penstock.operators.partitioned_write import WritePartitioned

CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
SUCCESS = "_SUCCESS"


@dataclass(frozen=True, slots=True)
class FilesWritten:
    """The result of a write: numbers of files, rows and bytes, and the seconds from the call to the commit."""

    path: str
    files: int
    rows: int
    bytes: int
    seconds: float

    def __repr__(self) -> str:
        """One line for people."""
        return (
            f"{self.rows:,} rows in {self.files} files ({self.bytes / 1e6:,.1f} MB) written to {self.path}"
            f" in {self.seconds:.2f} s"
        )


def write_parquet(
    stream: WritableStream, path: str | Path, compression: str, overwrite: bool, partition_by: Sequence[str] = ()
) -> FilesWritten:
    """See `Stream.writeParquet`; raises SettingError or SchemaError before anything runs."""
    require_writer(stream, "writeParquet")
    if compression not in CODECS or not (compression == "none" or pa.Codec.is_available(str(compression))):
        raise SettingError(f"writeParquet: compression {compression!r} is none of {', '.join(CODECS)}")
    held = file_schema(stream.schema, partition_by, "writeParquet")
    refuse_one_name(stream.schema, "writeParquet", case_sensitive=is_case_sensitive(stream.session))
    _check_schema(stream.schema)
    return _write(stream, path, FileForm("parquet", held, compression), overwrite, partition_by)


def write_csv(
    stream: WritableStream,
    path: str | Path,
    signs: tuple[str, str, bool],
    compression: str,
    overwrite: bool,
    partition_by: Sequence[str] = (),
) -> FilesWritten:
    """See `Stream.writeCsv`; `signs` are its separator, null and header. Raises SettingError or SchemaError first."""
    separator, null, header = signs
    form = CsvSigns(quoting(separator, '"', None, "writeCsv").separator, null, header)
    if wrong := signs_fault(form):
        raise SettingError(f"writeCsv: {wrong}")
    return _write_lines(stream, path, "csv", csv_fault, compression, overwrite, partition_by, form)


def write_json(
    stream: WritableStream, path: str | Path, compression: str, overwrite: bool, partition_by: Sequence[str] = ()
) -> FilesWritten:
    """See `Stream.writeJson`; raises SettingError or SchemaError before anything runs."""
    require_writer(stream, "writeJson")
    refuse_one_name(stream.schema, "writeJson", case_sensitive=is_case_sensitive(stream.session))
    return _write_lines(stream, path, "json", json_fault, compression, overwrite, partition_by)


def _write_lines(
    stream: WritableStream,
    path: str | Path,
    format_: str,
    fault: Callable[[pa.Schema], str],
    compression: str,
    overwrite: bool,
    partition_by: Sequence[str],
    signs: CsvSigns = PLAIN_CSV,
) -> FilesWritten:
    verb = _verb(format_)
    require_writer(stream, verb)
    if compression not in LINE_CODECS:
        raise SettingError(f"{verb}: compression {compression!r} is none of {', '.join(LINE_CODECS)}")
    held = file_schema(stream.schema, partition_by, verb)
    if wrong := fault(held) or ("" if held.names else "a stream without columns has no lines"):
        raise SchemaError(f"{verb}: {wrong}: cast it, or write Parquet")
    return _write(stream, path, FileForm(format_, held, compression, signs), overwrite, partition_by)


def _verb(format_: str) -> str:
    return f"write{format_.capitalize()}"


def _write(
    stream: WritableStream, path: str | Path, form: FileForm, overwrite: bool, partition_by: Sequence[str]
) -> FilesWritten:
    began = time.monotonic()
    target = FolderTarget.of(path, _verb(form.format))
    write = WriteFiles(target.filesystem, target.staging, form)
    operator = WritePartitioned(write, tuple(partition_by)) if partition_by else write
    try:
        files = write_files(stream, operator, lambda: target.prepare(overwrite))
        target.commit(files or [target.write_empty(form)])
    finally:
        target.clean()
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return FilesWritten(str(path), max(1, len(files)), rows, size, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class FolderTarget:
    """The folder to write to and the staging folder beside it, which is never published itself."""

    filesystem: pafs.FileSystem
    folder: str
    staging: str
    verb: str = "writeParquet"

    @classmethod
    def of(cls, path: str | Path, verb: str = "writeParquet") -> FolderTarget:
        """The target of a path or URI."""
        if not isinstance(path, str | Path) or not str(path):
            raise SettingError(f"{verb} takes the path of a folder, not {path!r}")
        try:
            filesystem, inner = at_uri(str(path)) if is_uri(str(path)) else (here(), str(path))
        except (ValueError, OSError) as error:
            raise SettingError(f"{verb}: {path} can't be reached: {error}") from error
        if is_here(filesystem):
            inner = str(Path(inner).expanduser().resolve())
        return cls.beside(filesystem, inner, verb)

    @classmethod
    def beside(cls, filesystem: pafs.FileSystem, folder: str, verb: str = "writeParquet") -> FolderTarget:
        """The target with a new staging folder's name."""
        parent, _, name = folder.rstrip("/").rpartition("/")
        if not name:
            raise SettingError(f"{verb}: {folder!r} is the top of a file system, not a folder in it")
        staging = f".{name}.penstock-{secrets.token_hex(6)}"
        place = f"{parent}/{staging}" if parent or folder[0] == "/" else staging
        return cls(filesystem, folder.rstrip("/"), place, verb)

    def prepare(self, overwrite: bool) -> None:
        """Refuse what is there already, and make the staging folder."""
        info = self.filesystem.get_file_info(self.folder)
        if info.is_file:
            raise SettingError(f"{self.verb}: {self.folder} is a file: name a folder, or remove it")
        if not overwrite and self._old_names():
            raise SettingError(
                f"{self.verb}: {self.folder} is not empty: name another folder, or say overwrite=True to replace"
                " what is there"
            )
        try:
            self.filesystem.create_dir(self.staging, recursive=True)
        except OSError as error:
            raise SettingError(
                f"{self.verb}: beside {self.folder} no folder can be made: {error}: name another place, or make it"
                " writable"
            ) from error

    def write_empty(self, form: FileForm) -> WrittenFile:
        """A file without rows, so that the schema is not lost."""
        file = PartWriter(WriteFiles(self.filesystem, self.staging, form))
        name = file.finish()["file"][0].as_py()
        return WrittenFile(name, 0, 0)

    def commit(self, files: list[WrittenFile]) -> None:
        """Put these files, in this order, into the target; what else is in the staging folder stays there."""
        names = {file.name: _numbered(file.name, number) for number, file in enumerate(files)}
        if is_here(self.filesystem):
            self._commit_local(names)
        else:
            self._commit_moves(names)

    def clean(self) -> None:
        """Remove the staging folder and what was made ready; idempotent."""
        for folder in (self.staging, self._ready):
            with suppress(FileNotFoundError):
                self.filesystem.delete_dir(folder)

    @property
    def _ready(self) -> str:
        """The folder that becomes the target: only files of the job that succeeded ever go there."""
        return f"{self.staging}.ready"

    def _commit_local(self, names: dict[str, str]) -> None:
        staging, ready, folder = Path(self.staging), Path(self._ready), Path(self.folder)
        ready.mkdir()
        for name, final in names.items():
            (ready / final).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).rename(ready / final)
        (ready / SUCCESS).touch()
        sync_file(ready / SUCCESS)
        for made in [ready, *(path for path in ready.rglob("*") if path.is_dir())]:
            sync_folder(made)
        if not self._old_names():
            ready.rename(folder)  # an empty folder of that name is replaced, any other is an error
        elif swapped(ready, folder):
            self.filesystem.delete_dir(str(ready))
        else:
            self._replace(ready, folder)
        sync_folder(folder.parent)

    def _replace(self, ready: Path, folder: Path) -> None:
        aside = ready.with_name(f"{ready.name}.old")
        folder.rename(aside)
        try:
            ready.rename(folder)
        except BaseException:
            aside.rename(folder)
            raise
        self.filesystem.delete_dir(str(aside))

    def _commit_moves(self, names: dict[str, str]) -> None:
        is_new = not self._exists(self.folder)
        old, files = self._old_names(), self._old_files()
        self.filesystem.create_dir(self.folder, recursive=True)
        self._remove([SUCCESS])
        try:
            for name, final in names.items():
                if "/" in final:
                    self.filesystem.create_dir(f"{self.folder}/{final.rpartition('/')[0]}", recursive=True)
                self.filesystem.move(f"{self.staging}/{name}", f"{self.folder}/{final}")
        except BaseException:
            # The old files are there still: take the new ones out again.
            self._remove(list(names.values()))
            if SUCCESS in old:
                self._write_success()
            if is_new:
                self.filesystem.delete_dir(self.folder)
            raise
        # A folder of a partition may hold both old files and new ones.
        kept = {final.partition("/")[0] for final in names.values()}
        self._remove([name for name in files if name.partition("/")[0] in kept])
        self._remove([name for name in old if name not in kept])
        self._write_success()

    def _write_success(self) -> None:
        with self.filesystem.open_output_stream(f"{self.folder}/{SUCCESS}"):
            pass

    def _old_names(self) -> list[str]:
        selector = pafs.FileSelector(self.folder, allow_not_found=True)
        return [info.base_name for info in self.filesystem.get_file_info(selector)]

    def _old_files(self) -> list[str]:
        selector = pafs.FileSelector(self.folder, allow_not_found=True, recursive=True)
        start = len(self.folder) + 1
        return [info.path[start:] for info in self.filesystem.get_file_info(selector) if info.is_file]

    def _exists(self, path: str) -> bool:
        return bool(self.filesystem.get_file_info(path).type != pafs.FileType.NotFound)

    def _remove(self, names: list[str]) -> None:
        for info in self.filesystem.get_file_info([f"{self.folder}/{name}" for name in names]):
            if info.is_file:
                self.filesystem.delete_file(info.path)
            elif info.type == pafs.FileType.Directory:
                self.filesystem.delete_dir(info.path)


def _numbered(name: str, number: int) -> str:
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}part-{number:05d}{base.removeprefix('part')}"


def file_schema(schema: pa.Schema, partition_by: Sequence[str], verb: str) -> pa.Schema:
    """The columns that the files hold; raises SchemaError or TypeError for columns that folders can't be named by.

    All may be null there, as in Spark's files: Arrow writes no null struct with a field that may not be null.
    """
    if isinstance(partition_by, str):
        raise TypeError(f"{verb}: partitionBy is a list of columns: [{partition_by!r}]")
    names = column_arguments(list(partition_by), schema, verb)
    for name in names:
        kind = schema.field(name).type
        if not (pt.is_integer(kind) or pt.is_string(kind) or pt.is_boolean(kind) or pt.is_date32(kind)):
            raise SchemaError(
                f"{verb}: partitionBy column {name!r} is {kind}, and folders are named by whole numbers, "
                "strings, booleans and dates: make such a column with withColumn"
            )
    for field in schema:
        if reason := unwritable(field):
            raise SchemaError(f"{verb}: column {field.name!r} {reason}")
    held = as_nullable(pa.schema([field for field in schema if field.name not in names]))
    if names and not held.names:
        raise SchemaError(f"{verb}: partitionBy takes all columns, and nothing is left for the files")
    return held


def refuse_own_types(schema: pa.Schema, verb: str, format_: str) -> None:
    """Raise SchemaError for columns of types that a table format does not have, but would take for their parts."""
    for name in own_types(schema):
        raise SchemaError(
            f"{verb}: column {name!r} has a type of Spark's own, {shown_type(schema.field(name))}, which {format_}"
            " has not: take it apart with mapInArrow, or write Parquet"
        )


def refuse_one_name(schema: pa.Schema, verb: str, *, case_sensitive: bool) -> None:
    """Raise SchemaError where columns have one name: Spark writes them neither, but as CSV."""
    names = schema.names
    if twice := [name for name in names if names.count(name) > 1] if case_sensitive else of_one_name(names):
        raise SchemaError(
            f"{verb}: columns {', '.join(map(repr, twice))} have one name, so no reader could tell them apart:"
            " rename them with mapInArrow, or, where they differ in case, set spark.sql.caseSensitive=true"
        )


def _check_schema(schema: pa.Schema) -> None:
    import pyarrow.parquet as pq

    if not schema.names:
        raise SchemaError("writeParquet: a stream without columns has nothing that Parquet could hold")
    try:
        pq.write_table(schema.empty_table(), pa.BufferOutputStream())
    except (pa.ArrowException, ValueError) as error:
        raise SchemaError(
            f"writeParquet: Parquet has no type for a column of this stream ({error}): bring it to another type with"
            " mapInArrow"
        ) from error
