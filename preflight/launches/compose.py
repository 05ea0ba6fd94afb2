"""Docker Compose files: the process of each service, and what its container is given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from checks.framework.needs import GivenGpus
from checks.framework.regex import regex
from checks.framework.unknown import Inside, Unknown
from preflight.launches import container, source
from preflight.launches.container import ContainerSettings, Mount, Published
from preflight.launches.container_run import settings_of
from preflight.launches.documents import Node, load_documents
from preflight.launches.env_files import interpolate, read_compose_env_file, read_env_file
from preflight.launches.launch_files import Beside, LaunchKind, LaunchText
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, SourceNote, Word, brief, only_note
from preflight.launches.variables import environment_words, unknown_needed

# What ends a command to the reader of Compose v2 (go-shellwords); version 1 hands it over.
_OPERATOR = regex(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|([;&|<>])""", re.DOTALL)
# Of what stands in several services or files.
_PUT_TOGETHER = ", which is not read: give what docker compose config prints"
_TRUE = ("true", "yes", "y", "on")
# Fields of a service that are options of docker run, by another name.
_OPTIONS = dict(
    pair.split(":")
    for pair in (
        "cap_add:cap-add cpuset:cpuset-cpus device_cgroup_rules:device-cgroup-rule ipc:ipc "
        "network_mode:network runtime:runtime security_opt:security-opt shm_size:shm-size user:user"
    ).split()
)
_COPIES = regex(r"[0-9]{1,6}", re.ASCII)


def read_compose(
    text: str,
    name: str,
    environment: Mapping[str, str | Word],
    beside: Beside = lambda _: None,
) -> Reading:
    """Return the process of each service.

    ``environment``, else ``.env``, fills in ``${NAME}``.

    Args:
        name: Of the file.
        beside: Reads ``.env``, and the files that ``env_file:`` names, by the written path. An
            included file, and a service that extends another or is not started, are only noted.

    Raises:
        SourceError: For a text that is not YAML, or too large.
    """
    documents = load_documents(text, name)
    surroundings = environment_words(environment)
    readings: list[Reading] = []

    def note(id_: str, message: str, line: int | None) -> None:
        readings.append(only_note(id_, message, Origin(name, line)))

    if (dot_env := beside(".env")) is not None:
        read, notes = read_compose_env_file(dot_env, ".env", surroundings)
        surroundings = {**read, **surroundings}
        readings.append(Reading((), notes))
    for document in documents:
        include = document.at("include")
        for item in include.items or ([include] if include.value else []):
            shown = item.text or item.at("path").text or "several files"
            note("include-not-read", f"include: {brief(shown)}{_PUT_TOGETHER}", item.line)
        for service, tree in document.at("services").fields.items():
            extends = tree.at("extends")
            if why := _why_not_started(service, tree, surroundings):
                note("not-started", why, tree.line)
            elif extends.value is not None:
                base = extends.text or extends.at("service").text or ""
                message = f"service {service} extends {brief(base)}{_PUT_TOGETHER}"
                note("extends-not-read", message, extends.line)
            else:
                reader = _ServiceReader(name, service, tree, surroundings, beside)
                readings.append(reader.reading())
    return source.join(readings)


