# SPDX-License-Identifier: Apache-2.0
"""The thread that calls the function of `foreachBatch`: whatever that raises ends the query."""

from __future__ import annotations

import pytest

from penstock.api.streaming.batches import BatchCaller
from penstock.stream.batch_files import FileBatch


class _TwoBatches:
    """Batches that wait; `done` are those whose call ended well."""

    def __init__(self) -> None:
        self._left = [FileBatch(0, ("f",)), FileBatch(1, ("g",))]
        self.done_numbers: list[int] = []

    def take(self) -> FileBatch | None:
        return self._left.pop(0) if self._left else None

    def done(self, batch: FileBatch) -> None:
        self.done_numbers.append(batch.number)


@pytest.mark.parametrize(
    ("error", "words"), [(SystemExit(3), "SystemExit: 3"), (ValueError("bad"), "ValueError: bad")]
)
def test_what_a_function_raises_is_the_querys_failure(error: BaseException, words: str) -> None:
    """`sys.exit()` too, of which the thread died without a word, so that no batch was given any more."""

    def call(batch: FileBatch) -> None:
        if batch.number == 1:
            raise error

    batches = _TwoBatches()
    caller = BatchCaller(batches, call, "q")  # type: ignore[arg-type]
    caller.finish()
    assert batches.done_numbers == [0]
    lines = str(caller.failure).splitlines()
    assert lines[0] == f"the function of foreachBatch failed: {words} (in batch 1)"
    assert lines[1:2] == ["Traceback (most recent call last):"]
    assert "in call" in lines[2]  # the first frame is the function's own
    assert lines[-1] == "raised in batch 1 of foreachBatch"
