# SPDX-License-Identifier: Apache-2.0
"""A job as it runs: its stages and subtasks, what they have become, what they can run on."""
