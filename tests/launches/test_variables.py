"""Variables are found by the beginning of their names as by looking at each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from preflight.launches.source import Origin, Word
from preflight.launches.variables import Layers, Variables, matching

NAMES = st.sampled_from(["MC_A", "MC_B", "SGLANG_A", "LMCACHE_X", "PATH", "XMC_A", "A", "MC_"])
GIVEN = st.sampled_from(["", "1", "x"]).map(lambda text: Word(text, Origin("script")))
WORDS = st.none() | GIVEN
SET = st.dictionaries(NAMES, GIVEN)
PATTERNS = st.sampled_from([r"(MC|SGLANG)_", r"MC_\w", r".*_A", r"\Z"]).map(re.compile)


@given(
    base=SET,
    changes=st.lists(st.tuples(NAMES, WORDS, st.booleans())),
    over=st.dictionaries(NAMES, WORDS),
    patterns=st.lists(PATTERNS, min_size=1),
)
def test_those_that_match_are_those_of_the_environment(
    base: dict[str, Word],
    changes: list[tuple[str, Word | None, bool]],
    over: dict[str, Word | None],
    patterns: list[re.Pattern[str]],
) -> None:
    """In its order, at each time of a script, whatever was asked at another time."""
    variables = Variables(base)
    views = [variables.environment()]
    for index, (name, word, exported) in enumerate(changes):
        variables.put(name, word, exported)
        views.append(variables.environment())
        asked = patterns[index % len(patterns)]
        assert [*matching(views[index], asked)] == plain(views[index], asked)
    layers = [Layers(view, over) for view in views]
    environments: list[Mapping[str, Word]] = [base, *views, *layers]
    for environment in environments:
        for pattern in patterns:
            assert [*matching(environment, pattern)] == plain(environment, pattern)


def plain(environment: Mapping[str, Word], pattern: re.Pattern[str]) -> list[tuple[str, Word]]:
    return [(name, word) for name, word in environment.items() if pattern.match(name)]
