"""Kubernetes manifests: the process of each container of each pod."""

from __future__ import annotations

import binascii
import posixpath
import re
from collections.abc import Iterator, Mapping

from checks.framework.regex import regex
from checks.framework.units import MIB
from checks.framework.unknown import Inside, Unknown
from preflight.launches import source
from preflight.launches.container import ContainerSettings, Mount, Published, Size
from preflight.launches.documents import Node, load_documents
from preflight.launches.kubernetes_pods import Pod, not_read, pods
from preflight.launches.launch_files import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, SourceNote, Word, brief, only_note
from preflight.launches.variables import unknown_needed

_REFERENCE = regex(r"\$(?:(\$)|\(([^)]*)\))")
_NAME = regex(r"[A-Z_][A-Z0-9_]*")
# Variables that the kubelet makes of the services of a namespace.
_SERVICE = regex(r"_SERVICE_(HOST|PORT\w*)$|_PORT(_\w+)?$|^KUBERNETES_")
# Kinds of Kubernetes and of operators that start no process.
_STARTS_NOTHING = regex(
    r"(Account|Autoscaler|Binding|Budget|Claim|Class|Definition|Domain|Endpoints|EndpointSlice"
    r"|Gateway|Ingress|Model|ModelServer|Monitor|Namespace|Network|Objective|Policy|Pool|PodGroup"
    r"|Queue|Quota|Range|Role|Route|Rule|Template|VirtualService|Volume|^Service)$"
)
# More than any manifest has; one whose roles share a template can ask for any number.
_MOST_CONTAINERS = 10_000
_QUANTITY = regex(
    r"\+?(?=\.?\d)(\d{0,20})(?:\.(\d{0,20}))?([num]|k|[MGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?",
    re.ASCII,
)
# In a quantity that a template, a shell or a reader of the guide fills in.
_FILLED_IN = regex(r"[$<{]")
DataByKind = dict[str, dict["str | None", Mapping[str, Node]]]
_SMALL = {"n": 9, "u": 6, "m": 3}  # powers of ten
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def read_kubernetes(text: str, name: str) -> Reading:
    """Return the process of each container in a manifest, with notes on parts that are not started
    or not read.

    An init container is read only if its restartPolicy is Always.

    Args:
        name: Of the manifest.

    Raises:
        SourceError: For broken YAML, or too many containers.
    """
    readings: list[Reading] = []
    objects: list[Node] = []
    for document in load_documents(text, name):
        for item in document.items or [document]:
            objects += item.at("items").items or [item] * (item.at("kind").text != "List")
    data_by_kind: DataByKind = {"configMap": {}, "secret": {}}
    for item in objects:
        if item.at("kind").text == "ConfigMap":
            data_by_kind["configMap"][item.at("metadata", "name").text] = item.at("data").fields
        elif item.at("kind").text == "Secret":
            data = {**_decode(item), **item.at("stringData").fields}
            data_by_kind["secret"][item.at("metadata", "name").text] = data
    left, pod_count = _MOST_CONTAINERS, 0
    for item in objects:
        resource = item.at("kind").text or ""
        called = item.at("metadata", "name").text or ""
        has_pods = False
        for pod in pods(item):
            # An init container that is kept running is one of those that run beside each other.
            first, others = (pod.spec.at(f).items for f in ("initContainers", "containers"))
            containers = [*(c for c in first if c.at("restartPolicy").text == "Always"), *others]
            has_pods = has_pods or pod.copies == 0 or bool(containers)
            if pod.copies == 0:
                which = " ".join((resource, called, *pod.role))
                message = f"{which} is not started: the manifest asks for 0 of it"
                at = Origin(name, pod.spec.line or item.line)
                readings.append(only_note("not-started", message, at))
                continue
            pod_count += bool(others)
            left -= len(containers)
            if left < 0:
                raise source.SourceError(f"{name} has more than {_MOST_CONTAINERS} containers")
            for container in containers:
                container_name = container.at("name").text or ""
                place = source.Place("pod", (f"{resource}/{called}", *pod.role), container_name)
                reader = _Container(container, place, name, pod, data_by_kind)
                readings.append(reader.reading())
            notes = (*_refusal_notes(pod.spec, name, resource), *_init_notes(pod.spec, name))
            readings.append(Reading((), notes))
        at = Origin(name, item.line)
        readings += (only_note("resource-not-read", message, at) for message in not_read(item))
        if resource and not has_pods and resource not in ("ConfigMap", "Secret"):
            message = f"what {resource} {called} starts is not read: give the pods that it makes"
            reading = only_note("resource-not-read", message, at)
            if _STARTS_NOTHING.search(resource):
                reading = only_note("kind-not-read", f"{resource} {called} starts no process", at)
            readings.append(reading)
    if pod_count > 1:
        message = (
            f"{pod_count} pods are read as if one of each ran on one host: give only those that do"
        )
        readings.append(only_note("pods-together", message, Origin(name)))
    return source.join(readings)


