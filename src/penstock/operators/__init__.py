# SPDX-License-Identifier: Apache-2.0
"""Batches in, batches out: functions of the user's, expressions, aggregation, sorts, joins, rows of files.

An operator knows no gate, writer or attempt: the runner of a subtask (`penstock.task`) pulls batches through it.
"""
