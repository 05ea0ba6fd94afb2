"""Runs ``mooncake-preflight fleet manifest``: standard output is the manifest, and nothing else."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.fleet.kubernetes.records import Lent, ManifestRequest, Place
from preflight.inputs.host_source import LaunchWords

NAME = "mooncake-preflight fleet manifest"
# RFC 1123 labels; "-launch" comes after, and a Job's pods get more.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:/@]*")
_RESOURCE = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9._]*")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PAGE_SIZES = ("2Mi", "1Gi", "64Ki", "16Mi", "32Mi", "512Mi", "16Gi")


class FleetManifestRequest(NamedTuple):
    """What the command line asks for."""

    launch: LaunchWords
    kind: str
    image: str
    name: str
    namespace: str | None
    nodes: str | None
    selectors: tuple[str, ...]
    tolerations: tuple[str, ...]
    rdma: tuple[str, ...]
    gpus: int | None
    hugepages: tuple[str, ...]
    memory: str | None
    host_network: bool
    host_ipc: bool
    capabilities: tuple[str, ...]
    claim: bool
    runtime_class: str | None
    service_account: str | None
    pull_secrets: tuple[str, ...]
    remote_command: str
    timeout_seconds: float
    ignore: tuple[str, ...]


def run_fleet_manifest(request: FleetManifestRequest) -> int:
    """Print the manifest; returns the exit code. Raises UsageError."""
    from preflight.fleet.kubernetes.lent import lent_by
    from preflight.fleet.kubernetes.manifest import manifest
    from preflight.fleet.kubernetes.secrets import without_secrets
    from preflight.fleet.node.sent_launch import sent_launch

    for option, value in (("--name", request.name), ("--namespace", request.namespace)):
        if value is not None and not _LABEL.fullmatch(value):
            raise UsageError(f"{option} {value!r}: write small letters, digits and -")
    if not _IMAGE.fullmatch(request.image):
        raise UsageError(f"--image {request.image!r} is no image: write registry/name:tag")
    tool = _words(request.remote_command)
    from_launch = lent_by(request.launch)
    lent = _asked(request, from_launch.lent)
    sent = sent_launch(request.launch, request.timeout_seconds, request.ignore)
    public = without_secrets(sent.files, sent.words)
    found = manifest(
        ManifestRequest(
            request.kind,
            request.image,
            request.name,
            request.namespace,
            _place(request),
            lent,
            tool,
            request.service_account,
            request.pull_secrets,
        ),
        sent._replace(files=public.files, words=public.words),
    )
    say(found.text)
    notes = [*from_launch.notes, *found.notes]
    if public.removed:
        notes.append(f"left out, for their names are those of secrets: {', '.join(public.removed)}")
    for note in notes:
        say(f"{NAME}: {note}", err=True)
    return 0


def _words(text: str) -> tuple[str, ...]:
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--remote-command {text!r}: {error}") from None
    if not found:
        raise UsageError("--remote-command is empty: give the program's path in the image")
    return found


def _place(request: FleetManifestRequest) -> Place:
    names: tuple[str, ...] = ()
    count: int | None = None
    if request.nodes is not None and request.nodes.isdecimal():
        count = int(request.nodes)
    elif request.nodes is not None:
        from preflight.fleet.base.node_sets import expand

        names = tuple(expand(request.nodes))
        count = len(names)
    if request.kind == "job" and not count:
        raise UsageError(
            "--kind job runs on as many nodes as you say: give --nodes 8, --nodes 'gpu[01-08]', or "
            "--kind daemonset for all"
        )
    if request.kind == "daemonset" and count and not names:
        raise UsageError(
            f"--kind daemonset runs on every node that it may: --nodes {count} is for --kind job; "
            "name the nodes, or give --node-selector"
        )
    selector = dict(_pair("--node-selector", text) for text in request.selectors)
    tolerations = tuple(_toleration(text) for text in request.tolerations)
    return Place(names, count, selector, tolerations, request.runtime_class)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} {text!r}: write name=value")
    return name, value


def _toleration(text: str) -> dict[str, str]:
    """``KEY``, ``KEY=VALUE``, each with ``:EFFECT``, as ``kubectl taint`` writes taints."""
    taint, colon, effect = text.rpartition(":") if ":" in text else (text, "", "")
    if colon and effect not in _EFFECTS:
        raise UsageError(f"--toleration {text!r}: {effect!r} is none of {', '.join(_EFFECTS)}")
    key, equals, value = taint.partition("=")
    if not key:
        raise UsageError(f"--toleration {text!r}: write key=value:NoSchedule, or a key alone")
    found = {"key": key, "operator": "Equal" if equals else "Exists"}
    return found | ({"value": value} if equals else {}) | ({"effect": effect} if colon else {})


def _asked(request: FleetManifestRequest, lent: Lent) -> Lent:
    """The launch's own, and over it what the command line says."""
    resources = dict(lent.resources)
    for text in request.hugepages:
        size, amount = _pair("--hugepages", text)
        if size not in _PAGE_SIZES:
            raise UsageError(f"--hugepages {text!r}: {size!r} is none of {', '.join(_PAGE_SIZES)}")
        resources[f"hugepages-{size}"] = _quantity("--hugepages", amount)
    if request.memory is not None:
        resources["memory"] = _quantity("--memory", request.memory)
    if request.gpus is not None:
        resources["nvidia.com/gpu"] = str(request.gpus)
    for text in request.rdma:
        name, _, amount = text.partition("=")
        if not _RESOURCE.fullmatch(name) or not (amount or "1").isdecimal():
            raise UsageError(f"--rdma-resource {text!r}: write rdma/hca, or rdma/hca=8")
        resources[name] = amount or "1"
    return lent._replace(
        host_network=lent.host_network or request.host_network,
        host_ipc=lent.host_ipc or request.host_ipc,
        capabilities=tuple(dict.fromkeys((*lent.capabilities, *request.capabilities))),
        resources=resources if request.claim else {},
    )


def _quantity(option: str, text: str) -> str:
    from preflight.launches.kubernetes import quantity

    if not quantity(text):
        raise UsageError(f"{option} {text!r} is no quantity of Kubernetes: write 64Gi")
    return text
