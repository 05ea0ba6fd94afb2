"""A plan for one container, as options of docker run and as a compose file to merge."""

from __future__ import annotations

from typing import Any

from checks.base.finding import Kind
from preflight.base.shell import quote, visible
from preflight.settings.commands import header
from preflight.settings.dialects import ArtefactNames, Rendering, service_name
from preflight.settings.dialects.environment import variables
from preflight.settings.dialects.limits import container_limits
from preflight.settings.records import Plan


def docker(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return one option a line; the image and its command follow them."""
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
    """Return the device files that can be named, and notes: behind a colon stands another path."""
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
    file = plan.source if plan.workload.container and not plan.workload.kind else "compose.yaml"
    first = header(plan.source, f"docker compose -f {quote(file)} -f FILE up")
    return Rendering(f"{first}\n{text.rstrip()}", (*notes, *_on_the_host(plan)))


def _literal(value: str) -> str:
    """Return a value for Compose, which fills in ${...} of each and takes $$ for a dollar sign."""
    return value.replace("$", "$$")