@dataclass
class _ServiceReader:
    """Reads the service ``service`` of the file ``name``; ``surroundings`` fill in ``${NAME}``."""

    name: str
    service: str
    tree: Node
    surroundings: Mapping[str, Word]
    read_file: Beside
    notes: list[SourceNote] = field(default_factory=list)

    def note(self, id_: str, message: str, line: int | None) -> None:
        self.notes.append(SourceNote(id_, message, Origin(self.name, line)))

    def reading(self) -> Reading:
        """Return the commands of the service, with its variables, ports and settings.

        A service with 0 copies gives a note alone.
        """
        origin = Origin(self.name, self.tree.line)
        counts = (self.text("deploy", "replicas"), self.text("scale"))
        copies = next((int(text) for text in counts if text and _COPIES.fullmatch(text)), 1)
        if copies == 0:
            message = f"service {self.service} is not started: the file asks for 0 of it"
            return only_note("not-started", message, origin)
        variables = self.environment()
        argv = [*self.words("entrypoint"), *self.words("command")]
        overrides = self.tree.at("entrypoint").value is not None
        key = "entrypoint" if argv else "command"  # words alone are the entrypoint's arguments
        run_words, hidden = source.words_in_image(self.text("image") or "", argv, overrides, origin)
        if hidden:
            show = f"which the file does not show: name the program under {key}"
            text = f"service {self.service} runs its image's own {key}, {show}"
            self.note("image-command", text, run_words[0].origin.line if run_words else origin.line)
        for hook in self.tree.at("post_start").items:
            message = f"what post_start of service {self.service} starts is not read"
            self.note("script-not-read", message, hook.line)
        inner = read_words(run_words, variables, in_container=True, beside=self.beside())
        outer = (*run_words, *variables.values())
        inner = source.mark_inside(inner, Inside("service", self.service), outer)
        settings = self.settings() if inner.commands else None
        for why in () if settings is None else container.refusals(settings):
            self.note(
                "container-refused", f"{why}; Compose refuses service {self.service}", origin.line
            )
        place_of, files = source.Place("service", (self.service,)), inner.files
        inner = inner.each(
            lambda command: command._replace(
                place=place_of, container=settings, copies=copies, files=files
            )
        )
        # Each copy of a service binds them.
        ports = tuple(dict.fromkeys(self.published(str(origin)))) * min(copies, 2)
        return source.with_published(Reading(inner.commands, (*self.notes, *inner.notes)), ports)

    def published(self, origin: str) -> Iterator[Published]:
        """Yield the host's TCP ports that the engine binds; none if the host's network is used."""
        owner = f"service {self.service} ({origin})"
        for item in () if self.text("network_mode") == "host" else self.tree.at("ports").items:
            port_word = self.word(item)
            if item.text is None:
                keys = ("target", "published", "host_ip")
                target, port, address = (self.word(item.at(key)) for key in keys)
                if item.at("protocol").text == "udp" or not port.text:
                    continue
                # A range is what a single port is taken of.
                port_word = port._replace(
                    text=f"{address.text or '0.0.0.0'}:{port.text}:{target.text}"
                )
            yield from container.host_ports(port_word.text, owner, origin, not port_word.unresolved)

    def beside(self) -> Beside:
        """Return a function that gives the text of a file by its path in the container.

        The function gives None for a file that no bind mount brings from the host.
        """
        mounts = [mount for mount in self.mounts() if mount.kind == "bind"]

        def near(path: str) -> str | None:
            for mount in mounts:
                target = mount.target.rstrip("/")
                if path == target or path.startswith(target + "/"):
                    return self.read_file(mount.source + path[len(target) :])
            return None

        return near

    def word(self, tree: Node) -> Word:
        return interpolate(tree.text or "", self.surroundings, Origin(self.name, tree.line))

    def words(self, key: str) -> list[Word]:
        """Return the words of ``entrypoint`` or ``command`` (``key``): the items of a list, or a
        text split as Compose does.

        A text ends, with a note, at an operator such as ``|``. A quote that never closes gives a
        note and no words.
        """
        tree = self.tree.at(key)
        shown = f"{key} of service {self.service}"
        if tree.text is None:
            for item in (each for each in tree.items if each.plain):
                if item.yaml_type == "number" or (item.text or "").lower() in ("true", "false"):
                    refused = f'which Compose refuses (must be a string): write "{item.text}"'
                    message = f"{shown} has the item {item.text}, a {item.yaml_type} to YAML, "
                    self.note("value-not-text", f"{message}{refused}", item.line)
            return [self.word(item) for item in tree.items if item.text is not None]
        import shlex

        whole = self.word(tree)
        text = whole.text
        operators = (match for match in _OPERATOR.finditer(text) if match.group(1))
        if (operator := next(operators, None)) is not None:
            text, left_out = text[: operator.start()], brief(text[operator.start() :])
            message = f"{shown} is not run by a shell: {left_out!r} is left out here, and "
            message += "docker-compose v1 gives it to the program; write bash -c '…' around it"
            self.note("no-shell", message, whole.origin.line)
        try:
            texts = shlex.split(text)
        except ValueError:
            self.note("unterminated", f"{shown} has a quote that never closes", whole.origin.line)
            return []
        names = whole.unresolved
        return [Word(text, whole.origin, tuple(n for n in names if n in text)) for text in texts]

    def environment(self) -> dict[str, Word]:
        """Return the variables of the service: those of ``environment`` over those of ``env_file``.

        A required file that cannot be read is noted. Variables that a server needs are then
        unknown, unless they are set.
        """
        variables: dict[str, Word] = {}
        set_here: dict[str, Word] = {}
        for key, value, line in _pairs(self.tree.at("environment")):
            origin = Origin(self.name, line)
            if value is not None:
                set_here[key] = interpolate(value, self.surroundings, origin)
            elif key in self.surroundings:
                set_here[key] = self.surroundings[key]
        files, lost = self.tree.at("env_file"), False
        for item in files.items or ([files] if files.value is not None else []):
            path = self.word(item if item.text else item.at("path"))
            content = None if path.unresolved else self.read_file(path.text)
            if content is None and item.at("required").text == "false":
                continue
            if content is None:
                text = f"{brief(path.text)!r} is not read: give it with --env-file"
                self.note("env-file-not-read", text, path.origin.line)
                lost = True
                continue
            # What a value sees: the caller, the service's own environment, the lines above.
            seen = {**set_here, **self.surroundings}
            if item.at("format").text == "raw":
                read, notes = read_env_file(content, path.text, seen)
            else:
                read, notes = read_compose_env_file(content, path.text, seen, variables)
            variables.update(read)
            self.notes.extend(notes)
        known = {**variables, **set_here}
        return {**unknown_needed(known, Origin(self.name, files.line)), **known} if lost else known

    def texts(self, *keys: str) -> tuple[str, ...]:
        """Return the items of a list, each once, or a single text.

        Args:
            keys: The field's path.
        """
        tree = self.tree.at(*keys)
        items = tree.items or [tree]
        return tuple(dict.fromkeys(self.word(item).text for item in items if item.text is not None))

    def text(self, *keys: str) -> str | None:
        tree = self.tree.at(*keys)
        return None if tree.text is None else self.word(tree).text

    def mounts(self) -> Iterator[Mount]:
        """Yield the mounts of ``volumes``, each a text or a mapping, and of ``tmpfs``."""
        for item in self.tree.at("volumes").items:
            if item.text is not None:
                yield container.volume(self.word(item).text)
                continue
            paths = (("target",), ("type",), ("source",), ("read_only",), ("tmpfs", "size"))
            target, mount_kind, on_host, locked, size = (self.word(item.at(*p)).text for p in paths)
            size_bytes = container.docker_size(size, f"the size of {target}")
            yield Mount(target, mount_kind or "volume", on_host, locked == "true", size_bytes)
        yield from map(container.tmpfs, self.texts("tmpfs"))

    def absolute(self, mount: Mount) -> Mount:
        """Return a bind mount with its source ``./x`` made absolute; any other mount unchanged."""
        if mount.kind != "bind" or not mount.source.startswith("."):
            return mount
        folder = os.path.dirname(os.path.abspath(self.name))
        return mount._replace(source=os.path.normpath(os.path.join(folder, mount.source)))

    def ulimits(self) -> Iterator[str]:
        """Yield the limits of ``ulimits`` as ``name=soft:hard``, or with one number for both."""
        for name, tree in self.tree.at("ulimits").fields.items():
            pair = [self.word(tree.at(key)).text for key in ("soft", "hard")]
            yield f"{name}={':'.join(pair) if tree.fields else self.word(tree).text}"

    def devices(self) -> Iterator[str]:
        for item in self.tree.at("devices").items:
            if text := self.word(item if item.text is not None else item.at("source")).text:
                yield text

    def gpus(self) -> GivenGpus | Unknown | None:
        """Return the GPUs that ``gpus``, else a reservation, else CDI devices ask for: of several
        items the first.

        Returns:
            None if nothing asks for a GPU; Unknown for an unset variable.
        """
        if (wanted := self.text("gpus")) is not None:
            return container.gpu_request(wanted)
        reserved = self.tree.at("deploy", "resources", "reservations", "devices").items
        for item in (*self.tree.at("gpus").items, *reserved):
            capabilities = [inner.text for inner in item.at("capabilities").items]
            if "gpu" in capabilities or item not in reserved:
                named = [self.word(inner).text for inner in item.at("device_ids").items]
                if named:
                    return container.named_gpus(named)
                return container.gpu_request(self.word(item.at("count")).text or "all")
        named = [text for text in self.devices() if text.startswith(container.CDI_GPU)]
        return container.named_gpus(named) if named else None

    def settings(self) -> ContainerSettings:
        """Return the host's resources that the service's fields give its container."""
        options = [(name, text) for key, name in _OPTIONS.items() for text in self.texts(key)]
        options += [("ulimit", text) for text in self.ulimits()]
        options += [("device", text) for text in dict.fromkeys(self.devices())]
        memory = self.text("mem_limit") or self.text("deploy", "resources", "limits", "memory")
        options += [("memory", memory)] if memory else []
        pids = self.text("pids_limit") or self.text("deploy", "resources", "limits", "pids")
        options += [("pids-limit", pids)] if pids else []
        # The last at each place counts.
        mounts = {mount.target: mount for mount in self.mounts()}.values()
        return settings_of("compose", self.text("image") or "", tuple(options))._replace(
            gpus=self.gpus(),
            privileged=(self.text("privileged") or "").lower() in _TRUE,
            mounts=tuple(map(self.absolute, mounts)),
        )


