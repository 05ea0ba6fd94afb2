"""What Kubernetes says of a pod, before anybody reads its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# Waiting for these, a container waits for somebody to mend something.
_STUCK = (
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
)

CONTAINER = "preflight"

Json = Mapping[str, Any]


class Pod(NamedTuple):
    """One pod, and how far it is.

    node: where it runs or, of a DaemonSet, is to run; "" where that is not decided. reason: what
    keeps it from printing, "" where nothing does. has_log: its container has run. over: nothing
    more will come of itself. created: as Kubernetes writes it, which sorts.
    """

    name: str
    node: str
    created: str
    container: str
    reason: str
    has_log: bool
    over: bool


def pods_of(listed: Any, container: str | None) -> list[Pod]:
    """Of ``kubectl get pods -o json``; what is no pod is passed over."""
    items = listed.get("items") if isinstance(listed, dict) else None
    found = [_pod(item, container) for item in items or () if isinstance(item, dict)]
    return sorted((pod for pod in found if pod.name), key=lambda pod: (pod.node, pod.created))


def _pod(item: Json, wanted: str | None) -> Pod:
    metadata, spec, status = (_object(item, key) for key in ("metadata", "spec", "status"))
    names = [str(one.get("name")) for one in _objects(spec, "containers", "initContainers")]
    # Ours by its name, else the pod's first.
    name = wanted or (CONTAINER if CONTAINER in names or not names else names[0])
    states = _objects(status, "initContainerStatuses", "containerStatuses")
    state: Json = next((one for one in states if one.get("name") == name), {})
    waiting, ended = _object(state, "state", "waiting"), _object(state, "state", "terminated")
    before = _object(state, "lastState", "terminated")
    running = "running" in _object(state, "state")
    phase = str(status.get("phase", ""))
    has_log = bool(running or ended or before)
    reason = ""
    if status.get("reason"):  # Evicted, NodeLost, Shutdown: of the pod as a whole
        reason = _said(status)
    elif waiting and not (before and waiting.get("reason") != "CrashLoopBackOff"):
        reason = _said(waiting)
    elif not state:
        unscheduled = [
            _said(one)
            for one in _objects(status, "conditions")
            if one.get("type") == "PodScheduled" and one.get("status") == "False"
        ]
        reason = next(iter(unscheduled), "") or phase or "Kubernetes says nothing of it"
    if before and waiting:
        reason = f"{reason}; before that {_said(before)}"
    stuck = waiting.get("reason") in _STUCK
    return Pod(
        str(metadata.get("name", "")),
        str(spec.get("nodeName") or _destined(spec)),
        str(metadata.get("creationTimestamp", "")),
        name,
        reason,
        has_log and phase != "Unknown" and status.get("reason") != "Evicted",
        bool(ended) or stuck or phase in ("Failed", "Succeeded", "Unknown"),
    )


def _object(item: Json, *keys: str) -> Json:
    """The object that lies there, {} where none does."""
    found: Any = item
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _objects(item: Json, *keys: str) -> Iterator[Json]:
    for key in keys:
        listed = item.get(key)
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict):
                yield one


def _said(state: Json) -> str:
    """``ImagePullBackOff: Back-off pulling image "x"``, or how a container ended."""
    code = state.get("exitCode")
    ended = f"exit code {code}" if isinstance(code, int) else ""
    words = [state.get("reason"), ended, state.get("message")]
    return (
        ": ".join(" ".join(str(word).split()) for word in words if word)[:300] or "no reason given"
    )


def _destined(spec: Json) -> str:
    """The node that a DaemonSet's pod is for, before it is there."""
    required = _object(
        spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    )
    for term in _objects(required, "nodeSelectorTerms"):
        for field in _objects(term, "matchFields"):
            values = field.get("values")
            if field.get("key") == "metadata.name" and isinstance(values, list) and values:
                return str(values[0])
    return ""
