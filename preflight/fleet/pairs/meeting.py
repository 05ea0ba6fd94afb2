"""Before the rounds: which nodes answer, have this program or take it along, and at what address.

The address of a node is the one at which ssh came to it: its own word for it (``SSH_CONNECTION``),
so that neither aliases nor gateways of this machine's configuration have to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from preflight.fleet.pairs.outcome import trouble
from preflight.fleet.remote.program import Program, Question, SshNodes
from preflight.fleet.remote.reply import NodeReply

# Says nothing of the node: whether the program runs there, and knows of pairs, is all.
HELLO = ("fleet", "pair-connect", "--address=", "--help")


class Present(NamedTuple):
    """addresses: of the nodes that take part. carried: those of them to which the program is taken.
    absent: why the others do not."""

    addresses: Mapping[str, str]
    carried: frozenset[str]
    absent: Mapping[str, str]


def meet(nodes: list[str], program: Program, ssh: SshNodes, tick: Callable[[], None]) -> Present:
    """Ask the nodes, and return who takes part. Raises UsageError and RunInterruptedError."""
    from preflight.fleet.remote.engine import ask_or_carry

    replies: dict[str, NodeReply] = {}

    def take(reply: NodeReply) -> None:
        replies[reply.node] = reply

    def hello(carried: bool) -> Question:
        return program.question(HELLO, b"", carried)

    carried = ask_or_carry(nodes, program.carry, hello, ssh, take, tick)
    return present(nodes, replies, carried, ssh.timeout_seconds)


def present(
    nodes: Sequence[str], replies: Mapping[str, NodeReply], carried: Sequence[str], seconds: float
) -> Present:
    """Return who takes part, from what each node said to ``HELLO``.

    seconds: the time that it was given.
    """
    absent: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for node in nodes:
        reply = replies.get(node, NodeReply(node, ()))
        address = _address(reply)
        if reply.end != 0:
            absent[node] = trouble(reply, seconds) or "interrupted before it answered"
        elif address is None:
            absent[node] = (
                "its ssh server does not report the address that the connection came to "
                "(SSH_CONNECTION)"
            )
        else:
            addresses[node] = address
    absent.update(_not_for_others(addresses))
    there = {node: address for node, address in addresses.items() if node not in absent}
    return Present(there, frozenset(carried) & there.keys(), absent)


def _address(reply: NodeReply) -> str | None:
    """Return the third of ``CLIENT PORT SERVER PORT``, sshd(8); None where it is no address."""
    words = (reply.started or b"").decode("ascii", "replace").split()
    try:
        return str(ip_address(words[2]))
    except (IndexError, ValueError):
        return None


def _not_for_others(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return by node why its address is useless to others: it leads to themselves, or a third."""
    found = {}
    local = {node for node, address in addresses.items() if ip_address(address).is_loopback}
    owners: dict[str, str] = {}
    for node, address in addresses.items():
        other = owners.setdefault(address, node)
        if node in local and len(local) < len(addresses):
            found[node] = (
                f"it was reached at {address}, where no other node finds it: name it by "
                "its address on the network"
            )
        elif other != node:
            found[node] = f"it is the same machine as {other}: both are {address}"
        if "%" in address:
            found[node] = f"it was reached at {address}, an address of one link alone"
    return found
