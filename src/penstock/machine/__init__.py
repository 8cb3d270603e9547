# SPDX-License-Identifier: Apache-2.0
"""The machine and its storage: memory, disks, folders that survive a loss of power, file systems behind a path."""
