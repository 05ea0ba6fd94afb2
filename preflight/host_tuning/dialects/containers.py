"""What a plan gives a container: environment, options of docker run, Compose, a Pod's patch."""

from __future__ import annotations

from typing import Any

from checks.framework.finding import Kind
from checks.framework.units import GIB, MIB, round_up
from preflight.base.shell import is_hidden, posix_assignment, quote, visible
from preflight.host_tuning.commands import header, is_variable
from preflight.host_tuning.dialects import ArtefactNames, Rendering, service_name
from preflight.host_tuning.dialects.host import container_limits, ulimits
from preflight.host_tuning.records import Plan
from preflight.launches.kubernetes_pods import POD_PATHS


def variables(plan: Plan) -> tuple[dict[str, str], list[str], list[str]]:
    """Return (variables to set, with their values; names to remove; notes on variables left
    out).
    """
    kept: dict[str, str] = {}
    removed: list[str] = []
    why = "because its name looks like that of a secret: pass it as you do today"
    notes = [f"{name} is left out, {why}" for name in plan.left_out]
    for setting in plan.of(Kind.ENVIRONMENT):
        if not is_variable(setting.name):
            notes.append(f"{setting.name!r} is left out: it is not a valid name of a variable")
        elif setting.wanted or not setting.now:  # of the launch: set to nothing, which counts
            kept[setting.name] = setting.wanted
        else:
            removed.append(setting.name)
    return kept, removed, notes


