# SPDX-License-Identifier: Apache-2.0
"""The slots of jobs: who gets which, and for how long; workers, their places, and refusals for want of slots."""
