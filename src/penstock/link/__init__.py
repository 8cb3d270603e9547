# SPDX-License-Identifier: Apache-2.0
"""The link room: what a task, its host's environment process and the JobMaster agree on, each word once.

    rendezvous          where a host's tasks and its environment meet
    handshake, welcome  how a connection begins: the proof of the secret, then the memory
    frames              what is sent without an answer, for each slice and event
    wire                typed messages in control messages
    calls               what a task asks of its environment, with the answers
    master              what environments, tasks and planners ask of the JobMaster, with the answers
    commands            what an environment is told to do
    control             control messages as bytes, errors within them, the proof of the secret over gRPC
    numbers             the numbers of calls and of ports

Nothing is re-exported: a task imports what it needs, and does not pay for the rest.
"""
