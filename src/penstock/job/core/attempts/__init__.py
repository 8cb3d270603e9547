# SPDX-License-Identifier: Apache-2.0
"""What subtasks are told and say from their start to their end."""
