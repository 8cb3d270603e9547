# SPDX-License-Identifier: Apache-2.0
"""Entry point of the environment process."""

from penstock.environment.process import main

main()
