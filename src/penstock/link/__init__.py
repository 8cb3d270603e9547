# SPDX-License-Identifier: Apache-2.0
"""The link room: what a task, its host's environment process and the JobMaster agree on, each word once.

    rendezvous          where a host's tasks and its environment meet
    welcome             what follows the proof of the secret: the memory
    frames, rpc         what is sent without an answer, for each slice and event; calls over one connection
    wire                typed messages in control messages
    calls               what a task asks of its environment, with the answers
    master              what environments and tasks ask of the JobMaster, with the answers
    commands            what an environment is told to do
    control             control messages as bytes, errors within them, seals
    numbers             the numbers of calls and of ports

Nothing is re-exported: a task imports what it needs, and does not pay for the rest.
"""
