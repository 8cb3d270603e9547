# SPDX-License-Identifier: Apache-2.0
"""The parts that a shuffle service need not write again, around its way to store and to fetch rows.

A service may use any of them, or none: `penstock.shuffle` is the contract. Nothing is re-exported: a driver needs no
writers.
"""
