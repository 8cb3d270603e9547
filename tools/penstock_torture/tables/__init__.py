# SPDX-License-Identifier: Apache-2.0
"""Tables with random histories, made by their owners' libraries and by us, read by us and by the libraries.

What has happened to a table is drawn from a seed: columns added, dropped, renamed, moved, widened and swapped, rows
deleted, partitions changed, files of other writers in other layouts, files of ours. At the end, and at an older
version, our rows must be those that the library gives; with a condition, those of them for which it holds.
"""
