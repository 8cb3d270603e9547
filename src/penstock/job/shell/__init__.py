# SPDX-License-Identifier: Apache-2.0
"""What the JobMaster does: its thread and event loop, its gRPC server, and the carrying out of instructions."""
