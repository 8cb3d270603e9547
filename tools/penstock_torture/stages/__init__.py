# SPDX-License-Identifier: Apache-2.0
"""Random programs of one stage with state, beside plain Python that follows Spark's documented rules.

A seed says the stage (windows in each mode, sessions, joins, duplicates, first rows, aggregates, processors), its
keys (null, NaN, -0.0 and empty texts among them), the rows, the watermark of each task, checkpoints that fail or
that tasks hear of late, and restores at 1, 2, 3 and 7 tasks. Thresholds of compaction are tiny in some. After each
event the rows that came out must be those of the oracle.

No clock, process or file takes part, so a seed gives the same program, and the same ending, wherever it runs.
"""

from penstock_torture.stages.run import StageEnding, run_stage

__all__ = ["StageEnding", "run_stage"]
