"""One test for a table of rows: a test for each costs more than what most rows try."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Try every row as ``pytest.mark.parametrize`` does, in one test, and name each that is missed.
    Its fixtures are the same for all rows."""
    single = isinstance(names, str)
    given: tuple[str, ...] = (names,) if isinstance(names, str) else names
    every = list(rows)

    def decorate(test: Test) -> Test:
        def whole(**fixtures: Any) -> None:
            missed = []
            for row in every:
                values = (row,) if single else row
                try:
                    test(**dict(zip(given, values, strict=True)), **fixtures)
                except Exception as error:
                    missed.append(f"{row!r}: {type(error).__name__}: {error}")
            assert not missed, f"{len(missed)} of {len(every)} rows:\n" + "\n".join(missed)
            assert every, "no row"

        whole.__doc__, whole.__name__ = test.__doc__, test.__name__
        whole.__module__ = test.__module__
        whole.rows = every  # type: ignore[attr-defined]  # tools/comparing takes hosts from them
        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in given]
        whole.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in kept]
        )
        return whole

    return decorate
