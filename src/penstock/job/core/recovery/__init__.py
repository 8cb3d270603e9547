# SPDX-License-Identifier: Apache-2.0
"""The recovery of a job: the subtasks that run again when something fails, and when."""
