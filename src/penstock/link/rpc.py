# SPDX-License-Identifier: Apache-2.0
"""gRPC without what it does in a process that is about to be another program.

When a process forks, gRPC's handlers start its threads in the child again. Python closes the child's descriptors
before it becomes a Java or a worker, the threads find theirs gone, and the child may end there: one in thirty did. A
process that has asked gRPC for these handlers, or has imported it before us, keeps them.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import grpc.aio

__all__ = ["grpc"]
