"""A plan for a Pod, as a strategic-merge patch; what Kubernetes has no field for is a note."""

from __future__ import annotations

from typing import Any

from checks.base.finding import Kind
from checks.base.units import GIB, MIB, round_up
from preflight.base.shell import quote
from preflight.settings.commands import header
from preflight.settings.dialects import ArtefactNames, Rendering, service_name
from preflight.settings.dialects.environment import variables
from preflight.settings.dialects.limits import ulimits
from preflight.settings.records import Plan

_SHM_VOLUME = "mooncake-shm"
# Where the kinds of Kubernetes itself have their pod; kubectl knows how to merge into no others.
_POD_PATHS: dict[str, tuple[str, ...]] = {
    "Pod": ("spec",),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"),
        ("spec", "template", "spec"),
    ),
}


def kubernetes(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a patch for ``kubectl patch --type strategic``, or for kustomize."""
    import yaml

    kept, removed, notes = variables(plan)
    container: dict[str, Any] = {"name": service_name(plan, names)}
    environment: list[dict[str, str]] = []
    for name, value in kept.items():
        if name == "CUDA_VISIBLE_DEVICES":
            notes.append("CUDA_VISIBLE_DEVICES is left out: a pod numbers its own GPUs from 0")
            removed.append(name)
        else:
            # The kubelet fills in $(NAME), and takes $$ for a dollar sign.
            environment.append({"name": name, "value": value.replace("$", "$$")})
    environment += [{"name": name, "$patch": "delete"} for name in removed]
    if environment:
        container["env"] = environment
    resources = _resources(plan, names)
    if resources:
        container["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    security = _security_context(plan)
    if security:
        container["securityContext"] = security
    pod: dict[str, Any] = {}
    if plan.of(Kind.NETWORK):
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if plan.of(Kind.IPC):
        pod["hostIPC"] = True
    shm = next((int(setting.wanted) for setting in plan.of(Kind.SHM_SIZE)), 0)
    if shm:
        container["volumeMounts"] = [{"name": _SHM_VOLUME, "mountPath": "/dev/shm"}]
        empty = {"medium": "Memory", "sizeLimit": _quantity(shm)}
        pod["volumes"] = [{"name": _SHM_VOLUME, "emptyDir": empty}]
    pod["containers"] = [container]
    path = _POD_PATHS.get(plan.workload.kind, ("spec",))
    whole: dict[str, Any] = pod
    for key in reversed(path):
        whole = {key: whole}
    text: str = yaml.safe_dump(whole, sort_keys=False, width=1000)
    first = header(plan.source, f"kubectl patch {_of(plan)} --type strategic --patch-file FILE")
    return Rendering(f"{first}\n{text.rstrip()}", (*notes, *_notes(plan, names)))


def _of(plan: Plan) -> str:
    """Return kubectl's options that name the manifest: a running pod takes no other resources."""
    manifest = plan.source if plan.workload.kind in _POD_PATHS else "POD.yaml"
    return f"--local -o yaml -f {quote(manifest)}"


def _resources(plan: Plan, names: ArtefactNames) -> dict[str, str]:
    """Return requests and limits alike: Kubernetes takes huge pages in no other way."""
    resources: dict[str, str] = {}
    shm = sum(int(setting.wanted) for setting in plan.of(Kind.SHM_SIZE))
    for setting in plan.of(Kind.MEMORY):
        # What is written to an emptyDir in memory counts as the container's; a limit that the pod
        # has and that is enough has it counted in.
        counted_in = setting.now == setting.wanted
        resources["memory"] = _quantity(int(setting.wanted) + (0 if counted_in else shm))
    for setting in plan.of(Kind.HUGEPAGES):
        resources[f"hugepages-{setting.name}"] = _quantity(int(setting.wanted))
    gpus = plan.value(Kind.GPUS, "gpus")
    if gpus is not None and not plan.workload.has_gpus:
        resources["nvidia.com/gpu"] = gpus
    # One that has a resource of another name would ask for both, and never be scheduled.
    if _asks_for_rdma(plan):
        resources[names.rdma_resource] = "1"
    return resources


def _asks_for_rdma(plan: Plan) -> bool:
    return bool(plan.of(Kind.DEVICE)) and not plan.workload.has_rdma


def _quantity(size_bytes: int) -> str:
    """Return a size in GiB or MiB if exact, else in MiB rounded up."""
    if size_bytes % GIB == 0:
        return f"{size_bytes // GIB}Gi"
    return f"{round_up(size_bytes, MIB) // MIB}Mi"


def _security_context(plan: Plan) -> dict[str, Any]:
    """Return the capabilities and the seccomp profile; a list replaces the manifest's."""
    context: dict[str, Any] = {}
    added = [setting.name for setting in plan.of(Kind.CAPABILITY)]
    if added:  # the list replaces the manifest's own
        kept = (name for name in plan.workload.capabilities if name not in added)
        context["capabilities"] = {"add": [*added, *kept]}
    if any(s.name == "seccomp" and s.wanted == "unconfined" for s in plan.of(Kind.SECURITY)):
        context["seccompProfile"] = {"type": "Unconfined"}
    return context


def _notes(plan: Plan, names: ArtefactNames) -> list[str]:
    """Return notes on settings that a patch cannot make."""
    notes = []
    kind = plan.workload.kind
    if kind and kind not in _POD_PATHS:
        notes.append(f"kubectl cannot patch a {kind}: write these fields into its pod's spec")
    for name in ulimits(plan):
        instead = ", or runs as user 0 with IPC_LOCK" if name == "memlock" else ""
        notes.append(
            f"{name} has no field in Kubernetes: a pod inherits it from the container "
            f"runtime (plan --format containerd, on each node){instead}"
        )
    if _asks_for_rdma(plan):
        notes.append(
            f"{names.rdma_resource} is what the RDMA device plugin calls its resource: "
            "--rdma-resource names another"
        )
    for planned in plan.planned(Kind.MEMORY):
        notes.append(f"memory: {planned.reasons[0].text}: raise it to what you have measured")
    if plan.pools:
        text = "the Kubernetes node must have the huge pages: see --format sysctl, sysfs or cmdline"
        notes.append(text)
    return notes
