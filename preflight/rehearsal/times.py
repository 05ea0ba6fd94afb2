"""When the pages of a step were there, and when they were pinned: seen from outside."""

from __future__ import annotations

import time
from collections.abc import Mapping

from checks.base.needs import Spot
from checks.base.root import Root
from preflight.rehearsal.memory import status_bytes, taken_since
from preflight.rehearsal.process import Running


class Rises:
    """When the last page of a step was there, and when the last was pinned."""

    def __init__(self, root: Root, before: Mapping[Spot, int], began: float) -> None:
        self._root, self._before, self._began = root, before, began
        self._pages: int | None = None
        self._pinned = 0
        self._populated_at: float | None = None
        self._first_pinned_at: float | None = None
        self._pinned_at: float | None = None

    def look(self, process: Running | None) -> None:
        now = time.monotonic()
        taken = taken_since(self._root, self._before)
        pages = sum(count for spot, count in taken.items() if spot.node is None)
        sizes = {} if process is None else status_bytes(process.pid)
        first = self._pages is None
        if not first and pages != self._pages:
            self._populated_at = now
        pinned = sizes.get("VmPin", 0)
        if not first and pinned > self._pinned:
            self._first_pinned_at = self._first_pinned_at or now
            self._pinned_at = now
        self._pages, self._pinned = pages, pinned

    @property
    def times(self) -> tuple[float | None, float | None]:
        """Seconds until the last page, and from there (or the first pin) until the last pin."""
        populated = None if self._populated_at is None else self._populated_at - self._began
        if self._pinned_at is None or self._first_pinned_at is None:
            return populated, None
        since = self._populated_at if self._populated_at is not None else self._began
        return populated, max(0.0, self._pinned_at - min(since, self._first_pinned_at))
