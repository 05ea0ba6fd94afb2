"""How many examples a property test draws: few as a rule, many where that is asked for.

The profile says how many (``tests/conftest.py``); a test whose examples take long draws a part of
them.
"""

import os
from collections.abc import Iterable, Mapping
from random import Random, SystemRandom
from typing import Any, TypeVar

from hypothesis import settings

T = TypeVar("T")


def fewer(divisor: int, **more: Any) -> settings:
    """Draw one in ``divisor`` of the examples that the profile has; at least two."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(2, profile.max_examples // divisor), **more)


def some(every: Iterable[T], divisor: int) -> list[T]:
    """Return one in ``divisor``, the first among them; all with ``--hypothesis-profile=random``."""
    profile = settings.default
    assert profile is not None
    return list(every)[:: divisor if profile.derandomize else 1]


def seed() -> int:
    """Return the seed of what a test draws itself: the same each time.

    PREFLIGHT_SEED gives another; with ``--hypothesis-profile=random`` and outside of pytest it is
    random. It is printed: a failure shows it."""
    profile = settings.default
    assert profile is not None
    fixed = 1 if profile.derandomize else SystemRandom().randrange(1 << 32)
    number = int(os.environ.get("PREFLIGHT_SEED") or fixed)
    print(f"PREFLIGHT_SEED={number}", flush=True)
    return number


def seeded() -> Random:
    """Return a generator that begins with ``seed``."""
    return Random(seed())


def few_changed(random: Random, choices: Mapping[str, list[Any]], count: int) -> list[Any]:
    """Draw settings, the first of each choice but for three at most: some of them are alike."""
    drawn = []
    for _ in range(count):
        changed = random.sample(list(choices), random.randint(0, 3))
        usual = {name: values[0] for name, values in choices.items()}
        drawn.append({**usual, **{name: random.choice(choices[name]) for name in changed}})
    return drawn
