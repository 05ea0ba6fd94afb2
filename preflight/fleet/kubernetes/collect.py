"""Runs ``mooncake-preflight fleet collect``: the reports in the logs of a cluster's pods."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from preflight.base.output import Progress
from preflight.base.usage_error import UsageError
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import expand
from preflight.fleet.kubernetes.request import CONTAINER
from preflight.fleet.merge.command import Shown, answer, prepare
from preflight.fleet.node.records import START
from preflight.fleet.node.report import absent
from preflight.fleet.remote.program import SAYS, SAYS_END, SAYS_START, option_words
from preflight.fleet.remote.reply import TIMEOUT, NodeReply, quoted, report_in, report_of

# The finding that stands for a node whose pod has no log to read.
POD = "fleet.pod"
_GIVE = "a command, as 'kubectl --context prod'"
# kubectl takes some 50 MB of memory, and the API server has others to serve.
_AT_A_TIME = 8
_LOOK_SECONDS = 2.0
# A report has some ten kilobytes.
_MOST_LOG_BYTES = 8 << 20

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


class Kubectl(NamedTuple):
    """How kubectl is asked. timeout_seconds: for one call of it."""

    words: tuple[str, ...]
    namespace: str | None
    timeout_seconds: float


class PodReport(NamedTuple):
    """A report that came of a pod. own: it is the node's, and none that stands for it."""

    pod: NodePod
    report: Json
    own: bool


def run_fleet_collect(
    *,
    selector: str,
    namespace: str | None,
    container: str | None,
    nodes: str | None,
    kubectl: str,
    wait_seconds: float,
    timeout_seconds: float,
    shown: Shown,
) -> int:
    """Print the answer; returns the exit code. Raises UsageError where kubectl cannot be asked.

    container: None for ours.
    """
    expected = () if nodes is None else tuple(expand(nodes))
    asked = Kubectl(option_words("--kubectl", kubectl, _GIVE), namespace, timeout_seconds)
    prepare(shown)
    until = time.monotonic() + wait_seconds
    found: dict[str, PodReport] = {}
    progress = Progress(shown.verbosity >= 0, after_seconds=2)
    while True:
        pods = _pods(asked, selector, container)
        present = {pod.name for pod in pods}
        found = {name: one for name, one in found.items() if one.own or name in present}
        ask = [pod for pod in pods if not (pod.name in found and found[pod.name].own)]
        found |= {one.pod.name: one for one in _read(asked, ask, wait_seconds)}
        settled = all(one.own or one.pod.over for one in found.values())
        if (settled and (found or not wait_seconds)) or time.monotonic() >= until:
            break
        done = sum(one.own for one in found.values())
        progress.show(f"{done} of {len(pods)} pods have printed their report")
        time.sleep(_LOOK_SECONDS)
    progress.clear()
    if not found and not expected:
        where = "" if namespace is None else f" in namespace {namespace}"
        raise UsageError(
            f"no pod has {selector}{where}: apply what fleet manifest prints first, "
            "or give --selector and --namespace"
        )
    return answer(_by_node(found.values(), expected), shown)


def _by_node(found: Any, expected: Sequence[str]) -> list[Json]:
    """Return one report a node: of several pods the last that has one of its own."""
    best: dict[str, PodReport] = {}
    for one in sorted(found, key=lambda one: (one.own, one.pod.created)):
        best[one.report["node"]] = one
    reports = [one.report for one in best.values()]
    for node in expected:
        if node not in best:
            text = "no pod ran there: the node's taints, labels or free resources may not allow it"
            reports.append(absent(node, POD, text, "no pod", "a pod with its report"))
    return sorted(reports, key=lambda report: str(report["node"]))


def _read(kubectl: Kubectl, pods: Sequence[NodePod], wait_seconds: float) -> list[PodReport]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return list(threads.map(lambda pod: _of_pod(kubectl, pod, wait_seconds), pods))


