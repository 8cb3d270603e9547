# SPDX-License-Identifier: Apache-2.0
"""The views for a person: the trace of a job as a file, and its progress on a terminal."""

from penstock.observe.event_log import EventLog, read_events
from penstock.observe.progress import ProgressSnapshot, ShownVertex

__all__ = ["EventLog", "ProgressSnapshot", "ShownVertex", "read_events"]
