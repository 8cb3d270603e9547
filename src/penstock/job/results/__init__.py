# SPDX-License-Identifier: Apache-2.0
"""The results behind the lazy DataFrames: each is made when it is first opened, and again when it is lost."""
