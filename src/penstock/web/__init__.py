# SPDX-License-Identifier: Apache-2.0
"""The web page: jobs out of their events, served to browsers that have the token, or written as one file."""