def _decode(secret: Node) -> dict[str, Node]:
    """Return the data of a Secret, decoded from base64; a value that is no text is left out."""
    decoded = {}
    for key, tree in secret.at("data").fields.items():
        try:
            text = binascii.a2b_base64(tree.text or "").decode()
        except (ValueError, UnicodeDecodeError):
            continue
        decoded[key] = tree._replace(value=text)
    return decoded


def _mounted_files(
    pod: Node, container: Node, data_by_kind: DataByKind, name: str
) -> dict[str, Word]:
    """Return path -> content of the ConfigMaps and Secrets that a container mounts.

    Args:
        pod: Its spec.
        name: Of the manifest.
    """
    volumes: dict[str | None, list[tuple[str, Node]]] = {}
    for volume in pod.at("volumes").items:
        chosen = volumes.setdefault(volume.at("name").text, [])
        for each in (volume, *volume.at("projected", "sources").items):
            for reference, by_name in ((each.at(key), d) for key, d in data_by_kind.items()):
                called = reference.at("name").text or reference.at("secretName").text
                data = by_name.get(called, {}) if reference.fields else {}
                items = reference.at("items").items
                paths = {item.at("key").text: item.at("path").text for item in items}
                left = (each for each in data.items() if not paths or each[0] in paths)
                chosen += [(paths.get(key) or key, value) for key, value in left]
    files: dict[str, Word] = {}
    for mount in container.at("volumeMounts").items:
        target, inner = mount.at("mountPath").text or "", mount.at("subPath").text
        for path, tree in volumes.get(mount.at("name").text, []):
            if inner is None or inner == path:
                where = target if inner else posixpath.join(target, path)
                files[posixpath.normpath(where)] = Word(tree.text or "", Origin(name, tree.line))
    return files


def _init_notes(pod: Node, name: str) -> Iterator[SourceNote]:
    for container in pod.at("initContainers").items:
        if container.at("restartPolicy").text != "Always":
            called = container.at("name").text or ""
            message = f"init container {called} ends before the others start: not read"
            yield SourceNote("init-container", message, Origin(name, container.line))


