"""What a manifest is asked to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """Which nodes, and how a pod gets there. names: () for any; pods: None for every node.

    selector, tolerations: as Kubernetes has them.
    """

    names: tuple[str, ...]
    pods: int | None
    selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...]
    runtime_class: str | None


class Lent(NamedTuple):
    """What the pod is given of its node: what the launch's own pod would have.

    resources: requests and limits alike. mounts: path on the node -> path in the pod.
    """

    host_network: bool
    host_ipc: bool
    privileged: bool
    capabilities: tuple[str, ...]
    unconfined: bool
    user: int | None
    resources: Mapping[str, str]
    shm_bytes: int | None
    mounts: Mapping[str, str]


class ManifestRequest(NamedTuple):
    """kind: job or daemonset. service_account: one that is there, None to make one."""

    kind: str
    image: str
    name: str
    namespace: str | None
    place: Place
    lent: Lent
    tool: tuple[str, ...]
    service_account: str | None
    pull_secrets: tuple[str, ...]
