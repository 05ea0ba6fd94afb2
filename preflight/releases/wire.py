"""Which releases of Mooncake store and read together over one master.

Measured, over TCP: masters 0.3.8 to 0.3.14 with clients 0.3.8 to 0.3.13.post1 (setup, put, get).
Releases of different groups failed at the first call that changed. What client and master compare
by themselves ("Version mismatch") is another number, 2.0.0 in all of these.
"""

from __future__ import annotations

TOGETHER = (
    frozenset({"0.3.8", "0.3.8.post1"}),
    frozenset({"0.3.9", "0.3.10"}),
    frozenset({"0.3.10.post2"}),
    frozenset({"0.3.11", "0.3.11.post1"}),
    frozenset({"0.3.12", "0.3.12.post1"}),
    # A client 0.3.14 was not tried with an older master.
    frozenset({"0.3.13", "0.3.13.post1", "0.3.14"}),
)


def work_together(one: str, other: str) -> bool | None:
    """None where one of them was not tried."""
    if one == other:
        return True
    groups = [group for group in TOGETHER if one in group or other in group]
    if len(groups) == 2:
        return False
    return True if groups and {one, other} <= groups[0] else None
