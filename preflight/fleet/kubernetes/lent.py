"""What the launch's own container is given of its node, for the pod that checks in its place."""

from __future__ import annotations

import os
from typing import NamedTuple

from preflight.fleet.kubernetes.manifest import quantity
from preflight.fleet.kubernetes.records import Lent
from preflight.inputs.launch_words import LaunchWords
from preflight.launches.container import ContainerSettings


class FromLaunch(NamedTuple):
    """lent: nothing, where the launch starts no container. notes: what cannot be had."""

    lent: Lent
    notes: tuple[str, ...]


_NOTHING = Lent(False, False, False, (), False, None, {}, None, {})


def lent_by(words: LaunchWords) -> FromLaunch:
    """Of the container that runs SGLang, else of the first. Raises UsageError for no launch."""
    from preflight.inputs.host_source import launch_of, open_host
    from preflight.processes.processes import Kind, classify

    found = launch_of(words, open_host("/"))
    if found is None:
        return FromLaunch(_NOTHING, ())
    commands = [one for one in found[0].reading.commands if one.container is not None]
    commands.sort(key=lambda one: classify(one)[0] is not Kind.SGLANG)
    settings = [one.container for one in commands if one.container is not None]
    if not settings:
        return FromLaunch(_NOTHING, ())
    lent, notes = _lent(settings[0])
    if any(one != settings[0] for one in settings):
        notes.append(
            f"the launch has several containers: the pod is given what {commands[0].origin} has"
        )
    return FromLaunch(lent, tuple(notes))


def _lent(settings: ContainerSettings) -> tuple[Lent, list[str]]:
    asked = {
        **{f"hugepages-{size}": value for size, value in settings.hugepages_bytes.items()},
        "memory": settings.memory_bytes,
    }
    resources = {name: quantity(value) for name, value in asked.items() if isinstance(value, int)}
    # Folders of the node, read-only; what else is mounted is named, for it is not there.
    mounts: dict[str, str] = {}
    notes = []
    for mount in settings.mounts:
        if mount.kind in ("tmpfs", "emptyDir", "hugepages"):
            continue
        # A name with a dot is a file's, as /etc/localtime.yaml: only folders can be asked for.
        folder = mount.source.startswith("/") and "." not in os.path.basename(mount.source)
        if mount.kind == "bind" and folder:
            mounts[mount.source] = mount.target
        else:
            what = mount.source or mount.kind
            notes.append(f"{what} is not mounted at {mount.target}: what lies there is not seen")
    user = settings.user
    lent = Lent(
        settings.network == "host",
        settings.ipc == "host",
        settings.privileged,
        tuple(name.upper().removeprefix("CAP_") for name in settings.cap_add),
        "seccomp=unconfined" in settings.security_opt,
        int(user) if user is not None and user.isdecimal() else None,
        {**resources, **settings.resources},
        settings.shm_size_bytes if isinstance(settings.shm_size_bytes, int) else None,
        mounts,
    )
    return lent, notes
