# SPDX-License-Identifier: Apache-2.0
"""Random programs, each written with Penstock's verbs and as plain PySpark, and compared.

A seed gives a program: random tables, a chain of verbs, and an action, as source text for both sides. Right is the
same rows, types and nullability, or an error on both sides. A difference that a page names is no fault
(`documented`). The results stand in a file, a line for each seed, so that a run goes on where it stopped.
"""
