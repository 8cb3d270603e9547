# SPDX-License-Identifier: Apache-2.0
"""Penstock: a pluggable data-exchange service for PySpark pipelines."""
