# SPDX-License-Identifier: Apache-2.0
"""The network room: buffers and events between environment processes.

One multiplexed, authenticated connection for each pair of environments; many channels on it, each with credit.

    messages            what the ends say to each other
    frames, decoder     how it looks in bytes
    ledger, lifecycle   credit at both ends; the states of readers and channels
    views               what is asked of the partitions that are served
    sender, receiver    the cores of a connection's two sides, without I/O
    transport           the seam; sockets implements it
    connection          the shell that joins an endpoint and a core
    server, client      the shells of an environment

The handshake that opens a connection is that of `penstock.link`. Nothing is re-exported here.
"""
