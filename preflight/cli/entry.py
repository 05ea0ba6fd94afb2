"""Where both programs start: Ctrl-C ends them without a traceback from the first line on.

Nothing is imported here before it is caught: what Python does before this line is its own.
"""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def preflight() -> None:
    """``mooncake-preflight``."""
    _start("preflight.cli.main")


def sizing() -> None:
    """``mooncake-hicache-sizing``."""
    _start("preflight.cli.sizing")


def _start(module: str) -> None:
    """Run ``module.main``; where not even its imports are through, ``module.refuse`` answers."""
    try:
        try:
            from importlib import import_module

            main = import_module(module).main
        except KeyboardInterrupt:
            refuse = import_module(module).refuse
            sys.exit(refuse(sys.argv[1:], _INTERRUPTED, "interrupted"))
        main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
