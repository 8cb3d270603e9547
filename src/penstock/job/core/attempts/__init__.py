# SPDX-License-Identifier: Apache-2.0
"""The words to subtasks, and theirs, from their start to their end."""
