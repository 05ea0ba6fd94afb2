"""Before the rounds: which nodes answer, have this program or take it along, and at what address.

The address of a node is the one at which ssh came to it: its own word for it (``SSH_CONNECTION``),
so that neither aliases nor gateways of this machine's configuration have to be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from preflight.fleet.node.asked_nodes import Remote
from preflight.fleet.node.reply import NodeReply, lacks_tool
from preflight.fleet.node.script import (
    SAYS,
    TOOL,
    addressed_script,
    carried_script,
    carries,
    finds,
    found_script,
    packed,
)
from preflight.fleet.pairs.outcome import ended, trouble

_ADDRESS = f"{SAYS} address "
# Nobody may be left to read it: that must not end the script before it minds its folder.
_ASK_ADDRESS = f"trap '' 13\necho \"{_ADDRESS}$SSH_CONNECTION\"\n"
# Says nothing of the node: whether the program runs there, and knows of pairs, is all.
HELLO = ("fleet", "pair-connect", "--address=", "--help")


class Part(NamedTuple):
    """What the node at ``address`` is to run. carried: with the program that is taken there."""

    address: str
    words: Sequence[str]
    carried: bool


class Tool(NamedTuple):
    """command: the program on the nodes. python: what runs ``archive`` where it is taken along."""

    command: tuple[str, ...]
    python: str
    archive: bytes

    def hello(self, carried: bool) -> bytes:
        """What a node gets before the rounds: it says its address, and that the program runs."""
        if carried:
            script = _ASK_ADDRESS + carried_script(self.python, HELLO)
            return packed({TOOL: self.archive}, script)
        return packed({}, _ASK_ADDRESS + found_script(self.command, HELLO))

    def content(self, parts: Sequence[Part], files: Mapping[str, bytes]) -> bytes:
        """What all nodes get, to run the program each with its own words beside ``files``."""
        each = {
            part.address: carries(self.python, part.words)
            if part.carried
            else finds(self.command, part.words)
            for part in parts
        }
        if any(part.carried for part in parts):
            files = {**files, TOOL: self.archive}
        return packed(files, addressed_script(each))


class Met(NamedTuple):
    """addresses: of the nodes that take part. carried: those of them to which the program is taken.
    absent: why the others do not."""

    addresses: Mapping[str, str]
    carried: frozenset[str]
    absent: Mapping[str, str]


def tool_of(remote_command: str, remote_python: str, carry: str) -> Tool:
    """Raises UsageError."""
    command = Remote(remote_command, remote_python, carry).words
    archive = b""
    if carry != "never":
        from preflight.fleet.node.carry import zipapp

        archive = zipapp()
    return Tool(command, remote_python, archive)


def to_carry(said: Sequence[NodeReply]) -> list[str]:
    """The nodes that have no such program, or one that knows no pairs."""
    return [answer.node for answer in said if lacks_tool(answer)]


def met(
    nodes: Sequence[str], said: Mapping[str, NodeReply], carried: Sequence[str], seconds: float
) -> Met:
    """Of what each node said to ``Tool.hello``. seconds: that it was given."""
    absent: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for node in nodes:
        answer = said.get(node, NodeReply(node, ()))
        if ended(answer) != "0":
            absent[node] = trouble(answer, seconds) or "interrupted before it answered"
            continue
        address = _address(answer)
        if address is None:
            absent[node] = "its ssh server does not say the address that it was reached at"
        else:
            addresses[node] = address
    for node, why in _not_for_others(addresses).items():
        absent[node] = why
        del addresses[node]
    return Met(addresses, frozenset(carried) & addresses.keys(), absent)


def _address(answer: NodeReply) -> str | None:
    """The third of ``CLIENT PORT SERVER PORT``, sshd(8)."""
    prefix = _ADDRESS.encode()
    for line in answer.lines:
        if line.startswith(prefix):
            words = line.removeprefix(prefix).decode("ascii", "replace").split()
            try:
                return str(ip_address(words[2]))
            except (IndexError, ValueError):
                return None
    return None


def _not_for_others(addresses: Mapping[str, str]) -> dict[str, str]:
    """Addresses at which another node would find itself, or a third one."""
    found = {}
    local = {node for node, address in addresses.items() if ip_address(address).is_loopback}
    if len(local) < len(addresses):
        for node in local:
            found[node] = (
                f"it was reached at {addresses[node]}, where no other node finds it: name it so "
                "that ssh goes to its address on the network"
            )
    owners: dict[str, str] = {}
    for node, address in addresses.items():
        other = owners.setdefault(address, node)
        if other != node and node not in found:
            found[node] = f"it is the same machine as {other}: both are {address}"
        if "%" in address:
            found[node] = f"it was reached at {address}, an address of one link alone"
    return found
