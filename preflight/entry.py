"""Where both programs start: Ctrl-C ends them in silence from the first line on.

Nothing is imported here before it is caught: what Python does before this line is its own.
"""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def preflight() -> None:
    """``mooncake-preflight``."""
    try:
        from preflight.preflight_command import main

        main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def sizing() -> None:
    """``mooncake-hicache-sizing``."""
    try:
        from preflight.sizing.sizing_command import main

        main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
