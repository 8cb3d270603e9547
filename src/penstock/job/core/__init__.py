# SPDX-License-Identifier: Apache-2.0
"""What the JobMaster decides: events in, instructions out. Pure: no await, socket, clock, thread or log."""
