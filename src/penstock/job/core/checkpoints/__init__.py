# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a streaming query: when one begins, what its tasks begin with, when it is complete."""