def _of_pod(kubectl: Kubectl, pod: NodePod, wait_seconds: float) -> PodReport:
    """Return the report of one pod. Never raises for what a pod or its log is like."""
    node = pod.node or pod.name
    if not pod.has_log:
        return PodReport(pod, absent(node, POD, f"pod {pod.name}: {pod.reason}"), False)
    words = ["logs", pod.name, f"--container={pod.container}", f"--limit-bytes={_MOST_LOG_BYTES}"]
    try:
        log = _run(kubectl, words)
    except UsageError as error:
        text = f"the log of pod {pod.name} cannot be read: {error}"
        return PodReport(pod, absent(node, POD, text), False)
    lines = log.split(b"\n")
    ended = any(line.startswith(SAYS_END) for line in lines)
    # The line that a pod of another making prints need not be alone on its line.
    report = report_in(log)
    if isinstance(report, dict):
        line = log[log.rfind(START) :].split(b"\n")[0]
        own = (line, SAYS_START, SAYS_END + b"0")
        return PodReport(pod, report_of(NodeReply(node, own, (), 0), kubectl.timeout_seconds), True)
    if ended:
        said = [line for line in lines if line.strip() and not line.startswith(SAYS.encode())]
        answered = NodeReply(node, tuple(lines), tuple(said[-1:]), 0)
        return PodReport(pod, report_of(answered, kubectl.timeout_seconds), True)
    if pod.over:
        how = f"{pod.reason}: " if pod.reason else ""
        return PodReport(pod, absent(node, POD, f"pod {pod.name}: {how}{report.reason}"), False)
    text = f"pod {pod.name} runs, and had printed no report after {wait_seconds:g} s"
    return PodReport(pod, absent(node, TIMEOUT, text), False)


def _pods(kubectl: Kubectl, selector: str, container: str | None) -> list[NodePod]:
    import json

    words = ["get", "pods", f"--selector={selector}", "--output=json"]
    listed = _run(kubectl, words)
    try:
        return pods_of(json.loads(listed), container)
    except (ValueError, RecursionError):
        said = quoted(listed.strip().partition(b"\n")[0])
        raise UsageError(f"{kubectl.words[0]} get pods printed no JSON: {said}") from None


def _run(kubectl: Kubectl, words: Sequence[str]) -> bytes:
    """Run kubectl and return its standard output.

    Raises UsageError with kubectl's own last words.
    """
    import subprocess

    limit = kubectl.timeout_seconds
    command = [*kubectl.words, *words, f"--request-timeout={limit:g}s"]
    if kubectl.namespace is not None:
        command.append(f"--namespace={kubectl.namespace}")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            # Its own limit comes first, and says more.
            timeout=limit + 5,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror}: give it with --kubectl") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{shlex.join(command[:3])} did not end within {limit + 5:g} s") from None
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), b"")
        said = quoted(last) or f"ended with exit code {done.returncode}"
        raise UsageError(f"{command[0]}: {said}")
    return done.stdout


class NodePod(NamedTuple):
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


def pods_of(listed: Any, container: str | None) -> list[NodePod]:
    """Return the pods of ``kubectl get pods -o json``; what is no pod is passed over."""
    items = listed.get("items") if isinstance(listed, dict) else None
    found = [_pod(item, container) for item in items or () if isinstance(item, dict)]
    return sorted((pod for pod in found if pod.name), key=lambda pod: (pod.node, pod.created))


def _pod(item: Json, wanted: str | None) -> NodePod:
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
    return NodePod(
        str(metadata.get("name", "")),
        str(spec.get("nodeName") or _destined(spec)),
        str(metadata.get("creationTimestamp", "")),
        name,
        reason,
        has_log and phase != "Unknown" and status.get("reason") != "Evicted",
        bool(ended) or stuck or phase in ("Failed", "Succeeded", "Unknown"),
    )


def _object(item: Json, *keys: str) -> Json:
    """Return the object that lies at ``keys``, {} where none does."""
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
    """Return why a container waits or how it ended.

    As ``ImagePullBackOff: Back-off pulling image "x"``, or its exit code.
    """
    code = state.get("exitCode")
    ended = f"exit code {code}" if isinstance(code, int) else ""
    words = [state.get("reason"), ended, state.get("message")]
    return (
        ": ".join(" ".join(str(word).split()) for word in words if word)[:300] or "no reason given"
    )


def _destined(spec: Json) -> str:
    """Return the node that a DaemonSet's pod is for, before it is there."""
    required = _object(
        spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    )
    for term in _objects(required, "nodeSelectorTerms"):
        for field in _objects(term, "matchFields"):
            values = field.get("values")
            if field.get("key") == "metadata.name" and isinstance(values, list) and values:
                return str(values[0])
    return ""
