# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of some seeds, and prints those that are wrong, with the end of their story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from penstock_torture.stages.run import described, run_stage


def torture_stages(seeds: Iterable[int], say: Callable[[str], None]) -> list[int]:
    """The seeds whose programs are wrong."""
    wrong: list[int] = []
    counts: Counter[str] = Counter()
    for seed in seeds:
        ending = run_stage(seed)
        counts[ending.kind] += 1
        if ending.wrong:
            wrong.append(seed)
            for line in described(seed, ending):
                say(line)
            say(f"    again: python -m penstock_torture --stages 1 --seed {seed}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    say(f"stages: {sum(counts.values())} ({kinds}), {len(wrong)} wrong")
    return wrong
