"""One test for a table of rows, of which pytest names each that fails as a case of its own.

A test for each row costs more than what most rows try.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Try every row as ``pytest.mark.parametrize`` does, in one test.

    A row that fails is a subtest, with its values and traceback. All rows share their fixtures.
    """
    single = isinstance(names, str)
    given: tuple[str, ...] = (names,) if isinstance(names, str) else names
    every = list(rows)

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        nested = "subtests" in signature.parameters  # a table of tables

        def whole(subtests: pytest.Subtests, **fixtures: Any) -> None:
            if nested:
                fixtures["subtests"] = subtests
            for row in every:
                values = (row,) if single else row
                try:
                    test(**dict(zip(given, values, strict=True)), **fixtures)
                except Exception:
                    with subtests.test(**dict(zip(given, values, strict=False))):
                        raise
            assert every, "no row"

        whole.__doc__, whole.__name__ = test.__doc__, test.__name__
        whole.__module__ = test.__module__
        whole.rows = every  # type: ignore[attr-defined]  # tools/comparing takes hosts from them
        kept = [one for name, one in signature.parameters.items() if name not in given]
        if not nested:
            kept.append(inspect.signature(whole).parameters["subtests"])
        whole.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in kept]
        )
        return whole

    return decorate
