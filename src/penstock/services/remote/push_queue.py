# SPDX-License-Identifier: Apache-2.0
"""The blocks that go to one worker: which wait, which are announced, which are under way. Pure.

Rules:

- Blocks are announced while at most `window` bytes are announced or under way, and sent when memory is promised for
  them, in this order.
- A block that was refused, because it was damaged on its way or one before it was, is sent again when none of its
  file is under way any more: so the numbers of a file stay in order. A gap before the first of them can't close so:
  the worker lacks what it had taken, and after `_DAMAGES` of those, as after so many damages, pushing fails.
- The blocks of a file that the worker takes no more of are given back, when none of them is under way.
- A connection that breaks loses what was under way and not acknowledged: all of it is sent again, in order. The
  worker knows what it has.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from penstock.errors import ProtocolError, QuotaError, StaleError, StorageError
from penstock.remote.blocks import charge

TAKEN, REPEAT, GAP, STALE, FULL, DAMAGED, OVER, USER_OVER = range(8)
"""The fate of a block, as a worker says it."""
_DAMAGES = 8


@dataclass(frozen=True, slots=True, eq=False)
class PushedBlock:
    """A block to be pushed: its head, its bytes in parts, and rows, bytes and checksum of what begins in it."""

    file: int
    number: int
    length: int
    head: bytes
    parts: tuple[bytes | memoryview, ...]
    sums: tuple[int, int, int]


class PushQueue:
    """The blocks on their way to one worker."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._waiting: deque[PushedBlock] = deque()
        self._announced: deque[PushedBlock] = deque()
        self._under_way: dict[tuple[int, int], PushedBlock] = {}
        self._charged = 0
        self._of_file: Counter[int] = Counter()
        self._again: dict[int, list[PushedBlock]] = {}
        self._full: set[int] = set()
        self._damages = 0
        self._gaps = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing waits and nothing is under way."""
        return not (self._waiting or self._announced or self._under_way or self._again)

    @property
    def is_waiting(self) -> bool:
        """True if the worker owes a word: memory for what was announced, or what became of what was sent."""
        return bool(self._announced or self._under_way)

    def add(self, blocks: list[PushedBlock]) -> None:
        """Put these blocks behind all others."""
        for block in blocks:
            if block.file in self._full or block.file in self._again:
                self._again.setdefault(block.file, []).append(block)
            else:
                self._waiting.append(block)

    def announce(self) -> list[PushedBlock]:
        """The blocks to announce now."""
        found = []
        while self._waiting:
            nbytes = charge(self._waiting[0].length)
            if self._charged and self._charged + nbytes > self._window:
                break
            block = self._waiting.popleft()
            self._charged += nbytes
            self._of_file[block.file] += 1
            self._announced.append(block)
            found.append(block)
        return found

    def promised(self, count: int) -> list[PushedBlock]:
        """Memory was promised for so many: send these."""
        if count > len(self._announced):
            raise ProtocolError(f"memory was promised for {count} blocks, {len(self._announced)} were announced")
        found = [self._announced.popleft() for _ in range(count)]
        for block in found:
            self._under_way[block.file, block.number] = block
        return found

    def acknowledged(self, file: int, number: int, verdict: int) -> PushedBlock | None:
        """The worker has said what became of a block: the block, if it is stored there.

        StaleError for a writer that is none any more, QuotaError for an application or user that may have no more,
        StorageError for a wire that damages everything, and for a worker that lacks what it had taken.
        """
        block = self._under_way.pop((file, number), None)
        if block is None:
            raise ProtocolError(f"block {number} of file {file} is acknowledged, and was not under way")
        self._charged -= charge(block.length)
        self._of_file[file] -= 1
        if verdict in (TAKEN, REPEAT):
            self._settle(file)
            return block
        if verdict == STALE:
            raise StaleError("this writer was given up: what it has is stale")
        if verdict == OVER:
            raise QuotaError(
                "the worker lets one application keep no more than its --quota there, and this one has as much:"
                " release persisted streams, use fewer or smaller exchanges at a time, or ask for a larger quota"
            )
        if verdict == USER_OVER:
            raise QuotaError(
                "the worker lets all applications of one user, with the results that it keeps by name, have no more"
                " than its --user-quota there, and this user has as much: keep less by name, wait for the lease of"
                " what is kept to end, or ask for a larger quota"
            )
        if verdict == FULL:
            self._full.add(file)
        else:
            self._count(block, verdict)
        self._again.setdefault(file, []).append(block)
        self._settle(file)
        return None

    def broken(self) -> None:
        """The connection is gone: what was announced or under way waits again, in front."""
        back = [*self._under_way.values(), *self._announced]
        again = [block for blocks in self._again.values() for block in blocks]
        self._under_way.clear()
        self._announced.clear()
        self._again.clear()
        self._charged = 0
        self._of_file.clear()
        first = sorted([*back, *again], key=lambda block: (block.file, block.number))
        waiting, self._waiting = self._waiting, deque()
        self.add([*first, *waiting])

    def take_full(self) -> dict[int, list[PushedBlock]]:
        """The files that the worker takes no more of, with all that was to go there; those that can move now."""
        found = {}
        for file in [each for each in self._full if not self._of_file[each]]:
            self._full.discard(file)
            later = [block for block in self._waiting if block.file == file]
            self._waiting = deque(block for block in self._waiting if block.file != file)
            blocks = [*self._again.pop(file, []), *later]
            found[file] = sorted(blocks, key=lambda block: block.number)
        return found

    def take_all(self) -> dict[int, list[PushedBlock]]:
        """Everything, by file: nothing goes to this worker any more."""
        self.broken()
        found: dict[int, list[PushedBlock]] = {}
        for blocks in (self._waiting, *self._again.values()):
            for block in blocks:
                found.setdefault(block.file, []).append(block)
        self._waiting.clear()
        self._again.clear()
        self._full.clear()
        return {file: sorted(blocks, key=lambda block: block.number) for file, blocks in found.items()}

    def _count(self, block: PushedBlock, verdict: int) -> None:
        self._damages += verdict == DAMAGED
        if self._damages > _DAMAGES:
            raise StorageError(f"{self._damages} blocks were damaged on their way to one worker")
        self._gaps += verdict == GAP and block.file not in self._again
        if self._gaps > _DAMAGES:
            raise StorageError(
                f"a worker refused block {block.number} of file {block.file} {self._gaps} times: it lacks one before"
                " it that it had taken: the partition must be recomputed"
            )

    def _settle(self, file: int) -> None:
        """If none of a file is under way, what was refused goes again, in front of what waits."""
        if not self._of_file[file] and file not in self._full and (again := self._again.pop(file, None)):
            self._waiting.extendleft(sorted(again, key=lambda block: -block.number))
