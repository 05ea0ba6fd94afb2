"""Why Mooncake does not use an RDMA device of the host: one function per stage, in its own order.

It lists the devices that it can reach (topology.cpp, isIbDeviceAvailable), then opens each on one
port and chooses a GID (rdma_context.cpp, openRdmaDevice). What fails is dropped with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from checks.base.c_numbers import leading_integer
from checks.base.unknown import Unknown, known, or_unknown
from checks.rdma.facts import Nic
from checks.rdma.gids import GidChoice, choose_gid
from checks.releases.mooncake import MooncakeRelease

DEFAULT_PORT = 1
# What opening a device says where the rdma cgroup has no handle left (kernel/cgroup/rdma.c); seen.
EAGAIN = 11


class Cause(Enum):
    """Why a device that a process would take is not used."""

    MISSING = "no such device"
    UVERBS = "its uverbs node"
    CGROUP = "no open device left in the cgroup"
    PROVIDER = "no user-space library"
    PORT = "port not active"
    GID = "no usable GID"
    FILTERED = "filtered out"


class Lost(NamedTuple):
    name: str
    cause: Cause
    why: str


def port_of(environment: Mapping[str, str]) -> int:
    """MC_IB_PORT, 1 where it is not 1 to 255."""
    number = leading_integer(environment.get("MC_IB_PORT", ""))
    return number if number is not None and 0 < number < 256 else DEFAULT_PORT


def reach_problem(nic: Nic) -> Lost | Unknown | None:
    """Why Mooncake does not list a device of the host, None where it does."""
    for problem in (node_problem(nic), provider_problem(nic)):
        if problem is not None:
            return problem
    if isinstance(nic.ports, Unknown):
        return nic.ports
    states = [port.state for port in nic.ports if port.gid_table != 0]
    if any(state == "ACTIVE" for state in states):
        return None
    unknown = next((state for state in states if isinstance(state, Unknown)), None)
    return Lost(nic.name, Cause.PORT, "no port of it is active") if unknown is None else unknown


def node_problem(nic: Nic) -> Lost | Unknown | None:
    """What is wrong with a device's node below /dev/infiniband."""
    node = nic.uverbs_node
    if isinstance(node, Unknown):
        if not node.absent:
            return node
        why = f"/dev/infiniband/{nic.uverbs} does not exist" if nic.uverbs else node.reason
        return Lost(nic.name, Cause.UVERBS, why)
    if not node.character:
        return Lost(nic.name, Cause.UVERBS, f"{node.path} is not a character device")
    if not node.opens:
        return Lost(nic.name, Cause.UVERBS, f"{node.path}: {node.why_not}")
    error = nic.verbs.error
    if nic.verbs.listed is True and isinstance(error, str) and error:
        cause = Cause.CGROUP if error.endswith(f"({EAGAIN})") else Cause.UVERBS
        return Lost(nic.name, cause, f"ibv_open_device: {error}")
    return None


def provider_problem(nic: Nic) -> Lost | Unknown | None:
    """Whether libibverbs has a library for a device."""
    if isinstance(nic.verbs.listed, Unknown):
        return nic.verbs.listed
    if nic.verbs.listed:
        return None
    return Lost(nic.name, Cause.PROVIDER, "libibverbs does not list it")


def open_problem(
    nic: Nic, environment: Mapping[str, str], release: MooncakeRelease | None
) -> Lost | Unknown | None:
    """Why Mooncake drops a device that it listed, None where it uses it."""
    problem = port_problem(nic, environment)
    return gid_problem(nic, environment, release) if problem is None else problem


@or_unknown
def port_problem(nic: Nic, environment: Mapping[str, str]) -> Lost | Unknown | None:
    """Whether the port that Mooncake opens is active."""
    number = port_of(environment)
    port = known(nic.port(number))
    if port is None:
        return Lost(nic.name, Cause.PORT, f"it has no port {number}")
    if isinstance(port.state, Unknown):
        return port.state
    if port.state != "ACTIVE":
        return Lost(nic.name, Cause.PORT, f"port {number} is {port.state}")
    return None


@or_unknown
def gid_problem(
    nic: Nic, environment: Mapping[str, str], release: MooncakeRelease | None
) -> Lost | Unknown | None:
    """Whether Mooncake finds a GID on the port that it opens."""
    choice = known(gid_choice(nic, environment, release))
    return None if choice.gid else Lost(nic.name, Cause.GID, choice.how)


def gid_choice(
    nic: Nic, environment: Mapping[str, str], release: MooncakeRelease | None
) -> GidChoice | Unknown:
    port = nic.port(port_of(environment))
    if port is None:
        return Unknown(f"{nic.name} has no port {port_of(environment)}")
    if isinstance(port, Unknown):
        return port
    return choose_gid(port, environment, release)
