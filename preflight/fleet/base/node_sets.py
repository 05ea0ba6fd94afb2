"""Many node names as one text, ``gpu[001-063,070]``: ClusterShell's node sets, within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # type: ignore[import-untyped]
from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError  # type: ignore[import-untyped]
from ClusterShell.RangeSet import RangeSetException  # type: ignore[import-untyped]

from checks.framework.regex import regex
from preflight.base.usage_error import UsageError

# A typing error such as [1-1000000000] must not fill the memory; the largest fleets have a tenth.
MOST_NODES = 100_000
# RFC 1035 section 2.3.4 has 253 of them in a host name.
LONGEST_NAME = 253
# Letters of a host name, and those of addresses and of what schedulers call their nodes.
NAME = regex(r"[A-Za-z0-9_][A-Za-z0-9._:-]*")
_RANGE = regex(r"([0-9]{1,18})-([0-9]{1,18})")


def is_name(text: str) -> bool:
    """Return whether ``text`` can name a node, and stand in a node set as it is."""
    return len(text) <= LONGEST_NAME and NAME.fullmatch(text) is not None


def fold(names: Iterable[str], *, slurm: bool = False) -> str:
    """Return the node set of names, as ``gpu[001-063],login``: sorted by number; "" for none.

    Args:
        slurm: Write it for Slurm, which refuses a text behind a bracket ("Invalid hostlist": seen
            with 22.05). ``gpu[1-2].example`` is then two names.
    """
    names = tuple(names)
    if len(names) == 1:  # of reports that are not alike, most lists
        return names[0]
    return _folded(names, slurm)


@lru_cache(maxsize=64)  # most lists of a fleet's nodes are the same few
def _folded(names: tuple[str, ...], slurm: bool) -> str:
    """Return the node set of names; with ``slurm`` no text follows a bracket."""
    if not slurm:
        return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    alone = [name for name in names if not name[-1].isdigit()]
    numbered = [name for name in names if name[-1].isdigit()]
    rest = NodeSet.fromlist(numbered, resolver=RESOLVER_NOGROUP)
    rest.fold_axis = (-1,)
    return ",".join(filter(None, (str(rest), *in_order(alone))))


def in_order(names: Iterable[str]) -> list[str]:
    """Return each name once, ``gpu2`` before ``gpu10``."""
    return list(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def expand(text: str) -> list[str]:
    """Return the names of a node set, each once, in order, without groups.

    Raises UsageError.
    """
    if "@" in text:
        raise UsageError(f"node set {text[:60]!r}: it names a group, and none is looked up here")
    return _names(_node_set(re.sub(r"\s*,\s*|\s+", ",", text.strip()), RESOLVER_NOGROUP))


def named_nodes(sets: Iterable[str], excluded: Iterable[str]) -> list[str]:
    """Return the nodes of ``sets`` without those of ``excluded``, each once, sorted by number.

    Groups (``@rack1``) are those of the site's own ``groups.conf``.

    Raises:
        UsageError: If a text is no node set, a group is not known, or too many nodes are named.
    """
    node_set = NodeSet()
    for text in sets:
        node_set.update(_node_set(text))
    for text in excluded:
        node_set.difference_update(_node_set(text))
    return _names(node_set)


def _names(node_set: Any) -> list[str]:
    """Return the names of a node set.

    Raises:
        UsageError: For too many, or one that is no name.
    """
    if len(node_set) > MOST_NODES:
        raise UsageError(f"{len(node_set)} nodes are named: at most {MOST_NODES} are taken")
    names = [str(name) for name in node_set]
    for name in names:
        if not is_name(name):  # ssh would take it for an option
            raise UsageError(f"{name!r} is not the name of a node: write letters, digits, . and -")
    return names


def _node_set(text: str, resolver: Any = None) -> Any:
    """Return ClusterShell's node set of ``text``.

    Args:
        resolver: None looks groups up in groups.conf.

    Raises:
        UsageError: For a wrong text, too many nodes, or an unknown or empty group.
    """
    shown = f"{text[:80]!r}"
    widest = max((int(b) - int(a) + 1 for a, b in _RANGE.findall(text)), default=0)
    if widest > MOST_NODES:
        raise UsageError(f"{shown} names {widest} nodes: at most {MOST_NODES} are taken")
    try:
        node_set = NodeSet(text, resolver=resolver)
    except (NodeSetException, RangeSetException, GroupResolverError, GroupSourceError) as error:
        if f"@{error}:" in text or str(error) == "<default>":  # it says no more than the source
            raise UsageError(
                f"{shown}: ClusterShell has no group source {str(error)[:40]!r} here: "
                "`nodeset --groupsources` lists those it has (groups.conf)"
            ) from None
        raise UsageError(
            f"{shown} is not a set of nodes: {error}; write it as gpu[001-064,070],login1"
        ) from None
    if text.strip() and not node_set:
        raise UsageError(f"{shown} names no node: `nodeset -ll` lists the groups that there are")
    return node_set
