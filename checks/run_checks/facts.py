"""All that is read of a host, topic by topic, once.

A topic is one record, read by one function. Asking for one that was not read (its reader took too
long, or failed) raises ``UnreadTopicError``, which becomes an unknown finding. Within a topic,
single facts are ``Unknown`` if they could not be read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from checks.framework.needs import LaunchNeeds
from checks.framework.root import LIMIT_SECONDS, Root
from checks.framework.unknown import Unknown, UnreadTopicError

if TYPE_CHECKING:
    from checks.gpu.facts import GpuFacts
    from checks.hugetlb.facts import HugetlbFacts
    from checks.limits.facts import LimitFacts
    from checks.memory.facts import MemoryFacts
    from checks.network.facts import NetworkFacts, ServiceFacts
    from checks.numa.facts import NumaFacts
    from checks.pci.facts import PciFacts
    from checks.rdma.facts import RdmaFacts
    from checks.software.facts import SoftwareFacts
    from checks.storage.folders import StorageFacts
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
    "services": ("checks.network.facts", "read_services"),
    "storage": ("checks.storage.folders", "read_storage"),
}


class Facts:
    """The topics of a host, as attributes.

    One that was not read raises UnreadTopicError.
    """

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
        self.topics = dict(topics)

    def __getattr__(self, name: str) -> Any:
        """Return a topic by its name.

        Raises:
            UnreadTopicError: If it was not read.
        """
        if name.startswith("_") or name not in READERS:
            raise AttributeError(name)
        topic = self.topic(name)
        if isinstance(topic, Unknown):
            raise UnreadTopicError(topic)
        return topic

    def topic(self, name: str) -> Any | Unknown:
        """Return the record of a topic, or Unknown with the reason if the topic was not read."""
        return self.topics.get(name, Unknown(f"{name}: not read"))


# A reader that takes longer is given up: a hung driver or a dead mount must not hang the gate.
DEFAULT_LIMIT_SECONDS = LIMIT_SECONDS.get()


def read_facts(
    root: Root,
    needs: LaunchNeeds | None,
    limit_seconds: float = DEFAULT_LIMIT_SECONDS,
    topics: Iterable[str] | None = None,
    slow: Callable[[list[str]], None] | None = None,
    slow_seconds: float = 1.0,
) -> Facts:
    """Read ``topics`` (all by default) below ``root`` for a launch, each in a thread.

    Never raises, and waits no longer than ``limit_seconds`` for them.

    Args:
        slow: Called with the topics still being read after ``slow_seconds``. A reader that fails or
            takes longer than ``limit_seconds`` leaves Unknown as its topic; its thread dies with
            the process. Without threads to be had, topics are read in turn, without that limit.
    """
    results: dict[str, Any] = {}
    threads: dict[str, threading.Thread] = {}
    for topic in READERS if topics is None else topics:
        asked = topic, root, needs, results, limit_seconds
        threads[topic] = threading.Thread(target=_read_topic, args=asked, name=topic, daemon=True)
        try:
            threads[topic].start()
        except RuntimeError:  # no thread is to be had (pids.max, ulimit -u or -v): then in turn
            _read_topic(*asked)
    start = time.monotonic()
    _wait(threads, start + min(slow_seconds, limit_seconds))
    waiting = [topic for topic, thread in threads.items() if thread.is_alive()]
    if waiting and slow is not None:
        slow(waiting)
    _wait(threads, start + limit_seconds)
    late = Unknown(f"not read within {limit_seconds:g} s")
    read = {topic: results.get(topic, late) for topic in threads}
    rdma, software = (read.get(topic, late) for topic in ("rdma", "software"))
    if not isinstance(rdma, Unknown) and not isinstance(software, Unknown):
        read["rdma"] = rdma._replace(parts=software.parts)  # Mooncake's devices depend on them
    return Facts(read)


def _wait(threads: Mapping[str, threading.Thread], until: float) -> None:
    for thread in threads.values():
        if thread.ident is not None:  # else never started
            thread.join(max(0.0, until - time.monotonic()))


def _read_topic(
    topic: str, root: Root, needs: LaunchNeeds | None, results: dict[str, Any], limit_seconds: float
) -> None:
    """Read one topic into ``results``; whatever goes wrong makes this topic Unknown."""
    LIMIT_SECONDS.set(limit_seconds)
    module, function = READERS[topic]
    try:
        results[topic] = getattr(import_module(module), function)(root, needs)
    except BaseException as error:  # whatever a reader does, it is one topic unknown
        results[topic] = Unknown(f"{topic}: {type(error).__name__}: {error}")
