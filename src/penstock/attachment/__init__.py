# SPDX-License-Identifier: Apache-2.0
"""What a task has of its host, whatever service moves its data: the environment process, and the line to it.

Nothing is re-exported: drivers need to know how an environment is started, tasks how they speak with it.
"""