class _Container:
    """One container of a pod, read for what it runs."""

    def __init__(
        self, tree: Node, place: source.Place, name: str, pod: Pod, data_by_kind: DataByKind
    ) -> None:
        """Prepare to read a container.

        Args:
            name: Of the manifest.
            data_by_kind: The data of ConfigMaps and Secrets, by the name of the object.
        """
        self.tree, self.place, self.name, self.pod = tree, place, name, pod
        self.data_by_kind = data_by_kind
        self.files = _mounted_files(pod.spec, tree, data_by_kind, name)
        # Whether variables may be set that the manifest does not show.
        self.open = pod.open
        self.variables: dict[str, Word] = {}
        self.last: dict[str | None, int] = {}  # where each variable is set last
        self.notes: list[SourceNote] = []

    def note(self, identifier: str, message: str, tree: Node) -> None:
        self.notes.append(SourceNote(identifier, message, Origin(self.name, tree.line)))

    def reading(self) -> Reading:
        """Return the commands of the container, with its variables, files and settings."""
        origin = Origin(self.name, self.tree.line)
        for name, text in self.pod.operator_sets.items():
            open_word = Word(f"$({name})", origin, (name,), inside=Inside("operator", name))
            self.variables[name] = open_word if text is None else Word(text, origin)
        complete = self.read_sources()
        self.read_variables()
        if not complete:
            origin = Origin(self.name, self.tree.at("envFrom").line or self.tree.line)
            self.variables.update(unknown_needed(self.variables, origin))
        argv = [
            self.fill_in(item, f"{field} of container {self.place.container}")
            for field in ("command", "args")
            for item in self.tree.at(field).items
            if item.text is not None
        ]
        argv = [word._replace(text=self.with_shell_references(word.text)) for word in argv]
        image, entrypoint = self.tree.at("image").text or "", bool(self.tree.at("command").items)
        run_words, hidden = source.words_in_image(image, argv, entrypoint, origin)
        if hidden:
            message = f"container {self.place.container} runs its image's own program, which the "
            message += "manifest does not show: name it under command"
            place = run_words[0].origin if run_words else Origin(self.name, self.tree.line)
            self.notes.append(SourceNote("image-command", message, place))
        settings = _settings(self.pod.spec, self.tree)
        inner = read_words(run_words, self.variables, in_container=True, beside=self.beside)
        outer = (*run_words, *self.variables.values())
        inner = source.mark_inside(inner, Inside("pod", self.place.container), outer)
        if (hook := self.tree.at("lifecycle", "postStart")).value is not None:
            message = f"what postStart of container {self.place.container} starts is not read"
            self.note("script-not-read", message, hook)
        files = {**self.files, **inner.files}
        commands = inner.each(
            lambda command: command._replace(
                place=self.place,
                container=settings,
                copies=self.pod.copies * command.copies,
                files=files,
            )
        ).commands
        reading = Reading(commands, (*self.notes, *inner.notes))
        return source.with_published(reading, tuple(self.published()))

    def with_shell_references(self, text: str) -> str:
        """Return a script with ``${NAME}`` for each ``$(NAME)`` that only the running pod has."""
        cluster = [n for n, w in self.variables.items() if w.inside and w.inside.kind == "cluster"]
        for name in (*self.pod.operator_sets, *cluster) if " " in text else ():
            text = text.replace(f"$({name})", f"${{{name}}}")
        return text

    def published(self) -> Iterator[Published]:
        """Yield each TCP ``hostPort`` of the container; none for a pod on the host's network."""
        pod = " ".join(self.place.name)
        network = self.pod.spec.at("hostNetwork").text == "true"
        for item in self.tree.at("ports").items:
            protocol = item.at("protocol").text
            # The process itself binds what a pod on its host's network has.
            if network or protocol not in (None, "TCP"):
                continue
            text, origin = item.at("hostPort").text, str(Origin(self.name, item.line))
            address = item.at("hostIP").text or ""
            if text is not None and text != "0":
                known = text.isdecimal() and len(text) < 7
                port = int(text) if known else Unknown(f"hostPort {text!r} is not a number")
                address = "" if address in ("0.0.0.0", "::") else address
                owner = f"container {self.place.container} of {pod} ({origin})"
                yield Published(port, address, owner, origin, pod)

    def beside(self, name: str) -> str | None:
        """Return the text of a file that lies in the container, as far as the manifest says."""
        word = self.files.get(posixpath.normpath(name))
        return None if word is None else word.text

    def read_sources(self) -> bool:
        """Take the variables of ``envFrom``; return whether the manifest shows them all."""
        complete = True
        for reference in self.tree.at("envFrom").items:
            data = self.referenced_data(reference, "Ref")
            if data is None:
                self.open, complete = True, False
                message = "envFrom: the variables of a ConfigMap or Secret are unknown here"
                self.note("env-from-not-read", message, reference)
                continue
            for key, tree in data.items():
                word = Word(tree.text or "", Origin(self.name, tree.line))
                self.variables[(reference.at("prefix").text or "") + key] = word
        return complete

    def referenced_data(self, reference: Node, suffix: str) -> Mapping[str, Node] | None:
        """Return the data of ``configMapRef`` (suffix ``Ref``) and its like; None if not here."""
        for data_kind, by_name in self.data_by_kind.items():
            if f"{data_kind}{suffix}" in reference.fields:
                return by_name.get(reference.at(f"{data_kind}{suffix}", "name").text)
        return None

    def read_variables(self) -> None:
        """Take the variables of ``env`` in their order, those of ``valueFrom`` included."""
        items = self.tree.at("env").items
        self.last = {item.at("name").text: index for index, item in enumerate(items)}
        for position, item in enumerate(items):
            key = item.at("name").text
            value, value_from = item.at("value"), item.at("valueFrom")
            if not key:
                continue
            if value_from.fields:
                data = self.referenced_data(value_from, "KeyRef") or {}
                keys = [tree.at("key").text or "" for tree in value_from.fields.values()]
                known = data.get(keys[0], Node(None))
                at, inside = Origin(self.name, known.line or item.line), Inside("cluster", key)
                word = Word(f"$({key})", at, (key,), inside=inside)
                self.variables[key] = word if known.text is None else Word(known.text, at)
            else:
                tree = value if value.line else value._replace(line=item.line)
                self.variables[key] = self.fill_in(tree, f"the variable {key}", position)

    def fill_in(self, tree: Node, what: str, position: int | None = None) -> Word:
        """Return a text with $(NAME) filled in as the kubelet does; an unknown name stays as
        written.

        Adds notes on a text that Kubernetes refuses, or a $(NAME) that is never set.

        Args:
            what: The name of the text, for notes.
            position: Of a variable in ``env``; None for a text of ``command`` or ``args``.
        """
        text, origin = tree.text or "", Origin(self.name, tree.line)
        if yaml_type := tree.yaml_type:
            message = f"{what} is {brief(text)}, a {yaml_type} to YAML, which Kubernetes refuses "
            why = f'(cannot unmarshal {yaml_type} into … of type string): write "{brief(text)}"'
            self.note("value-not-text", message + why, tree)
        unresolved: list[str] = []
        inside: Inside | None = None

        def fill(match: re.Match[str]) -> str:
            """Return the text of one $(NAME), or the reference as written if nothing sets it."""
            nonlocal inside
            if match.group(1):
                return "$"
            name = match.group(2)
            word = self.variables.get(name)
            if word is not None and len(word.text) <= 2**16:
                unresolved.extend(word.unresolved)
                inside = source.join_inside(inside, word.inside)
                return word.text
            later = position is not None and self.last.get(name, -1) >= position
            nowhere = position is not None and _NAME.fullmatch(name) and not self.may_be_set(name)
            if later or nowhere:
                why = f"{name} is set after it" if later else f"nothing sets {name}"
                message = f"{what} keeps $({name}) as it is written, because {why}: set it above"
                self.note("reference-unset", message, tree)
            elif self.may_be_set(name):
                unresolved.append(name)
            return match.group()

        filled = _REFERENCE.sub(fill, text) if len(text) <= 2**16 else text
        names = tuple(dict.fromkeys(unresolved))
        return Word(filled if len(filled) <= 2**20 else text, origin, names, inside=inside)

    def may_be_set(self, name: str) -> bool:
        """Return whether an operator or a service may set a variable that is not seen here."""
        return (self.open and _NAME.fullmatch(name) is not None) or bool(_SERVICE.search(name))


