# SPDX-License-Identifier: Apache-2.0
"""Spark's external shuffle service, as it is, as a place for blocking partitions."""
