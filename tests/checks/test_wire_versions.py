"""Which releases share a master: as measured, and nothing said of those that were not tried."""

from __future__ import annotations

from itertools import combinations

from checks.releases.mooncake import RELEASES, work_together
from tests.tables import each_row


@each_row(
    ("client", "master", "known"),
    [
        ("0.3.13.post1", "0.3.14", True),
        ("0.3.9", "0.3.10", True),
        ("0.3.10", "0.3.10.post2", False),
        ("0.3.8", "0.3.14", False),
        ("0.3.14", "0.3.14", True),
        ("0.3.99", "0.3.99", True),
        ("0.3.99", "0.3.14", None),
        ("0.3.6", "0.3.7", None),
    ],
)
def test_two_releases(client: str, master: str, known: bool | None) -> None:
    assert work_together(client, master) is known
    assert work_together(master, client) is known


def test_no_release_is_in_two_groups() -> None:
    assert not [
        one & other
        for one, other in combinations({row.together for row in RELEASES}, 2)
        if one & other
    ]
