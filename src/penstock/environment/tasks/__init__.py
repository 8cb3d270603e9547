# SPDX-License-Identifier: Apache-2.0
"""The attached tasks: their sockets, calls, lives, and what is written for them."""
