"""How many RDMA objects a launch makes on a device: what it must have to start, and what later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from checks.base.c_numbers import leading_integer
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.registration import largest_region_bytes, load_of
from checks.rdma.use import ChosenBy, Use
from checks.releases.mooncake import release_of

# config.h: MC_NUM_QP_PER_EP, MC_NUM_CQ_PER_CTX.
DEFAULT_QUEUE_PAIRS, DEFAULT_COMPLETION_QUEUES = 2, 1
PROTECTION_DOMAINS = 1


class Objects(NamedTuple):
    """Of one device. regions: None where the launch's memory is not known.

    queue_pairs: once every process has talked to every NIC of every other one.
    """

    contexts: int
    regions: int | None
    others: int
    queue_pairs: int


def objects_of(nic: Nic, rdma: RdmaFacts, needs: LaunchNeeds, found: Iterable[Use]) -> Objects:
    """What the launch's processes make of objects on ``nic``, those that would take it."""
    mine = [(use, process) for use in found for process in takers(use, nic)]
    release = release_of(needs.mooncake_version)
    everyone = len(needs.rdma_processes) * max(1, needs.hosts)
    regions: int | None = 0
    others = queue_pairs = 0
    for use, process in mine:
        largest = largest_region_bytes(_nics(rdma, use), use.environment)
        if regions is not None:
            load = load_of(process, largest, release)
            regions = None if isinstance(load, Unknown) else regions + load.registrations
        others += PROTECTION_DOMAINS + _number(
            use.environment, "MC_NUM_CQ_PER_CTX", DEFAULT_COMPLETION_QUEUES
        )
        per_peer = (
            1
            if "MC_ENABLE_DEST_DEVICE_AFFINITY" in use.environment
            else len(use.devices.candidates)
        )
        queue_pairs += (
            (everyone - 1)
            * per_peer
            * _number(use.environment, "MC_NUM_QP_PER_EP", DEFAULT_QUEUE_PAIRS)
        )
    return Objects(len(mine), regions, others, queue_pairs)


def takers(use: Use, nic: Nic) -> tuple[ProcessNeeds, ...]:
    """Processes that open ``nic``, if it lets itself be opened."""
    if nic.name not in use.devices.candidates or use.devices.chosen is ChosenBy.FORCED_TCP:
        return ()
    return use.processes


def _nics(rdma: RdmaFacts, use: Use) -> list[Nic]:
    return [nic for nic in rdma.present if nic.name in use.devices.candidates]


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    value = leading_integer(environment.get(name, ""))
    return value if value is not None and 0 < value < 256 else default
