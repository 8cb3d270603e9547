# SPDX-License-Identifier: Apache-2.0
"""Result partitions: their life, their queues, who may read them, and the files of the blocking ones.

Nothing is re-exported: an environment process imports what it serves, and neither Arrow nor NumPy.
"""
