"""Checks of the launch itself, at the bounds of what they count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from checks.framework.finding import Status
from checks.framework.unknown import Unknown
from preflight.verdict.launch_checks import MOST_KEYS, _keys
from tests.tables import each_row

NOT_READ = Unknown("not read")
OBJECT_BYTES = 100
POOL = SimpleNamespace(tokens=10, object_bytes=lambda page: OBJECT_BYTES)
NO_TOKENS = SimpleNamespace(tokens=0, object_bytes=lambda page: 1)
MEMORY = SimpleNamespace(pools=(NO_TOKENS, POOL), missing=None, why="no size")


@each_row(
    ("segments", "more", "status"),
    [
        (MOST_KEYS * OBJECT_BYTES, {}, Status.PASS),
        (MOST_KEYS * OBJECT_BYTES + OBJECT_BYTES - 1, {}, Status.PASS),
        ((MOST_KEYS + 1) * OBJECT_BYTES, {}, Status.WARN),
        (0, {}, Status.SKIP),
        (NOT_READ, {}, Status.UNKNOWN),
        (1, {"memory": None}, Status.UNKNOWN),
        (1, {"memory": SimpleNamespace(pools=(NO_TOKENS,), missing=None, why="x")}, Status.UNKNOWN),
        (1, {"page": NOT_READ}, Status.UNKNOWN),
        (1, {"links": True}, Status.SKIP),
    ],
)
def test_a_server_may_put_ten_million_keys(
    segments: int | Unknown, more: dict[str, Any], status: Status
) -> None:
    given: dict[str, Any] = {"memory": MEMORY, "page": 64, "links": False, **more}
    server = SimpleNamespace(value=lambda name: given["page"], links=given["links"])
    process: Any = SimpleNamespace(server=server, command=SimpleNamespace(origin="run.sh:1"))
    assert _keys(process, given["memory"], segments).status is status
    assert MOST_KEYS == 10_000_000
