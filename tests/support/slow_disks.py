# SPDX-License-Identifier: Apache-2.0
"""A slow disk for a process of Python, and one that fails, where it reads and writes at a place of a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_PROGRAM = """
import errno, os, time

def slow(call):
    def slowly(*arguments):
        if len(arguments) > 3:  # os.RWF_NOWAIT: such a disk has nothing in memory
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        time.sleep({seconds})
        return call(*arguments)
    return slowly

for name in ("pread", "preadv", "pwrite", "pwritev"):
    setattr(os, name, slow(getattr(os, name)))
"""


def slow_disk(folder: Path, seconds: float) -> dict[str, str]:
    """The environment of a process with a slow disk; the folder gets what that process imports when it starts."""
    return _environment(folder, _PROGRAM.format(seconds=seconds))


_FAILING = """
import errno, os, pathlib

def failure(what):
    try:
        with open({flag!r}) as found:
            kind, *more = found.read().split()
    except FileNotFoundError:
        return None
    return OSError(getattr(errno, kind), os.strerror(getattr(errno, kind))) if what in ("write", *more) else None

def writing(call):
    def called(file, *arguments):
        error = failure("write")
        if error is not None and os.readlink(f"/proc/self/fd/{{file}}").endswith({name!r}):
            raise error
        return call(file, *arguments)
    return called

def reading(call):
    def called(path):
        error = failure("read")
        if error is not None and path.name.endswith({name!r}):
            raise error
        return call(path)
    return called

for name in ("pwrite", "ftruncate", "fsync"):
    setattr(os, name, writing(getattr(os, name)))
pathlib.Path.read_bytes = reading(pathlib.Path.read_bytes)
"""


def failing_disk(folder: Path, name: str, flag: Path) -> dict[str, str]:
    """The environment of a process that can't write files of this name while `flag` is there: it says the error.

    With the word `read` after it the process can't read them either.
    """
    return _environment(folder, _FAILING.format(name=name, flag=str(flag)))


_LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void slow(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 6) return;
    path[size] = 0;
    if (!strcmp(path + size - 5, ".data") || !strcmp(path + size - 6, ".index")) usleep(%(micros)d);
}

#define SLOW(name, file, kind, parameters, arguments) \\
    ssize_t name parameters { \\
        slow(file); \\
        return ((ssize_t (*) kind) dlsym(RTLD_NEXT, #name)) arguments; \\
    }
SLOW(read, file, (int, void *, size_t), (int file, void *to, size_t size), (file, to, size))
SLOW(pread64, file, (int, void *, size_t, off64_t), (int file, void *to, size_t size, off64_t at),
     (file, to, size, at))
SLOW(sendfile64, file, (int, int, off64_t *, size_t), (int to, int file, off64_t *at, size_t size),
     (to, file, at, size))
SLOW(sendfile, file, (int, int, off_t *, size_t), (int to, int file, off_t *at, size_t size),
     (to, file, at, size))
"""


def slow_disk_of_java(folder: Path, seconds: float) -> dict[str, str]:
    """The environment of a Java process with a slow disk under files of shuffles; the test is skipped without cc."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler")
    folder.mkdir()
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(_LIBRARY % {"micros": int(seconds * 1e6)})
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def _environment(folder: Path, program: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
