# SPDX-License-Identifier: Apache-2.0
"""The laboratory: what flow control does, watched on one's own machine (`python -m penstock_lab`, in a checkout).

It stands beside the product and uses it as a user's task would: real environment processes, a JobMaster, one TCP
connection. Nothing imports it.
"""
