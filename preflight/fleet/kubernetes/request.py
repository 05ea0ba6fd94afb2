"""What a manifest is asked to be: by its options, and by the launch's own container."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checks.base.units import GIB, MIB
from preflight.base.usage_error import UsageError
from preflight.inputs.launch_words import LaunchWords
from preflight.launches.container import ContainerSettings

# Of the pod, whose log has the report.
CONTAINER = "preflight"
# RFC 1123 labels; "-launch" comes after, and a Job's pods get more.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:/@]*")
_RESOURCE = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9._]*")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PAGE_SIZES = ("2Mi", "1Gi", "64Ki", "16Mi", "32Mi", "512Mi", "16Gi")


class Where(NamedTuple):
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

    resources: requests and limits alike. mounts: path on the node -> path in the pod. notes: what
    cannot be had.
    """

    host_network: bool = False
    host_ipc: bool = False
    privileged: bool = False
    capabilities: tuple[str, ...] = ()
    unconfined: bool = False
    user: int | None = None
    resources: Mapping[str, str] = {}
    shm_bytes: int | None = None
    mounts: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


class ManifestRequest(NamedTuple):
    """kind: job or daemonset. service_account: one that is there, None to make one."""

    kind: str
    image: str
    name: str
    namespace: str | None
    where: Where
    lent: Lent
    tool: tuple[str, ...]
    service_account: str | None
    pull_secrets: tuple[str, ...]


def check_names(name: str, namespace: str | None, image: str) -> None:
    """Raise UsageError for what Kubernetes would not take."""
    for option, value in (("--name", name), ("--namespace", namespace)):
        if value is not None and not _LABEL.fullmatch(value):
            raise UsageError(f"{option} {value!r}: write small letters, digits and -")
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"--image {image!r} is no image: write registry/name:tag")


def where_of(
    kind: str,
    nodes: str | None,
    selectors: Sequence[str],
    tolerations: Sequence[str],
    runtime_class: str | None,
) -> Where:
    """Return where the pods are to run. Raises UsageError."""
    names: tuple[str, ...] = ()
    count: int | None = None
    if nodes is not None and nodes.isdecimal():
        count = int(nodes)
    elif nodes is not None:
        from preflight.fleet.base.node_sets import expand

        names = tuple(expand(nodes))
        count = len(names)
    if kind == "job" and not count:
        raise UsageError(
            "--kind job runs on as many nodes as you say: give --nodes 8, --nodes 'gpu[01-08]', or "
            "--kind daemonset for all"
        )
    if kind == "daemonset" and count and not names:
        raise UsageError(
            f"--kind daemonset runs on every node that it may: --nodes {count} is for --kind job; "
            "name the nodes, or give --node-selector"
        )
    selector = dict(_pair("--node-selector", text) for text in selectors)
    return Where(names, count, selector, tuple(map(_toleration, tolerations)), runtime_class)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} {text!r}: write name=value")
    return name, value


def _toleration(text: str) -> dict[str, str]:
    """Return the toleration of ``KEY`` or ``KEY=VALUE``, each with ``:EFFECT`` or without.

    As ``kubectl taint`` writes taints.
    """
    taint, colon, effect = text.rpartition(":") if ":" in text else (text, "", "")
    if colon and effect not in _EFFECTS:
        raise UsageError(f"--toleration {text!r}: {effect!r} is none of {', '.join(_EFFECTS)}")
    key, equals, value = taint.partition("=")
    if not key:
        raise UsageError(f"--toleration {text!r}: write key=value:NoSchedule, or a key alone")
    found = {"key": key, "operator": "Equal" if equals else "Exists"}
    return found | ({"value": value} if equals else {}) | ({"effect": effect} if colon else {})


def resources_of(
    hugepages: Sequence[str], memory: str | None, gpus: int | None, rdma: Sequence[str]
) -> dict[str, str]:
    """Return what the pod asks Kubernetes for, by the resource's name. Raises UsageError."""
    resources = {}
    for text in hugepages:
        size, amount = _pair("--hugepages", text)
        if size not in _PAGE_SIZES:
            raise UsageError(f"--hugepages {text!r}: {size!r} is none of {', '.join(_PAGE_SIZES)}")
        resources[f"hugepages-{size}"] = _asked_quantity("--hugepages", amount)
    if memory is not None:
        resources["memory"] = _asked_quantity("--memory", memory)
    if gpus is not None:
        resources["nvidia.com/gpu"] = str(gpus)
    for text in rdma:
        name, _, amount = text.partition("=")
        if not _RESOURCE.fullmatch(name) or not (amount or "1").isdecimal():
            raise UsageError(f"--rdma-resource {text!r}: write rdma/hca, or rdma/hca=8")
        resources[name] = amount or "1"
    return resources


def _asked_quantity(option: str, text: str) -> str:
    from preflight.launches.kubernetes import quantity

    if not quantity(text):
        raise UsageError(f"{option} {text!r} is no quantity of Kubernetes: write 64Gi")
    return text


def lent_by(words: LaunchWords) -> Lent:
    """Return what the launch lends to its container: the one that runs SGLang, else the first.

    Nothing without a container. Raises UsageError for no launch.
    """
    from preflight.base.within import limit_seconds, within
    from preflight.inputs.host_source import launch_of, open_host
    from preflight.processes.processes import ProcessKind, classify

    found = within(limit_seconds(), "the launch", lambda: launch_of(words, open_host("/")))
    commands = [] if found is None else found[0].reading.commands
    commands = sorted(
        (one for one in commands if one.container is not None),
        key=lambda one: classify(one)[0] is not ProcessKind.SGLANG,
    )
    settings = [one.container for one in commands if one.container is not None]
    if not settings:
        return Lent()
    lent = _lent(settings[0])
    if all(one == settings[0] for one in settings):
        return lent
    several = f"the launch has several containers: the pod is given what {commands[0].origin} has"
    return lent._replace(notes=(*lent.notes, several))


def _lent(settings: ContainerSettings) -> Lent:
    asked = {
        **{f"hugepages-{size}": value for size, value in settings.hugepages_bytes.items()},
        "memory": settings.memory_bytes,
    }
    resources = {name: quantity(value) for name, value in asked.items() if isinstance(value, int)}
    # Folders of the node, read-only; what else is mounted is named, for it is not there.
    mounts: dict[str, str] = {}
    notes = []
    for mount in settings.mounts:
        if mount.kind in ("tmpfs", "emptyDir", "hugepages"):
            continue
        # A name with a dot is a file's, as /etc/localtime.yaml: only folders can be asked for.
        folder = mount.source.startswith("/") and "." not in os.path.basename(mount.source)
        if mount.kind == "bind" and folder:
            mounts[mount.source] = mount.target
        else:
            what = mount.source or mount.kind
            notes.append(
                f"{what} is not mounted at {mount.target}: the check does not see its files"
            )
    user = settings.user
    return Lent(
        settings.network == "host",
        settings.ipc == "host",
        settings.privileged,
        tuple(name.upper().removeprefix("CAP_") for name in settings.cap_add),
        "seccomp=unconfined" in settings.security_opt,
        int(user) if user is not None and user.isdecimal() else None,
        {**resources, **settings.resources},
        settings.shm_size_bytes if isinstance(settings.shm_size_bytes, int) else None,
        mounts,
        tuple(notes),
    )


def quantity(size_bytes: int) -> str:
    """Return the exact size, in the largest unit that can write it."""
    for unit, suffix in ((GIB, "Gi"), (MIB, "Mi")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{suffix}"
    return str(size_bytes)
