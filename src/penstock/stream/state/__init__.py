# SPDX-License-Identifier: Apache-2.0
"""State by key for users' processors: values, lists, maps and timers of all keys of a task, in columns.

All of it is read and written for many keys at once; the calls of PySpark's processors, one key at a time, are put
together for the keys of a batch (`row_calls`). Stored and restored by key groups, typed by schema, never pickled.
"""