def _device_resources(pod: Node) -> tuple[str, ...]:
    """Return the names of all device plugin resources that a pod's containers ask for."""
    containers = (*pod.at("initContainers").items, *pod.at("containers").items)
    limits = (container.at("resources", "limits").fields.items() for container in containers)
    keys = (key for each in limits for key, tree in each if tree.text not in (None, "0"))
    return tuple(dict.fromkeys(key for key in keys if "/" in key))


def _settings(pod: Node, container: Node) -> ContainerSettings:
    """Return the host's resources that the fields of container and pod give."""
    limits = container.at("resources", "limits").fields
    pages = {**container.at("resources", "requests").fields, **limits}
    volumes = {item.at("name").text: item for item in pod.at("volumes").items}
    none, mounted = Node(None), container.at("volumeMounts").items
    mounts = [_mount(item, volumes.get(item.at("name").text, none)) for item in mounted]
    shm = [mount for mount in mounts if mount.target.rstrip("/") == "/dev/shm"]
    security, shared = container.at("securityContext"), pod.at("securityContext")
    capabilities = security.at("capabilities")
    profiles = []
    for key, name in (("seccompProfile", "seccomp"), ("appArmorProfile", "apparmor")):
        profile = security.at(key) if security.at(key).fields else shared.at(key)
        if value := profile.at("localhostProfile").text or profile.at("type").text:
            profiles.append(f"{name}={'unconfined' if value == 'Unconfined' else value}")
    return ContainerSettings(
        engine="kubernetes",
        image=container.at("image").text or "",
        ipc="host" if pod.at("hostIPC").text == "true" else None,
        network="host" if pod.at("hostNetwork").text == "true" else None,
        shm_size_bytes=shm[-1].size_bytes if shm else None,
        resources={key: tree.text for key, tree in limits.items() if "/" in key and tree.text},
        pod_resources=_device_resources(pod),
        runtime=pod.at("runtimeClassName").text,
        privileged=security.at("privileged").text == "true",
        cap_add=tuple(item.text for item in capabilities.at("add").items if item.text),
        security_opt=tuple(profiles),
        mounts=tuple(mounts),
        memory_bytes=_size(limits.get("memory", Node(None)), "the memory limit"),
        hugepages_bytes={
            key.removeprefix("hugepages-"): size
            for key, tree in pages.items()
            if key.startswith("hugepages-") and (size := _size(tree, key)) is not None
        },
        user=security.at("runAsUser").text or shared.at("runAsUser").text,
        own_users=pod.at("hostUsers").text == "false",
        startup_seconds=_startup_seconds(container.at("startupProbe")),
    )


