# SPDX-License-Identifier: Apache-2.0
"""Unchanged PySpark programs: islands of their plans run through Penstock."""

from penstock.islands.sessions import accelerate, accelerated, acceleration, explain

__all__ = ["accelerate", "accelerated", "acceleration", "explain"]
