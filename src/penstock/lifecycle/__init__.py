# SPDX-License-Identifier: Apache-2.0
"""Lives as tables of states and events, for any room; and those of a writer and a gate, for any shuffle service."""
