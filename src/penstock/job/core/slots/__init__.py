# SPDX-License-Identifier: Apache-2.0
"""Who gets which slot, and for how long: workers, their places, and what is refused for want of slots."""