def _startup_seconds(probe: Node) -> int | None:
    """Return the seconds a container may take to answer; None without a probe of plain numbers."""
    defaults = {"initialDelaySeconds": 0, "periodSeconds": 10, "failureThreshold": 3}
    texts = [probe.at(name).text or str(usual) for name, usual in defaults.items()]
    if not probe.fields or not all(text.isdecimal() for text in texts):
        return None
    delay, period, failures = map(int, texts)
    return delay + period * failures


def _refusal_notes(pod: Node, name: str, resource: str) -> Iterator[SourceNote]:
    """Yield a note on each container whose resources the API server refuses, with all reasons.

    Source: k8s.io/kubernetes ``pkg/apis/core/validation`` ``validateResourceRequirements``.

    Args:
        name: Of the manifest.
        resource: The kind of the object.
    """
    for container in (*pod.at("initContainers").items, *pod.at("containers").items):
        limits, requests = (container.at("resources", key).fields for key in ("limits", "requests"))
        pairs = [*limits.items(), *requests.items()]
        reasons = [(_quantity_error(key, tree.text), tree.line) for key, tree in pairs]
        for key, tree in requests.items():
            reasons.append((_request_error(key, tree.text, limits.get(key, Node(None))), tree.line))
        problems = [(why, line) for why, line in reasons if why]
        either = {**requests, **limits}
        pages = [tree.line for key, tree in either.items() if key.startswith("hugepages-")]
        if pages and "cpu" not in either and "memory" not in either:
            alone = ", unless a LimitRange of its namespace does" if resource == "Pod" else ""
            why = f"it has hugepages and neither cpu nor memory: write memory under limits{alone}"
            problems.append((why, pages[0]))
        if problems:
            message = "; ".join(dict.fromkeys(why for why, _ in problems))
            message = f"Kubernetes refuses container {container.at('name').text or ''}: {message}"
            yield SourceNote("container-refused", message, Origin(name, problems[0][1]))


