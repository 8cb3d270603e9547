# SPDX-License-Identifier: Apache-2.0
"""Other environments: addresses, connections, what is served to them and read from them."""
