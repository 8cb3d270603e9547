# SPDX-License-Identifier: Apache-2.0
"""The environment process: one per host (or executor) and application, the shell around pools, partitions, network.

Started by the first task that needs it (`python -m penstock.environment`, configuration on standard input), it
ends with the application. Asyncio, one thread for all data-plane state, no disk I/O on its loop.
"""
