# SPDX-License-Identifier: Apache-2.0
"""The JobMaster, one per application.

`core` decides and is pure; `query_storage` keeps the checkpoints of streaming queries; `launcher` is the seam to
Spark, which runs the tasks; `results` serves what jobs leave behind; `shell` joins all of that on one thread.
Imports go in this order.
"""