def _pairs(tree: Node) -> Iterator[tuple[str, str | None, int | None]]:
    """Yield name, value and line of ``environment:``; a value of None means the caller's."""
    for key, value in tree.fields.items():
        yield key, value.text, value.line
    for item in tree.items:
        name, equals, value_text = (item.text or "").partition("=")
        if name:
            yield name, value_text if equals else None, item.line


def _why_not_started(service: str, tree: Node, surroundings: Mapping[str, Word]) -> str:
    """Return why ``compose up`` leaves a service out: COMPOSE_PROFILES names none of its profiles.

    Return "" if the service starts, or if the value of COMPOSE_PROFILES is not known.
    """
    profiles = [item.text for item in tree.at("profiles").items if item.text]
    chosen = surroundings.get("COMPOSE_PROFILES")
    wanted = [] if chosen is None else [text.strip() for text in chosen.text.split(",")]
    if not profiles or {"*", *profiles} & {*wanted} or (chosen is not None and chosen.unresolved):
        return ""
    asked = "COMPOSE_PROFILES is not set" if chosen is None else f"not {brief(chosen.text)}"
    of_profile = f"it belongs to profile {' or '.join(profiles)} alone ({asked})"
    return f"service {service} is not started: {of_profile}"


def _recognises(launch: LaunchText) -> bool:
    return any("services" in tree.fields for tree in launch.documents or ())


def _read(launch: LaunchText) -> Reading:
    """Return the processes of a Compose file.

    Files behind --env-file are read as Compose reads them, which differs from Docker.
    """
    variables = environment_words(launch.environment)
    notes: list[SourceNote] = []
    for name, text in launch.env_texts:
        file_variables, file_notes = read_compose_env_file(text, name, variables)
        variables.update(file_variables)
        notes.extend(file_notes)
    folder = os.path.dirname(launch.path) or "."
    named = [(name, text) for name, text in launch.env_texts if "\0" not in name]
    near = {os.path.normpath(os.path.relpath(name, folder)): text for name, text in named}
    beneath = {f"./{name}": text for name, text in near.items()}
    texts = {**near, **beneath, **dict(launch.env_texts)}

    def read_file(name: str) -> str | None:
        return texts[name] if name in texts else launch.beside(name)

    reading = read_compose(launch.text, launch.path, variables, read_file)
    return reading._replace(notes=tuple(dict.fromkeys((*notes, *reading.notes))))


KIND = LaunchKind("a Compose file, which has services", _recognises, _read)
