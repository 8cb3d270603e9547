# SPDX-License-Identifier: Apache-2.0
"""Compares spill policies on a virtual clock: the figures of `docs/decisions/0010-hybrid-partitions.md`.

Run it as `python tests/partition/spill_figures.py`. A producer writes 2,000 slices of half a segment to 8
subpartitions, with memory for a tenth of them; a store carries out one order at a time; readers take what they can.
Per tick the producer writes up to 4 slices, the store writes 3 slices (2 ticks more per order) and each of the eight
readers reads as many slices as the case says. Nothing here is measured in seconds, so that a busy machine changes
nothing: stalls are ticks in which the producer could not write at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybrid_parts import SIZE, Reader, World

from penstock.partition.hybrid_cursor import Next
from penstock.partition.spill_policy import SpillPolicy, StoreEverything, StoreWhatDoesNotFit

SLICES = 2000
SUBPARTITIONS = 8
SEGMENTS = 100
NEVER = 10**9


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run took."""

    ticks: int
    stalls: int
    stored: int
    from_storage: int
    extent: float


def run(policy: SpillPolicy, keeps: bool, every: int, begin: int) -> Figures:
    """One partition to its end; a reader takes a slice each `every` ticks, from tick `begin` on (or the finish)."""
    world = World(SUBPARTITIONS, SEGMENTS, policy)
    world.partition.keeps = keeps
    readers: list[Reader] = []
    written = ticks = stalls = from_storage = orders = extents = 0
    busy = -1
    while True:
        ticks += 1
        before = written
        while written < min(SLICES, before + 4) and world.write(written % SUBPARTITIONS, SIZE // 2):
            written += 1
        stalls += written == before < SLICES
        if written == SLICES and not world.partition.is_finished:
            world.finish()
        if world.orders and busy < 0:
            busy = 2 + sum(len(run) for run in world.orders[0].runs) // 3
        elif busy == 0:
            extents += len(world.orders[0].runs)
            orders += 1
            world.carry_out()
        busy -= busy >= 0
        if not readers and (ticks >= begin or world.partition.is_finished):
            readers = [Reader(world, sub) for sub in range(SUBPARTITIONS)]
        if ticks % every == 0:
            from_storage += sum(_read(readers))
        if readers and all(reader.events for reader in readers):
            break
    stored = len(world.storage)
    return Figures(ticks, stalls, stored * 2 // SIZE, from_storage, stored / SIZE / max(1, extents))


def _read(readers: list[Reader]) -> Iterator[bool]:
    for reader in readers:
        yield reader.step() is Next.STORED
        while reader.held:
            reader.give_back()


CASES = {"readers keep up": (2, 0), "readers half as fast": (4, 0), "readers come behind the end": (1, NEVER)}
FULL = {
    "begin 0.5, enough 16; release 0.4 at 0.7": StoreEverything(),
    "begin 0.5 only; release 0.4 at 0.7": StoreEverything(enough=NEVER),
    "begin 0.5, enough 4; release 0.4 at 0.7": StoreEverything(enough=4),
    "begin 0.5, enough 16; release 0.1 at 0.9": StoreEverything(full=0.9, give=0.1),
}
SELECTIVE = {
    "0.4 at 0.7": StoreWhatDoesNotFit(),
    "0.2 at 0.9": StoreWhatDoesNotFit(0.9, 0.2),
    "0.4 at 0.5": StoreWhatDoesNotFit(0.5, 0.4),
    "0.1 at 0.7": StoreWhatDoesNotFit(0.7, 0.1),
}


def main() -> None:
    """Print the table."""
    print("| policy | case | ticks | stalls | slices stored | read from storage | extent, segments |")
    print("|---|---|---|---|---|---|---|")
    for kind, policies, keeps in (("full", FULL, True), ("selective", SELECTIVE, False)):
        for name, policy in policies.items():
            for case, (every, begin) in CASES.items():
                found = run(policy, keeps, every, begin)
                print(
                    f"| {kind}: {name} | {case} | {found.ticks} | {found.stalls} | {found.stored} "
                    f"| {found.from_storage} | {found.extent:.2f} |"
                )


if __name__ == "__main__":
    main()
