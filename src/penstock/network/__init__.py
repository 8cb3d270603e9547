# SPDX-License-Identifier: Apache-2.0
"""The network room: buffers and events between environment processes, and the ways to one from a task.

One multiplexed, authenticated connection for each pair of environments; many channels on it, each with credit.

    messages            what the ends say to each other
    frames, decoder     how it looks in bytes
    ledger, lifecycle   credit at both ends; the states of readers and channels
    views               what is asked of the partitions that are served
    sender, receiver    the cores of a connection's two sides, without I/O
    handshake           both ends prove that they know the application's secret
    transport           the seam; sockets and memory implement it
    connection          the shell that joins an endpoint and a core
    server, client      the shells of an environment
    attachment, rendezvous   between a task and its environment, on a Unix socket

Nothing is re-exported here: a task imports the handshake, and should not pay for an event loop it does not run.
"""
