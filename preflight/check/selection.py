"""Which checks run, and which findings are waived: what the command line names must exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from preflight.base.usage_error import UsageError

# A waiver without a reason says so, in the place where the reason would stand.
NO_REASON = "no reason given"


class Selection(NamedTuple):
    """only, skip: patterns over ids (``rdma.*``); ignore: id -> reason of the waiver."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    ignore: Mapping[str, str] = {}

    def takes(self, check: str) -> bool:
        """Whether the check is to be made."""
        return (not self.only or _matches(check, self.only)) and not _matches(check, self.skip)


def select(
    only: Sequence[str], skip: Sequence[str], ignore: Sequence[str], known: Iterable[str]
) -> Selection:
    """What the command line asks for. Raises UsageError for a name that stands for nothing.

    A typing error must not widen or narrow what is checked in silence, so each pattern has to match
    one of ``known``, and together they have to leave something.
    """
    ids = sorted(set(known))
    for option, patterns in (("--only", only), ("--skip", skip)):
        for pattern in patterns:
            if not any(_matches(check, (pattern,)) for check in ids):
                raise UsageError(f"{option} {pattern}: {_why_not(pattern, ids, 'such an')}")
    waivers: dict[str, str] = {}
    for text in ignore:
        check, _, reason = text.partition("=")
        if check not in ids:
            raise UsageError(f"--ignore {check}: {_why_not(check, ids, 'this')}")
        waivers[check] = reason.strip() or NO_REASON
    selection = Selection(tuple(only), tuple(skip), waivers)
    if not any(selection.takes(check) for check in ids):
        raise UsageError("--only and --skip together leave nothing to check, which is no pass")
    return selection


def _why_not(pattern: str, ids: Iterable[str], such: str) -> str:
    """Why ``pattern`` chooses none of ``ids``; what is found between nodes has its own command."""
    from preflight.judging.fleet_checks import FLEET_CHECKS

    if any(_matches(check.id, (pattern,)) for check in FLEET_CHECKS):
        return (
            "is found between nodes, never on one host: `mooncake-preflight fleet merge` judges "
            "it, from the nodes' reports, as does `fleet check`, which gets them itself"
        )
    return f"no check has {such} id{nearest(pattern, ids)}"


def nearest(name: str, ids: Iterable[str]) -> str:
    """The end of a sentence about an unknown ``name``: what was probably meant."""
    from difflib import get_close_matches

    known = sorted(set(ids))
    close = get_close_matches(name, known, 1, 0.5)
    if not close:  # "memlock" for limits.memlock
        close = [check for check in known if name.strip("*.") and name.strip("*.") in check][:1]
    if close:
        return f" (did you mean {close[0]}?)"
    return ": `mooncake-preflight list` shows them all"


def _matches(check: str, patterns: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(check, pattern) for pattern in patterns)
