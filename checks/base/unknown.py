"""A fact that could not be read.

Three-valued truth rests on this type: a reader returns either the fact or an ``Unknown`` that says
why there is none. It is neither true nor false and has no order, so a rule that forgets it raises
instead of passing.
"""

from __future__ import annotations

from typing import NoReturn


class Unknown:
    """Why a fact is missing; ``absent`` when the file does not exist, as opposed to unreadable."""

    __slots__ = ("absent", "reason")

    def __init__(self, reason: str, absent: bool = False) -> None:
        self.reason = reason
        self.absent = absent

    def __repr__(self) -> str:
        return f"Unknown({self.reason!r}, absent={self.absent})"

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an unknown fact is neither true nor false ({self.reason})")
