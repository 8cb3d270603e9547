# SPDX-License-Identifier: Apache-2.0
"""`penstock doctor`: whether Penstock can run here, and what to do where it cannot."""
