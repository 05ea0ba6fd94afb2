"""The Kubernetes objects that have every node print its report: as YAML, with why they are so.

No object gives rights: a pod that prints needs nothing of the API server. It has an account of its
own, so that no role somebody gave to the namespace's default one is its, and no token is mounted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.base.usage_error import UsageError
from preflight.fleet.kubernetes.pod import LINGER_SECONDS, labels, pod_spec
from preflight.fleet.kubernetes.records import ManifestRequest

if TYPE_CHECKING:
    from preflight.fleet.node.sent_launch import Sent

# A ConfigMap holds 1 MiB, and its keys are of these letters (kubernetes.io, ConfigMaps).
MOST_BYTES = 1 << 20
_KEY = re.compile(r"[^-._a-zA-Z0-9]")
# For an image that has to be pulled to every node, and then for reading the pods' logs.
DEADLINE_SECONDS = 3600
KEPT_SECONDS = 3600

Json = dict[str, Any]

_ACCOUNT = (
    "Nothing is asked of the API server: no role is bound to this account, and no token mounted."
)
_CONFIG = "The launch as it was given, read by the check and never executed. Without its secrets."
_JOB = (
    "One pod a node. A pod that is over does not keep another from its node, so each stays for\n"
    f"{LINGER_SECONDS} s. A verdict is no failure; backoffLimit is about pods that could not run."
)
_DAEMON_SET = (
    "A pod on every node that it may run on, ready once the report is in its log. It keeps what\n"
    "it asks for until it is deleted."
)


class Manifest(NamedTuple):
    """text: YAML. objects: the same as data. notes: what there is to know about it."""

    text: str
    objects: tuple[Json, ...]
    notes: tuple[str, ...]


def manifest(request: ManifestRequest, sent: Sent) -> Manifest:
    """Raises UsageError for a launch that no ConfigMap holds."""
    keys = {_KEY.sub("_", name): name for name in sent.files}
    if len(keys) < len(sent.files):
        raise UsageError(
            "files of the launch differ only in what a ConfigMap's key cannot have: "
            f"{', '.join(sent.files)}"
        )
    size = sum(len(content) for content in sent.files.values())
    if size > MOST_BYTES:
        raise UsageError(f"the launch has {size} bytes, and a ConfigMap holds {MOST_BYTES}")
    account = request.service_account or request.name
    pod = pod_spec(request, sent.words, keys, account)
    commented: list[tuple[str, Json]] = []
    if request.service_account is None:
        own = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(request)}
        commented.append((_ACCOUNT, {**own, "automountServiceAccountToken": False}))
    if keys:
        commented.append((_CONFIG, _config_map(request, sent.files)))
    template = {"metadata": {"labels": labels(request.name)}, "spec": pod}
    commented.append(
        _job(request, template) if request.kind == "job" else _daemon(request, template)
    )
    objects = tuple(found for _, found in commented)
    text = "---\n".join(f"{_comment(words)}{_dump(found)}" for words, found in commented)
    return Manifest(text.rstrip("\n"), objects, tuple(_notes(request)))


def _metadata(request: ManifestRequest, suffix: str = "") -> Json:
    found: Json = {"name": f"{request.name}{suffix}", "labels": labels(request.name)}
    return found if request.namespace is None else {**found, "namespace": request.namespace}


def _config_map(request: ManifestRequest, files: Mapping[str, bytes]) -> Json:
    import base64

    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    for name, content in files.items():
        key, text = _KEY.sub("_", name), content.decode("utf-8", "replace")
        if text.encode() == content:
            data[key] = text
        else:
            binary[key] = base64.b64encode(content).decode()
    found: Json = {"apiVersion": "v1", "kind": "ConfigMap"}
    found["metadata"] = _metadata(request, "-launch")
    if data:
        found["data"] = data
    if binary:
        found["binaryData"] = binary
    return found


def _job(request: ManifestRequest, template: Json) -> tuple[str, Json]:
    count = request.place.pods
    spec = {
        "completions": count,
        "parallelism": count,
        "completionMode": "Indexed",
        "backoffLimit": count,
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": template,
    }
    found = {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(request), "spec": spec}
    return _JOB, found


def _daemon(request: ManifestRequest, template: Json) -> tuple[str, Json]:
    spec = {
        "selector": {"matchLabels": labels(request.name)},
        # All at once: nothing is served that a roll-out would have to spare.
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        "template": template,
    }
    found = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": _metadata(request)}
    return _DAEMON_SET, {**found, "spec": spec}


def _notes(request: ManifestRequest) -> list[str]:
    lent = request.lent
    notes = []
    wide = [
        name
        for name, given in (
            ("hostNetwork", lent.host_network),
            ("hostIPC", lent.host_ipc),
            ("privileged", lent.privileged),
            ("hostPath", bool(lent.mounts)),
            (f"capabilities {', '.join(lent.capabilities)}", bool(lent.capabilities)),
            ("seccomp Unconfined", lent.unconfined),
        )
        if given
    ]
    if wide:
        notes.append(
            f"{', '.join(wide)}: the namespace must allow it (label "
            "pod-security.kubernetes.io/enforce=privileged)"
        )
    if not any("/" in name for name in lent.resources):
        notes.append(
            "the pod asks for no device: GPUs and RDMA devices are not seen from it, and their "
            "checks say so; --gpus and --rdma-resource ask for them"
        )
    if not any(name.startswith("hugepages-") for name in lent.resources):
        notes.append(
            "the pod asks for no huge pages, so Kubernetes lets it have none: hugetlb.cgroup-limit "
            "is about this pod, and --hugepages 2Mi=64Gi asks for them"
        )
    return notes


def _comment(words: str) -> str:
    return "".join(f"# {line}\n" for line in words.splitlines())


def _dump(found: Json) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Texts of several lines as they are; what stands twice is written twice."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    dumped: str = yaml.dump(found, Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return dumped
