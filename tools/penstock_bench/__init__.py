# SPDX-License-Identifier: Apache-2.0
"""Measures Penstock beside Spark's own shuffle: same rows, same functions, same session, in turns.

A case is two ways to one answer. Both answers are checked in every run, and a wrong one ends the bench. The bench
reports medians of whole actions, from the call to the last row in the driver, in a warm session. Spark's side has the
settings that are best for it on the machine (`session`), and of 2, 4 and 8 shuffle partitions the number that was
fastest for it on a tenth of the rows. Non-goals: clusters of several hosts, cold starts, tuning Penstock.
"""
