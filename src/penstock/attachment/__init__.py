# SPDX-License-Identifier: Apache-2.0
"""The host's side of a task, whatever service moves its data: the environment process, and the line to it.

Nothing is re-exported: drivers need to know how an environment is started, tasks how they speak with it.
"""
