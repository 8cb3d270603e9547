# SPDX-License-Identifier: Apache-2.0
"""The host service `external`: its contract, and the process that keeps partitions of many applications.

Nothing is re-exported: tasks need the contract alone (`requests`, `keys`), and the process is an entry point.
"""
