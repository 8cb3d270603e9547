# SPDX-License-Identifier: Apache-2.0
"""The shell of the JobMaster: its thread and event loop, its server, and the carrying out of instructions."""
