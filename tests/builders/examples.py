"""How many examples a property test draws: few as a rule, many where that is asked for.

The profile says how many (``tests/conftest.py``); a test whose examples take long draws a part of
them, so that a thorough run is thorough everywhere.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def fewer(divisor: int, **more: Any) -> settings:
    """Draw one in ``divisor`` of the examples that the profile has; at least two."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(2, profile.max_examples // divisor), **more)
