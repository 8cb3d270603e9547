# SPDX-License-Identifier: Apache-2.0
"""The example of a transport, on the path of this process and of those that it starts."""

from __future__ import annotations

import sys

from source import ROOT

sys.path.insert(0, str(ROOT / "examples" / "plugin"))
from zlib_transport import ZlibTransport

NAME = "zlib_transport:ZlibTransport"

__all__ = ["NAME", "ZlibTransport"]
