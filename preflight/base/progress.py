"""One line on standard error that is written over, on a terminal alone."""

from __future__ import annotations

import sys
import time

from preflight.base.shell import visible

_MOST_COLUMNS = 100


class Progress:
    """What is being done, for who watches; nothing of it stays.

    after_seconds: what is over by then shows nothing.
    """

    def __init__(self, wanted: bool = True, after_seconds: float = 0.0) -> None:
        self._shown = wanted and sys.stderr.isatty()
        self._from = time.monotonic() + after_seconds
        self._text = ""

    def show(self, text: str) -> None:
        """Write ``text`` over what stands there."""
        text = visible(text[:_MOST_COLUMNS])
        if self._shown and time.monotonic() >= self._from and text != self._text:
            sys.stderr.write(f"\r{text:<{len(self._text)}}")
            sys.stderr.flush()
            self._text = text

    def clear(self) -> None:
        """Leave the line as it was."""
        if self._text:
            sys.stderr.write(f"\r{'':<{len(self._text)}}\r")
            sys.stderr.flush()
            self._text = ""
