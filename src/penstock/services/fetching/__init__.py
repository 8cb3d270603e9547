# SPDX-License-Identifier: Apache-2.0
"""Reading partitions out of services that give bytes on request: the gate, its connections, extents into batches."""
