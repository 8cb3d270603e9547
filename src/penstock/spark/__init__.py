# SPDX-License-Identifier: Apache-2.0
"""Runs Penstock on Spark: the only room that imports pyspark."""
