# SPDX-License-Identifier: Apache-2.0
"""The decisions of the JobMaster: events in, instructions out. Pure: no await, socket, clock, thread or log."""
