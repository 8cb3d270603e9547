# SPDX-License-Identifier: Apache-2.0
"""The inside of a task: input, operators, outputs. Knows nothing of Spark, processes or sockets."""

from penstock.task.control import TaskControl
from penstock.task.failure import failure_text
from penstock.task.runner import SubtaskPlan, run_subtask

__all__ = ["SubtaskPlan", "TaskControl", "failure_text", "run_subtask"]
