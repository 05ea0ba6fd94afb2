"""Runs ``mooncake-preflight fleet manifest``: standard output is the manifest, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.fleet.base.option_words import option_words
from preflight.fleet.kubernetes.records import ManifestRequest, Place
from preflight.fleet.node.sent_launch import Sent

NAME = "mooncake-preflight fleet manifest"
# RFC 1123 labels; "-launch" comes after, and a Job's pods get more.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:/@]*")
_RESOURCE = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9._]*")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PAGE_SIZES = ("2Mi", "1Gi", "64Ki", "16Mi", "32Mi", "512Mi", "16Gi")


def check_names(name: str, namespace: str | None, image: str) -> None:
    """Raises UsageError for what Kubernetes would not take."""
    for option, value in (("--name", name), ("--namespace", namespace)):
        if value is not None and not _LABEL.fullmatch(value):
            raise UsageError(f"{option} {value!r}: write small letters, digits and -")
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"--image {image!r} is no image: write registry/name:tag")


def print_manifest(request: ManifestRequest, sent: Sent, notes: Sequence[str]) -> int:
    """Print the manifest, and on standard error ``notes`` and its own; returns 0."""
    from preflight.fleet.kubernetes.manifest import manifest
    from preflight.launches.without_secrets import without_secrets

    public = without_secrets(sent.files, sent.words)
    found = manifest(request, sent._replace(files=public.files, words=public.words))
    say(found.text)
    notes = [*notes, *found.notes]
    if public.removed:
        notes.append(f"left out, for their names are those of secrets: {', '.join(public.removed)}")
    for note in notes:
        say(f"{NAME}: {note}", err=True)
    return 0


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of --remote-command. Raises UsageError."""
    return option_words("--remote-command", text, "the program's path in the image")


def place_of(
    kind: str,
    nodes: str | None,
    selectors: Sequence[str],
    tolerations: Sequence[str],
    runtime_class: str | None,
) -> Place:
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
    tolerated = tuple(_toleration(text) for text in tolerations)
    return Place(names, count, selector, tolerated, runtime_class)


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


def resources_of(
    hugepages: Sequence[str], memory: str | None, gpus: int | None, rdma: Sequence[str]
) -> dict[str, str]:
    """Return what the pod asks Kubernetes for, by the resource's name. Raises UsageError."""
    resources = {}
    for text in hugepages:
        size, amount = _pair("--hugepages", text)
        if size not in _PAGE_SIZES:
            raise UsageError(f"--hugepages {text!r}: {size!r} is none of {', '.join(_PAGE_SIZES)}")
        resources[f"hugepages-{size}"] = _quantity("--hugepages", amount)
    if memory is not None:
        resources["memory"] = _quantity("--memory", memory)
    if gpus is not None:
        resources["nvidia.com/gpu"] = str(gpus)
    for text in rdma:
        name, _, amount = text.partition("=")
        if not _RESOURCE.fullmatch(name) or not (amount or "1").isdecimal():
            raise UsageError(f"--rdma-resource {text!r}: write rdma/hca, or rdma/hca=8")
        resources[name] = amount or "1"
    return resources


def _quantity(option: str, text: str) -> str:
    from preflight.launches.kubernetes import quantity

    if not quantity(text):
        raise UsageError(f"{option} {text!r} is no quantity of Kubernetes: write 64Gi")
    return text