def env(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a file of plain NAME=value lines for Docker's --env-file and EnvironmentFile=."""
    kept, removed, notes = variables(plan)
    lines = []
    for name, value in kept.items():
        if any(map(is_hidden, value)):
            cannot = "an env file cannot hold its line breaks or control characters"
            notes.append(f"{name} is left out: {cannot}")
            continue
        if value != value.strip() or value[:1] in "\"'" or "\\" in value:
            notes.append(f"{name}: docker reads {value!r} literally, systemd does not")
        lines.append(f"{name}={value}")
    notes += [f"{name} must not be set: remove it where it is set" for name in removed]
    return _of_lines(plan, "docker run --env-file", lines, notes)


def _of_lines(plan: Plan, use: str, lines: list[str], notes: list[str]) -> Rendering:
    """Return a file of ``lines`` below a header that names its use; "" without lines."""
    if not lines:
        return Rendering("", tuple(notes) or ("the launch sets no variable",))
    return Rendering("\n".join([header(plan.source, use), *lines]), tuple(notes))


def shell(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a file of exports and unset lines, which ``.`` reads in a POSIX shell."""
    kept, removed, notes = variables(plan)
    lines = [posix_assignment(name, value) for name, value in kept.items()]
    lines += [f"unset {name}" for name in removed]
    return _of_lines(plan, ". FILE", lines, notes)


def docker(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return options of ``docker run``, one a line.

    The user writes the image and its command after them.
    """
    options: list[tuple[str, str]] = []
    if plan.of(Kind.NETWORK):
        options.append(("--network", "host"))
    options += _shared_memory(plan)
    gpus = plan.value(Kind.GPUS, "gpus")
    if gpus is not None:
        options.append(("--gpus", "all"))
    limits, left = container_limits(plan)
    for name, value in limits.items():
        number = "-1" if value == "unlimited" else value
        options.append(("--ulimit", f"{name}={number}:{number}"))
    options += [("--cap-add", setting.name) for setting in plan.of(Kind.CAPABILITY)]
    profiles = [f"{s.name}={s.wanted}".rstrip("=") for s in plan.of(Kind.SECURITY)]
    options += [("--security-opt", profile) for profile in profiles]
    devices, unnamed = _devices(plan)
    options += [("--device", device) for device in devices]
    kept, removed, notes = variables(plan)
    notes += [*left, *unnamed]
    options += [("--env", f"{name}={value}") for name, value in kept.items()]
    notes += [f"{name} must not be set: remove its --env" for name in removed]
    if gpus is not None:
        notes.append(f"the launch uses {gpus} GPUs, by their numbers on the host")
    lines = [f"{option} {quote(value)}" for option, value in options]
    return Rendering(" \\\n".join(lines), (*notes, *_on_the_host(plan)))


def _shared_memory(plan: Plan) -> list[tuple[str, str]]:
    """Return the option for the host's IPC, or else for a size: with IPC a size has no effect."""
    if plan.of(Kind.IPC):
        return [("--ipc", "host")]
    return [("--shm-size", setting.wanted) for setting in plan.of(Kind.SHM_SIZE)]


def _devices(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the device files whose names have no colon, and a note on each other one."""
    names = [setting.name for setting in plan.of(Kind.DEVICE)]
    message = "is left out: docker takes what is behind its colon for a place in the container"
    notes = [f"the device {visible(name)} {message}" for name in names if ":" in name]
    return [name for name in names if ":" not in name], notes


def _on_the_host(plan: Plan) -> list[str]:
    """Return a note that huge pages are set on the host, if the plan has any."""
    if not plan.pools:
        return []
    return ["huge pages are the host's: see --format sysctl, sysfs or cmdline"]


def compose(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a file to merge: ``docker compose -f compose.yaml -f FILE config``."""
    import yaml

    service: dict[str, Any] = {}
    if plan.of(Kind.NETWORK):
        service["network_mode"] = "host"
    for option, value in _shared_memory(plan):
        service["ipc" if option == "--ipc" else "shm_size"] = value
    limits, left = container_limits(plan)
    numbers = {name: -1 if value == "unlimited" else int(value) for name, value in limits.items()}
    if numbers:
        service["ulimits"] = {name: {"soft": n, "hard": n} for name, n in numbers.items()}
    devices, unnamed = _devices(plan)
    lists = {
        "cap_add": [setting.name for setting in plan.of(Kind.CAPABILITY)],
        "security_opt": [f"{s.name}:{s.wanted}".rstrip(":") for s in plan.of(Kind.SECURITY)],
        "devices": [f"{name}:{name}" for name in devices],
    }
    service |= {key: [*map(_literal, values)] for key, values in lists.items() if values}
    kept, removed, notes = variables(plan)
    notes += [*left, *unnamed]
    if kept:
        service["environment"] = {name: _literal(value) for name, value in kept.items()}
    notes += [f"{name} must not be set: remove it from environment" for name in removed]
    gpus = plan.value(Kind.GPUS, "gpus")
    if gpus is not None and not plan.workload.has_gpus:  # Compose keeps both reservations
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
        notes.append(f"the launch uses {gpus} GPUs, by their numbers on the host")
    if plan.of(Kind.NETWORK):
        notes.append("network_mode: host excludes networks: and ports: of the same service")
        notes.append("names of other services are not found there: write addresses in their place")
    services = {service_name(plan, names): service}
    text: str = yaml.safe_dump({"services": services}, sort_keys=False, width=1000)
    file = plan.source if plan.workload.container and not plan.workload.manifest else "compose.yaml"
    first = header(plan.source, f"docker compose -f {quote(file)} -f FILE up")
    return Rendering(f"{first}\n{text.rstrip()}", (*notes, *_on_the_host(plan)))


def _literal(value: str) -> str:
    """Return a value for Compose, which fills in ${...} of each and takes $$ for a dollar sign."""
    return value.replace("$", "$$")


_SHM_VOLUME = "mooncake-shm"


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
    path = POD_PATHS.get(plan.workload.manifest, ("spec",))
    whole: dict[str, Any] = pod
    for key in reversed(path):
        whole = {key: whole}
    text: str = yaml.safe_dump(whole, sort_keys=False, width=1000)
    first = header(plan.source, f"kubectl patch {_of(plan)} --type strategic --patch-file FILE")
    return Rendering(f"{first}\n{text.rstrip()}", (*notes, *_notes(plan, names)))


def _of(plan: Plan) -> str:
    """Return kubectl's options that name the manifest: a running pod takes no other resources."""
    manifest = plan.source if plan.workload.manifest in POD_PATHS else "POD.yaml"
    return f"--local -o yaml -f {quote(manifest)}"


def _resources(plan: Plan, names: ArtefactNames) -> dict[str, str]:
    """Return the container's resources by name, for requests and limits alike: Kubernetes takes
    huge pages only if both are equal.
    """
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
    """Return the capabilities, those of the manifest included, and the seccomp profile."""
    context: dict[str, Any] = {}
    added = [setting.name for setting in plan.of(Kind.CAPABILITY)]
    if added:  # the list replaces the manifest's own
        kept = (name for name in plan.workload.capabilities if name not in added)
        context["capabilities"] = {"add": [*added, *kept]}
    if any(s.name == "seccomp" and s.wanted == "unconfined" for s in plan.of(Kind.SECURITY)):
        context["seccompProfile"] = {"type": "Unconfined"}
    return context


def _notes(plan: Plan, names: ArtefactNames) -> list[str]:
    """Return notes on what a patch cannot set, and on values that the user must check."""
    notes = []
    manifest_kind = plan.workload.manifest
    if manifest_kind and manifest_kind not in POD_PATHS:  # kubectl merges into no others
        text = "write these fields into its pod's spec"
        notes.append(f"kubectl cannot patch a {manifest_kind}: {text}")
    inherits = (
        "a pod inherits it from the container runtime (plan --format containerd, on each node)"
    )
    for name in ulimits(plan):
        instead = ", or runs as user 0 with IPC_LOCK" if name == "memlock" else ""
        notes.append(f"{name} has no field in Kubernetes: {inherits}{instead}")
    if _asks_for_rdma(plan):
        calls = "is what the RDMA device plugin calls its resource: --rdma-resource names another"
        notes.append(f"{names.rdma_resource} {calls}")
    for planned in plan.planned(Kind.MEMORY):
        notes.append(f"memory: {planned.reasons[0].text}: raise it to what you have measured")
    if plan.pools:
        see = "see --format sysctl, sysfs or cmdline"
        notes.append(f"the Kubernetes node must have the huge pages: {see}")
    return notes