def _quantity_error(key: str, text: str | None) -> str | None:
    """Return why Kubernetes refuses the quantity ``text`` of resource ``key``; None if it does not,
    or if a template fills the quantity in.
    """
    if text is None or _FILLED_IN.search(text):
        return None
    size = quantity(text)
    if size is None:
        return f"{key} is {brief(text)}, which is not a quantity: write a size as 64Gi"
    page = key.removeprefix("hugepages-")
    if page == key:
        return None
    page_bytes = quantity(page)
    if not page_bytes:
        return f"{key} names no size of a page: write hugepages-2Mi"
    right = f"{-(-size // page_bytes) * page_bytes // MIB}Mi"
    return f"{key} is {text}, no multiple of {page}: write {right}" if size % page_bytes else None


def _request_error(key: str, text: str | None, limit: Node) -> str | None:
    """Return why Kubernetes refuses ``text``, the request of resource ``key``, beside this limit;
    None if it does not.

    A request of devices or huge pages needs an equal limit.
    """
    exact = key.startswith("hugepages-") or ("/" in key and "kubernetes.io/" not in key)
    least, most = (quantity(text or ""), quantity(limit.text or ""))
    if limit.value is None:
        return f"{key} has a request and no limit: write it under limits" if exact else None
    if least is None or most is None or not (least > most or (exact and least < most)):
        return None
    how = "the same under both" if exact else "no more than the limit"
    return f"{key} is {text} under requests and {limit.text} under limits: write {how}"


def _mount(mount: Node, volume: Node) -> Mount:
    """Return the mount of a pod's volume: medium Memory is a tmpfs, HugePages a hugetlbfs.

    Args:
        mount: An item of volumeMounts.
        volume: The item of volumes with the same name, empty without one.
    """
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


def _size(tree: Node, what: str) -> Size:
    if tree.text is None:
        return None
    size = quantity(tree.text)
    return Unknown(f"{what} is {tree.text!r}, which is not a quantity") if size is None else size


def quantity(text: str) -> int | None:
    """Return the number of ``64Gi``, ``64G`` or ``1e9``, rounded up; None if not a quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    whole, fraction, suffix = (group or "" for group in match.groups())
    by_name = suffix[1:] in ("", "i")  # else 1e9
    power = -_SMALL.get(suffix, 0) if by_name else int(suffix[1:])
    scale = 10 ** max(power, 0)
    if by_name and suffix[:1] in _POWERS:
        scale = (1024 if suffix.endswith("i") else 1000) ** _POWERS[suffix[0]]
    return int(-(-int(whole + fraction) * scale // 10 ** (len(fraction) + max(-power, 0))))


def _recognises(launch: LaunchText) -> bool:
    documents = launch.documents or ()
    nodes = [tree for document in documents for tree in (document, *document.items)]
    return any(tree.at("kind").text is not None or tree.at("items").items for tree in nodes)


def _read(launch: LaunchText) -> Reading:
    reading = read_kubernetes(launch.text, launch.path)
    return reading._replace(notes=(*with_env_files(launch)[1], *reading.notes))


KIND = LaunchKind("a Kubernetes manifest, which has kind", _recognises, _read)
