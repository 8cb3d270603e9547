# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of streaming queries: barriers, their alignment, the coordinator's core, and where snapshots are kept.

Cores without I/O: events in, actions out. The shells that carry the actions out live beside the JobMaster, in the
environment and in the task.
"""

from __future__ import annotations
