"""Kubernetes manifests: the process of each container of each pod."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from checks.unknown import Unknown
from preflight.launches.container import ContainerSettings, Mount, Size
from preflight.launches.documents import Node, load_documents
from preflight.launches.launch_source import Origin, Reading, SourceNote, Word, joined
from preflight.launches.shell_script import read_words

# Where the pods of each kind stand.
_PODS: dict[str, tuple[tuple[str, ...], ...]] = {
    "Pod": (("spec",),),
    "CronJob": (("spec", "jobTemplate", "spec", "template", "spec"),),
    "LeaderWorkerSet": (
        ("spec", "leaderWorkerTemplate", "leaderTemplate", "spec"),
        ("spec", "leaderWorkerTemplate", "workerTemplate", "spec"),
    ),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"),
        (("spec", "template", "spec"),),
    ),
}
_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
_QUANTITY = re.compile(r"(\d{1,20})(?:\.(\d{1,20}))?(m|[kKMGTPE]i?|[eE]\d{1,2})?", re.ASCII)
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def read_kubernetes(text: str, name: str, environment: Mapping[str, str | Word]) -> Reading:
    """The process of each container; a pod gets nothing of ``environment``, which is the caller's.

    Raises SourceError, as load_documents does.
    """
    readings: list[Reading] = []
    for item in _objects(load_documents(text, name)):
        kind = item.at("kind").text or ""
        called = item.at("metadata", "name").text or ""
        if kind and kind not in _PODS:
            said = f"{kind} {called} starts no process that is read here"
            note = SourceNote("kind-not-read", said, Origin(name, item.line))
            readings.append(Reading((), (note,)))
        for path in _PODS.get(kind, ()):
            pod = item.at(*path)
            for container in pod.at("containers").items:
                role = ("worker",) if "workerTemplate" in path else ()
                own = container.at("name").text or ""
                wrapper = ("kubernetes", f"{kind}/{called}", *role, own)
                settings = _settings(pod, container)
                readings.append(_container(container, wrapper, name, settings))
            for container in pod.at("initContainers").items:
                said = f"init container {container.at('name').text or ''} is over by then: not read"
                note = SourceNote("init-container", said, Origin(name, container.line))
                readings.append(Reading((), (note,)))
    return joined(readings)


def _objects(documents: list[Node]) -> Iterator[Node]:
    """The objects of all documents, those of lists included."""
    for document in documents:
        for item in document.items or [document]:
            inner = item.at("items")
            yield from inner.items if item.at("kind").text == "List" or inner.items else (item,)


def _container(
    container: Node, wrapper: tuple[str, ...], name: str, settings: ContainerSettings
) -> Reading:
    notes: list[SourceNote] = []
    origin = Origin(name, container.line)
    variables: dict[str, Word] = {}
    for source in container.at("envFrom").items:
        said = "envFrom: the variables of a ConfigMap or Secret are unknown here"
        notes.append(SourceNote("env-from-not-read", said, Origin(name, source.line)))
    for item in container.at("env").items:
        key = item.at("name").text
        value = item.at("value")
        if key and item.at("valueFrom").fields:
            variables[key] = Word(f"$({key})", Origin(name, item.line), (key,))
        elif key:
            where = Origin(name, value.line or item.line)
            variables[key] = _expanded(value.text or "", variables, where)
    words = [
        _expanded(item.text, variables, Origin(name, item.line))
        for field in ("command", "args")
        for item in container.at(field).items
        if item.text is not None
    ]
    if not container.at("command").items:
        said = (
            f"container {wrapper[-1]} runs its image's own program, which the manifest does not "
            "show: name it under command"
        )
        notes.append(SourceNote("image-command", said, origin))
        # An image without an entrypoint runs its args; one with an entrypoint gets flags.
        words = [] if words and words[0].text.startswith("-") else words
    inner = read_words(words, variables, inside=True)
    commands = tuple(
        command._replace(wrappers=(wrapper, *command.wrappers), container=settings)
        for command in inner.commands
    )
    return Reading(commands, (*notes, *inner.notes))


def _expanded(text: str, variables: Mapping[str, Word], origin: Origin) -> Word:
    """``$(NAME)`` as the kubelet fills it in: an unknown name stays, ``$$`` becomes ``$``."""
    unresolved: list[str] = []

    def fill(match: re.Match[str]) -> str:
        if match.group(1):
            return "$"
        word = variables.get(match.group(2))
        if word is None:
            return match.group()
        unresolved.extend(word.unresolved)
        return word.text if len(word.text) <= 2**16 else match.group()

    filled = _REFERENCE.sub(fill, text) if len(text) <= 2**16 else text
    return Word(filled if len(filled) <= 2**20 else text, origin, tuple(dict.fromkeys(unresolved)))


def _settings(pod: Node, container: Node) -> ContainerSettings:
    limits = container.at("resources", "limits").fields
    pages = {**container.at("resources", "requests").fields, **limits}
    volumes = {item.at("name").text: item for item in pod.at("volumes").items}
    mounts = [
        _mount(item, volumes.get(item.at("name").text, Node(None)))
        for item in container.at("volumeMounts").items
    ]
    shm = [mount for mount in mounts if mount.target.rstrip("/") == "/dev/shm"]
    own, shared = container.at("securityContext"), pod.at("securityContext")
    capabilities = own.at("capabilities")
    return ContainerSettings(
        engine="kubernetes",
        image=container.at("image").text or "",
        ipc="host" if pod.at("hostIPC").text == "true" else None,
        network="host" if pod.at("hostNetwork").text == "true" else None,
        shm_size_bytes=shm[-1].size_bytes if shm else None,
        resources={key: node.text for key, node in limits.items() if "/" in key and node.text},
        privileged=own.at("privileged").text == "true",
        cap_add=tuple(item.text for item in capabilities.at("add").items if item.text),
        cap_drop=tuple(item.text for item in capabilities.at("drop").items if item.text),
        security_opt=tuple(_profiles(own, shared)),
        mounts=tuple(mounts),
        memory_bytes=_size(limits.get("memory", Node(None)), "the memory limit"),
        hugepages_bytes={
            key.removeprefix("hugepages-"): size
            for key, node in pages.items()
            if key.startswith("hugepages-") and (size := _size(node, key)) is not None
        },
        user=own.at("runAsUser").text or shared.at("runAsUser").text,
    )


def _mount(mount: Node, volume: Node) -> Mount:
    """A mount of one of the pod's volumes; a medium of Memory is a tmpfs, HugePages a hugetlbfs."""
    target = mount.at("mountPath").text or ""
    read_only = mount.at("readOnly").text == "true"
    if path := volume.at("hostPath", "path").text:
        return Mount(target, "bind", path, read_only)
    if "emptyDir" not in volume.fields:
        return Mount(target, "volume", mount.at("name").text or "", read_only)
    medium = volume.at("emptyDir", "medium").text or ""
    size = _size(volume.at("emptyDir", "sizeLimit"), f"the size of {target}")
    if medium.startswith("HugePages"):
        return Mount(target, "hugepages", medium.partition("-")[2], read_only, size)
    return Mount(target, "tmpfs" if medium == "Memory" else "emptyDir", "", read_only, size)


