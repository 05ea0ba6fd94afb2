"""The pod that prints one node's report: the launch's own, with the check in place of the server.

It runs on the live machine of the pod, not on a mounted one: /proc and /sys are the node's own in
every pod, and what is asked of the kernel (limits, devices, ports, NVML, verbs) can be asked there
alone. With the node's / mounted and ``--root`` on it, that would all be unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checks.base.units import GIB, MIB
from preflight.fleet.kubernetes.records import Lent, ManifestRequest, Place
from preflight.fleet.node.script import SAYS

Json = dict[str, Any]

CONTAINER = "preflight"
FOLDER = "/mooncake-preflight"
HOSTNAME_LABEL = "kubernetes.io/hostname"
LABEL_NAME, LABEL_INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
APP = "mooncake-preflight"
# A pod that is done no longer keeps another one from its node: it stays until all are placed.
LINGER_SECONDS = 60
_SHM, _LAUNCH = "shm", "launch"

# A verdict is no failure of the pod, which would be started again: its code is in the log.
_ASK = f'"$@"\ncode=$?\necho\necho "{SAYS} end $code"\n'
_STAY = "trap 'exit 0' TERM INT\nsleep {seconds} &\nwait $!\nexit 0\n"
_IDLE = "trap 'exit 0' TERM INT\nwhile :; do sleep 3600 & wait $!; done\n"


def labels(name: str) -> dict[str, str]:
    return {LABEL_NAME: APP, LABEL_INSTANCE: name}


def pod_spec(
    request: ManifestRequest, words: Sequence[str], files: Mapping[str, str], account: str
) -> Json:
    """``files``: key in the ConfigMap -> name below the pod's folder. words: of ``fleet node``."""
    lent = request.lent
    spec: Json = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 2,
        **_host(lent),
        **_placed(request),
    }
    if request.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in request.pull_secrets]
    if request.kind == "job":
        spec["restartPolicy"] = "Never"
        stay = _STAY.format(seconds=LINGER_SECONDS)
        spec["containers"] = [_checking(request, words, f"{_ASK}{stay}", bool(files))]
    else:
        # A DaemonSet's pods must run on: the check comes first, and the pod is ready after it.
        spec["initContainers"] = [_checking(request, words, f"{_ASK}exit 0\n", bool(files))]
        idle = {"cpu": "10m", "memory": "16Mi"}
        spec["containers"] = [
            {
                "name": "done",
                "image": request.image,
                "command": ["/bin/sh", "-c", _IDLE],
                "resources": {"requests": idle},
                "securityContext": {"allowPrivilegeEscalation": False},
            }
        ]
    volumes = _volumes(request, files)
    if volumes:
        spec["volumes"] = volumes
    return spec


def _host(lent: Lent) -> Json:
    found: Json = {}
    if lent.host_network:
        found |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if lent.host_ipc:
        found["hostIPC"] = True
    return found


def _placed(request: ManifestRequest) -> Json:
    place = request.place
    found: Json = {}
    if place.runtime_class is not None:
        found["runtimeClassName"] = place.runtime_class
    if place.selector:
        found["nodeSelector"] = dict(place.selector)
    affinity: Json = {}
    if place.names:
        among = {"key": HOSTNAME_LABEL, "operator": "In", "values": list(place.names)}
        terms = [{"matchExpressions": [among]}]
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        affinity["nodeAffinity"] = {required: {"nodeSelectorTerms": terms}}
    if request.kind == "job":
        affinity["podAntiAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": labels(request.name)},
                    "topologyKey": HOSTNAME_LABEL,
                }
            ]
        }
    if affinity:
        found["affinity"] = affinity
    tolerations = _tolerations(place, request.lent)
    if tolerations:
        found["tolerations"] = tolerations
    return found


def _tolerations(place: Place, lent: Lent) -> list[Json]:
    found = [dict(one) for one in place.tolerations]
    # Nodes with GPUs are usually kept for pods that ask for them, by a taint of this name.
    own = [name for name in lent.resources if "/" in name]
    told = {one.get("key") for one in found}
    found += [{"key": name, "operator": "Exists"} for name in own if name not in told]
    return found


def _checking(request: ManifestRequest, words: Sequence[str], script: str, launch: bool) -> Json:
    lent = request.lent
    family, command, *rest = words
    tool = (*request.tool, family, command, "--name=$(NODE_NAME)", *(_escaped(w) for w in rest))
    container: Json = {
        "name": CONTAINER,
        "image": request.image,
        "command": ["/bin/sh", "-c", script, CONTAINER],
        "args": list(tool),
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "resources": _resources(lent),
        "securityContext": _security(lent),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    mounts: list[Json] = []
    if launch:
        container["workingDir"] = FOLDER
        mounts.append({"name": _LAUNCH, "mountPath": FOLDER, "readOnly": True})
    if lent.shm_bytes is not None:
        mounts.append({"name": _SHM, "mountPath": "/dev/shm"})
    for number, target in enumerate(lent.mounts.values()):
        mounts.append({"name": f"host-{number}", "mountPath": target, "readOnly": True})
    if mounts:
        container["volumeMounts"] = mounts
    return container


def _escaped(word: str) -> str:
    """The kubelet fills in $(NAME), and takes $$ for a dollar sign."""
    return word.replace("$", "$$")


def _resources(lent: Lent) -> Json:
    """No limit that the launch's own pod has not: the check would take it for the launch's."""
    small = {"cpu": "100m", "memory": "128Mi"}
    if not lent.resources:
        return {"requests": small}
    return {"requests": {**small, **lent.resources}, "limits": dict(lent.resources)}


def _security(lent: Lent) -> Json:
    found: Json = {}
    if lent.privileged:
        found["privileged"] = True
    if lent.capabilities:
        found["capabilities"] = {"add": list(lent.capabilities)}
    if lent.unconfined:
        found["seccompProfile"] = {"type": "Unconfined"}
    if lent.user is not None:
        found["runAsUser"] = lent.user
    # Kubernetes refuses it beside what a pod of the launch may have.
    return found or {"allowPrivilegeEscalation": False}


def _volumes(request: ManifestRequest, files: Mapping[str, str]) -> list[Json]:
    found: list[Json] = []
    if files:
        items = [{"key": key, "path": path} for key, path in files.items()]
        found.append(
            {"name": _LAUNCH, "configMap": {"name": f"{request.name}-launch", "items": items}}
        )
    lent = request.lent
    if lent.shm_bytes is not None:
        empty = {"medium": "Memory", "sizeLimit": quantity(lent.shm_bytes)}
        found.append({"name": _SHM, "emptyDir": empty})
    for number, source in enumerate(lent.mounts):
        # Without a type, a runtime makes what is not there: nothing is to be made on a node.
        found.append({"name": f"host-{number}", "hostPath": {"path": source, "type": "Directory"}})
    return found


def quantity(size_bytes: int) -> str:
    """Exact, in the largest unit that is."""
    for unit, suffix in ((GIB, "Gi"), (MIB, "Mi")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{suffix}"
    return str(size_bytes)
