"""The Kubernetes objects that have every node print its report: as YAML, with why they are so.

No object gives rights: a pod that prints needs nothing of the API server. It has an account of its
own, so that no role somebody gave to the namespace's default one is its, and no token is mounted.

The pod is the launch's own, with the check in place of the server. It runs on the live machine of
the pod, not on a mounted one: /proc and /sys are the node's own in every pod, and what is asked of
the kernel (limits, devices, ports, NVML, verbs) can be asked there alone. With the node's / mounted
and ``--root`` on it, that would all be unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from checks.capture.secrets import clean_text, clean_words
from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.fleet.base.decode import Json
from preflight.fleet.kubernetes.request import CONTAINER, ManifestRequest, quantity
from preflight.fleet.remote.program import SAYS
from preflight.fleet.remote.sent_launch import Sent

NAME = "mooncake-preflight fleet manifest"
FOLDER = "/mooncake-preflight"
HOSTNAME_LABEL = "kubernetes.io/hostname"
LABEL_NAME, LABEL_INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
# A pod that is done no longer keeps another one from its node: it stays until all are placed.
LINGER_SECONDS = 60
# A ConfigMap holds 1 MiB, and its keys are of these letters (kubernetes.io, ConfigMaps).
MOST_BYTES = 1 << 20
_KEY = re.compile(r"[^-._a-zA-Z0-9]")
# For an image that has to be pulled to every node, and then for reading the pods' logs.
DEADLINE_SECONDS = 3600
KEPT_SECONDS = 3600

# A verdict is no failure of the pod, which would be started again: its code is in the log.
_ASK = f'"$@"\ncode=$?\necho\necho "{SAYS} end $code"\n'
_STAY = f"trap 'exit 0' TERM INT\nsleep {LINGER_SECONDS} &\nwait $!\nexit 0\n"
_IDLE = "trap 'exit 0' TERM INT\nwhile :; do sleep 3600 & wait $!; done\n"

_ACCOUNT = (
    "Nothing is asked of the API server: no role is bound to this account, and no token mounted."
)
_CONFIG = "The launch, read by the check and never executed. Without its secrets."
_JOB = (
    "One pod a node. A pod that is over does not keep another from its node, so each stays for\n"
    f"{LINGER_SECONDS} s. A verdict is no failure; backoffLimit is about pods that could not run."
)
_DAEMON_SET = (
    "A pod on every node that it may run on, ready once the report is in its log. It keeps what\n"
    "it asks for until it is deleted."
)


def print_manifest(request: ManifestRequest, sent: Sent) -> int:
    """Print the manifest, and on standard error what there is to know about it; returns 0.

    Raises UsageError for a launch that no ConfigMap holds.
    """

    public = without_secrets(sent.files, sent.words)
    say(manifest(request, Sent(public.files, public.words)))
    notes = [*request.lent.notes, *_notes(request)]
    if public.removed:
        notes.append(f"left out, for their names are those of secrets: {', '.join(public.removed)}")
    for note in notes:
        say(f"{NAME}: {note}", err=True)
    return 0


def manifest(request: ManifestRequest, sent: Sent) -> str:
    """Return the objects as YAML. Raises UsageError for a launch that no ConfigMap holds."""
    keys = {_KEY.sub("_", name): name for name in sent.files}
    if len(keys) < len(sent.files):
        raise UsageError(
            "files of the launch differ only in what a ConfigMap's key cannot have: "
            f"{', '.join(sent.files)}"
        )
    size = sum(len(content) for content in sent.files.values())
    if size > MOST_BYTES:
        raise UsageError(f"the launch has {size} bytes, and a ConfigMap holds {MOST_BYTES}")
    labels = {LABEL_NAME: "mooncake-preflight", LABEL_INSTANCE: request.name}

    def of_kind(api: str, kind: str, suffix: str = "") -> Json:
        name = f"{request.name}{suffix}"
        metadata = _given(name=name, labels=dict(labels), namespace=request.namespace)
        return {"apiVersion": api, "kind": kind, "metadata": metadata}

    commented: list[tuple[str, Json]] = []
    if request.service_account is None:
        account = of_kind("v1", "ServiceAccount") | {"automountServiceAccountToken": False}
        commented.append((_ACCOUNT, account))
    if keys:
        config = of_kind("v1", "ConfigMap", "-launch") | _config(sent.files)
        commented.append((_CONFIG, config))
    pod = _pod(request, sent.words, keys, labels)
    template = {"metadata": {"labels": dict(labels)}, "spec": pod}
    count = request.where.pods
    spec: Json
    if request.kind == "job":
        spec = {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "backoffLimit": count,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": template,
        }
        commented.append((_JOB, of_kind("batch/v1", "Job") | {"spec": spec}))
    else:
        # All at once: nothing is served that a roll-out would have to spare.
        update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}}
        selector = {"matchLabels": dict(labels)}
        spec = {"selector": selector, "updateStrategy": update, "template": template}
        commented.append((_DAEMON_SET, of_kind("apps/v1", "DaemonSet") | {"spec": spec}))
    text = "---\n".join(
        "".join(f"# {line}\n" for line in words.splitlines()) + _dump(found)
        for words, found in commented
    )
    return text.rstrip("\n")


def _given(**fields: Any) -> Json:
    """Return the fields that say something: Kubernetes has its own defaults for the others."""
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _config(files: Mapping[str, bytes]) -> Json:
    import base64

    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    for name, content in files.items():
        key, text = _KEY.sub("_", name), content.decode("utf-8", "replace")
        if text.encode() == content:
            data[key] = text
        else:
            binary[key] = base64.b64encode(content).decode()
    return _given(data=data, binaryData=binary)


def _pod(
    request: ManifestRequest, words: Sequence[str], keys: Mapping[str, str], labels: Json
) -> Json:
    """Return the template of the pod.

    keys: in the ConfigMap -> name below the pod's folder. words: of ``fleet node``.
    """
    lent, where, is_job = request.lent, request.where, request.kind == "job"
    among = {"key": HOSTNAME_LABEL, "operator": "In", "values": list(where.names)}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    alone = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": HOSTNAME_LABEL}
    nodes = {required: {"nodeSelectorTerms": [{"matchExpressions": [among]}]}}
    told = {one.get("key") for one in where.tolerations}
    # Nodes with GPUs are usually kept for pods that ask for them, by a taint of this name.
    own = [name for name in lent.resources if "/" in name and name not in told]
    spec = _given(
        serviceAccountName=request.service_account or request.name,
        automountServiceAccountToken=False,
        terminationGracePeriodSeconds=2,
        hostNetwork=lent.host_network or None,
        dnsPolicy="ClusterFirstWithHostNet" if lent.host_network else None,
        hostIPC=lent.host_ipc or None,
        runtimeClassName=where.runtime_class,
        nodeSelector=dict(where.selector),
        affinity=_given(
            nodeAffinity=nodes if where.names else None,
            podAntiAffinity={required: [alone]} if is_job else None,
        ),
        tolerations=[
            *map(dict, where.tolerations),
            *({"key": name, "operator": "Exists"} for name in own),
        ],
        imagePullSecrets=[{"name": name} for name in request.pull_secrets],
    )
    if is_job:
        checking = _checking(request, words, f"{_ASK}{_STAY}", bool(keys))
        spec |= {"restartPolicy": "Never", "containers": [checking]}
    else:
        # A DaemonSet's pods must run on: the check comes first, and the pod is ready after it.
        checking = _checking(request, words, f"{_ASK}exit 0\n", bool(keys))
        done = {
            "name": "done",
            "image": request.image,
            "command": ["/bin/sh", "-c", _IDLE],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            "securityContext": {"allowPrivilegeEscalation": False},
        }
        spec |= {"initContainers": [checking], "containers": [done]}
    items = [{"key": key, "path": path} for key, path in keys.items()]
    shm = {"medium": "Memory", "sizeLimit": quantity(lent.shm_bytes or 0)}
    config = {"name": f"{request.name}-launch", "items": items}
    volumes: list[Json] = [
        *([{"name": "launch", "configMap": config}] if keys else []),
        *([{"name": "shm", "emptyDir": shm}] if lent.shm_bytes is not None else []),
        # Without a type, a runtime makes what is not there: nothing is to be made on a node.
        *(
            {"name": f"host-{number}", "hostPath": {"path": source, "type": "Directory"}}
            for number, source in enumerate(lent.mounts)
        ),
    ]
    return spec | _given(volumes=volumes)


def _checking(request: ManifestRequest, words: Sequence[str], script: str, launch: bool) -> Json:
    lent = request.lent
    family, command, *rest = words
    # The kubelet fills in $(NAME), and takes $$ for a dollar sign.
    escaped = [word.replace("$", "$$") for word in rest]
    small = {"cpu": "100m", "memory": "128Mi"}
    security = _given(
        privileged=lent.privileged or None,
        capabilities=_given(add=list(lent.capabilities)),
        seccompProfile={"type": "Unconfined"} if lent.unconfined else None,
        runAsUser=lent.user,
    )
    mounts: list[Json] = [
        *([{"name": "launch", "mountPath": FOLDER, "readOnly": True}] if launch else []),
        *([{"name": "shm", "mountPath": "/dev/shm"}] if lent.shm_bytes is not None else []),
        *(
            {"name": f"host-{number}", "mountPath": target, "readOnly": True}
            for number, target in enumerate(lent.mounts.values())
        ),
    ]
    return _given(
        name=CONTAINER,
        image=request.image,
        command=["/bin/sh", "-c", script, CONTAINER],
        args=[*request.tool, family, command, "--name=$(NODE_NAME)", *escaped],
        env=[{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        # No limit that the launch's own pod has not: the check would take it for the launch's.
        resources={"requests": {**small, **lent.resources}} | _given(limits=dict(lent.resources)),
        # Kubernetes refuses it beside what a pod of the launch may have.
        securityContext=security or {"allowPrivilegeEscalation": False},
        terminationMessagePolicy="FallbackToLogsOnError",
        workingDir=FOLDER if launch else None,
        volumeMounts=mounts,
    )


def _notes(request: ManifestRequest) -> list[str]:
    lent = request.lent
    notes = []
    wide = {
        "hostNetwork": lent.host_network,
        "hostIPC": lent.host_ipc,
        "privileged": lent.privileged,
        "hostPath": lent.mounts,
        f"capabilities {', '.join(lent.capabilities)}": lent.capabilities,
        "seccomp Unconfined": lent.unconfined,
    }
    if any(wide.values()):
        notes.append(
            f"{', '.join(name for name, given in wide.items() if given)}: the namespace must "
            "allow it (label pod-security.kubernetes.io/enforce=privileged)"
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


class Public(NamedTuple):
    """removed: the names of what is gone, and ``a Secret`` for an object of that kind."""

    files: Mapping[str, bytes]
    words: tuple[str, ...]
    removed: tuple[str, ...]


def without_secrets(files: Mapping[str, bytes], words: Sequence[str]) -> Public:
    """Return the launch for a ConfigMap, which everybody in a namespace may read.

    words: of a command, among which a secret may be a flag's value.
    """
    public = {name: _clean_bytes(content) for name, content in files.items()}
    return Public(public, tuple(clean_words(words)), ())


def _clean_bytes(content: bytes) -> bytes:
    # Latin-1 has every byte, so what is not text comes back as it was.
    return clean_text(content.decode("latin-1")).encode("latin-1")