def _profiles(own: Node, shared: Node) -> Iterator[str]:
    """Security profiles as Docker writes them: ``seccomp=unconfined``."""
    for key, name in (("seccompProfile", "seccomp"), ("appArmorProfile", "apparmor")):
        profile = own.at(key) if own.at(key).fields else shared.at(key)
        if said := profile.at("localhostProfile").text or profile.at("type").text:
            yield f"{name}={'unconfined' if said == 'Unconfined' else said}"


def _size(node: Node, what: str) -> Size:
    if node.text is None:
        return None
    size = quantity(node.text)
    return Unknown(f"{what} is {node.text!r}, which is no quantity") if size is None else size


def quantity(text: str) -> int | None:
    """``64Gi`` or ``64G`` or ``1e9`` as Kubernetes reads it, rounded up; None for no quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    whole, fraction, suffix = match.groups()
    number, divisor = int(whole + (fraction or "")), 10 ** len(fraction or "")
    if not suffix:
        scale = 1
    elif suffix == "m":
        scale, divisor = 1, divisor * 1000
    elif suffix[0] in "eE" and suffix[1:].isdigit():
        scale = 10 ** int(suffix[1:])
    else:
        scale = (1024 if suffix.endswith("i") else 1000) ** _POWERS[suffix[0]]
    return int(-(-number * scale // divisor))
