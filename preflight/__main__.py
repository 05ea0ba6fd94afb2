"""``python -m preflight`` is ``mooncake-preflight``."""

import mooncake_preflight

mooncake_preflight.preflight()
