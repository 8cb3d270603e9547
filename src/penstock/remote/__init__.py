# SPDX-License-Identifier: Apache-2.0
"""The processes of the remote shuffle service, and the protocol by which they are used.

    blocks, messages, wire, peers          what is sent, for both sides
    placement, partition_states,
    manager_state, kept_names, manager_core
                                           the manager's cores; `state_log` keeps its records, `manager` is its shell
    merged, push_credit                    the worker's cores; `store` has its files, `worker_index` its index on
                                           disk, `worker` is its shell
    command                                `penstock service remote`

The plug-in, in drivers and tasks, is `services/remote`.
"""
