"""Where the scripts of an older installation start; new ones start at ``mooncake_preflight``."""

from __future__ import annotations

from mooncake_preflight import preflight, sizing

__all__ = ["preflight", "sizing"]
