"""All that is read of a host, topic by topic, once.

A topic is one record, read by one function. A topic that was not read at all (its reader took too
long, or failed) is missing: whoever asks for it gets ``UnreadTopicError``, which the runner turns
into an unknown finding, so no check can take silence for a pass. Within a topic, single facts are
``Unknown`` where they could not be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from checks.base.unknown import Unknown, UnreadTopicError

if TYPE_CHECKING:
    from checks.gpu.facts import GpuFacts
    from checks.hugetlb.facts import HugetlbFacts
    from checks.limits.facts import LimitFacts
    from checks.memory.facts import MemoryFacts
    from checks.network.facts import NetworkFacts
    from checks.network.services import ServiceFacts
    from checks.numa.facts import NumaFacts
    from checks.pci.facts import PciFacts
    from checks.rdma.facts import RdmaFacts
    from checks.software.facts import SoftwareFacts
    from checks.storage.facts import StorageFacts
    from checks.system.facts import SystemFacts

# topic -> module and function that reads it: ``function(root, needs) -> record``.
READERS: dict[str, tuple[str, str]] = {
    "system": ("checks.system.facts", "read_system"),
    "limits": ("checks.limits.facts", "read_limits"),
    "memory": ("checks.memory.facts", "read_memory"),
    "hugetlb": ("checks.hugetlb.facts", "read_hugetlb_facts"),
    "numa": ("checks.numa.facts", "numa_topic"),
    "pci": ("checks.pci.facts", "read_pci"),
    "gpus": ("checks.gpu.facts", "read_gpus"),
    "rdma": ("checks.rdma.facts", "read_rdma"),
    "software": ("checks.software.facts", "read_software"),
    "network": ("checks.network.facts", "read_network"),
    "services": ("checks.network.services", "read_services"),
    "storage": ("checks.storage.facts", "read_storage"),
}


class Facts:
    """The topics that were read, as attributes; see the module's text for those that were not."""

    system: SystemFacts
    limits: LimitFacts
    memory: MemoryFacts
    hugetlb: HugetlbFacts
    numa: NumaFacts
    pci: PciFacts
    gpus: GpuFacts
    rdma: RdmaFacts
    software: SoftwareFacts
    network: NetworkFacts
    services: ServiceFacts
    storage: StorageFacts

    def __init__(self, topics: Mapping[str, Any]) -> None:
        self.__dict__["topics"] = dict(topics)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in READERS:
            raise AttributeError(name)
        topic = self.__dict__["topics"].get(name, Unknown(f"{name}: not read"))
        if isinstance(topic, Unknown):
            raise UnreadTopicError(topic)
        return topic

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("facts are read once and do not change")

    def topic(self, name: str) -> Any | Unknown:
        """A topic's record, or why it is missing."""
        return self.__dict__["topics"].get(name, Unknown(f"{name}: not read"))
