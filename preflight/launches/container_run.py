"""Container runs: where the image stands, what the process gets, and what the host lends it."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from preflight.launches import container
from preflight.launches.container import ContainerSettings, Published
from preflight.launches.env_files import read_env_file, read_small_file
from preflight.launches.source import SourceNote, Word, brief, words_in_image
from preflight.launches.variables import unknown_needed

ENGINES = frozenset({"docker", "nerdctl", "nvidia-docker", "podman"})
# Options of docker run that take no value; every other one takes the next word.
_FLAGS = frozenset(
    "detach disable-content-trust env-host help http-proxy init interactive no-healthcheck "
    "no-hostname no-hosts oom-kill-disable passwd privileged publish-all quiet read-only "
    "read-only-tmpfs replace rm rmi rootfs sig-proxy tls-verify tty unsetenv-all "
    "use-api-socket".split()
)
_SHORT = dict(
    pair.split(":")
    for pair in (
        "a:attach c:cpu-shares d:detach e:env h:hostname i:interactive l:label m:memory p:publish "
        "P:publish-all q:quiet t:tty u:user v:volume w:workdir"
    ).split()
)
_ENGINE_OPTIONS = frozenset(
    "--config -c --context -H --host -l --log-level --tlscacert --tlscert --tlskey --namespace -n "
    "--address -a --url --connection --root --runroot".split()
)


class ContainerRun(NamedTuple):
    """The process of a container: its words (``argv``) and variables, and the words in front."""

    argv: tuple[Word, ...]
    environment: Mapping[str, Word]
    wrapper: tuple[str, ...]
    settings: ContainerSettings
    published: tuple[Published, ...]


def run_position(argv: Sequence[Word], start: int) -> int:
    """Return the index of ``run`` or ``create`` in ``docker --context x container run``; 0 if
    neither is the engine's verb.

    Args:
        start: The engine's index.
    """
    index = start + 1
    while index < len(argv) and argv[index].text.startswith("-"):
        index += 2 if argv[index].text in _ENGINE_OPTIONS else 1
    if index < len(argv) and argv[index].text == "container":
        index += 1
    return index if index < len(argv) and argv[index].text in ("run", "create") else 0


def _options(argv: Sequence[Word], start: int) -> tuple[list[tuple[str, Word]], int]:
    """Read the options of docker run from index ``start`` on.

    Return pairs of long name and value, in order, and the index of the image. Without an image that
    is the number of words. A flag's value is ``true``.
    """
    options: list[tuple[str, Word]] = []
    index = start
    while index < len(argv):
        word = argv[index]
        if word.text == "--":
            return options, index + 1
        if not word.text.startswith("-") or word.text == "-":
            return options, index
        index += 1
        if word.text.startswith("--"):
            name, equals, rest = word.text[2:].partition("=")
            value = rest if equals else "true" if name in _FLAGS else None
        else:  # -itv /a:/b: flags, and one that takes the rest or the next word
            names = [_SHORT.get(letter, letter) for letter in word.text[1:]]
            flags = [*itertools.takewhile(_FLAGS.__contains__, names)]
            options += [(flag, word._replace(text="true")) for flag in flags]
            if len(flags) == len(names):
                continue
            name = names[len(flags)]
            value = word.text[len(flags) + 2 :].removeprefix("=") or None
        if value is not None:
            options.append((name, word._replace(text=value)))
        elif index < len(argv):
            options.append((name, argv[index]))
            index += 1
    return options, index


def container_run(
    argv: Sequence[Word],
    start: int,
    run: int,
    outside: Mapping[str, Word],
    notes: list[SourceNote],
) -> ContainerRun:
    """Read a container run: its process, variables, settings and published ports.

    Adds to ``notes``.

    Args:
        start, run: The indices of the engine and of its word ``run``.
        outside: The caller's variables.
    """
    options, image = _options(argv, run + 1)
    # Docker reads env files first, wherever they stand, and -e over them.
    files = [word for name, word in options if name == "env-file"]
    variables, lost = env_file_variables(files, outside, notes)
    for word in (word for option, word in options if option == "env"):
        name, equals, value = word.text.partition("=")
        if equals:
            variables[name] = word._replace(text=value)
        elif name in outside:
            variables[name] = outside[name]
    if lost is not None:
        variables.update(unknown_needed(variables, lost.origin))
    entries = [word for name, word in options if name == "entrypoint" and word.text]
    inner = (*entries[-1:], *argv[image + 1 :])
    origin = argv[start].origin
    if image >= len(argv):
        notes.append(SourceNote("image-missing", "the container run names no image", origin))
    else:
        has_entrypoint = any(name == "entrypoint" for name, _ in options)
        of_image = argv[image]
        inner, hidden = words_in_image(of_image.text, inner, has_entrypoint, of_image.origin)
        if hidden:
            text = f"{brief(of_image.text)} runs its own command, which the launch does not show"
            text += ": name the program behind the image"
            behind = argv[image + 1].text if image + 1 < len(argv) else ""
            if behind.startswith("-"):
                # Half of what people write so is an option of the engine that came too late.
                engine = argv[start].text.rpartition("/")[2]
                text += f"; {brief(behind)} stands behind the image, so it is the program's, not "
                text += f"{engine}'s: options stand in front of the image"
            notes.append(SourceNote("image-command", text, origin))
    wrapper = tuple([word.text for word in argv[start : image + 1]])
    others = tuple([(name, word.text) for name, word in options if name not in ("env", "env-file")])
    settings = settings_of(wrapper[0], wrapper[-1], others)
    if settings.engine == "docker":
        for why in container.refusals(settings):
            why = f"{why}; Docker refuses the run"
            notes.append(SourceNote("container-refused", why, origin))
    owner = f"{wrapper[0]} run ({origin})"
    ports = (
        port
        for name, word in options
        if name == "publish" and settings.network != "host"
        for port in container.host_ports(word.text, owner, str(word.origin), not word.unresolved)
    )
    return ContainerRun(inner, variables, wrapper, settings, tuple(ports))


def env_file_variables(
    files: Iterable[Word], outside: Mapping[str, Word], notes: list[SourceNote]
) -> tuple[dict[str, Word], Word | None]:
    """Return the variables of env files, the later over the earlier, and the name of the last file
    that cannot be read, None without one.

    Adds to ``notes``.

    Args:
        outside: The caller's variables.
    """
    variables: dict[str, Word] = {}
    lost: Word | None = None
    for word in files:
        text = None if word.unresolved else read_small_file(word.text)
        if text is None:
            why = f"{brief(word.text)} cannot be read here: its variables are unknown"
            notes.append(SourceNote("env-file-not-read", why, word.origin))
            lost = word
            continue
        values, file_notes = read_env_file(text, word.text, outside)
        variables.update(values)
        notes.extend(file_notes)
    return variables, lost


@lru_cache(maxsize=256)
def settings_of(engine: str, image: str, options: tuple[tuple[str, str], ...]) -> ContainerSettings:
    """Return the settings that options of docker run give a container.

    Args:
        engine: A name or path, or ``compose``.
        options: Pairs of a long name without its dashes, and a value. Of an option with one value
            the last wins, of ``network`` the first.
    """
    many: dict[str, list[str]] = {}
    for name, text in options:
        many.setdefault(name, []).append(text)
    last = {name: values[-1] for name, values in many.items()}
    readers = {"volume": container.volume, "mount": container.mount, "tmpfs": container.tmpfs}
    mounts = [read(text) for name, read in readers.items() for text in many.get(name, ())]
    name_of_engine = engine.rpartition("/")[2]
    engine = "docker" if name_of_engine == "nvidia-docker" else name_of_engine
    sizes = ("shm_size", "mem_limit") if engine == "compose" else ("--shm-size", "--memory")
    added = many.get("cap-add", [])
    if engine not in ("docker", "compose"):  # which take one name for each capability
        added = [name for text in added for name in text.split(",")]
    network = [text for name, text in options if name in ("network", "net")]
    devices = [container.device_path(text) for text in many.get("device", ())]
    cdi = [text for text in devices if text.startswith(container.CDI_GPU)]
    gpus = container.named_gpus(cdi) if cdi else None
    return ContainerSettings(
        engine=engine,
        image=image,
        ipc=last.get("ipc"),
        network=network[0].removeprefix("name=") if network else None,
        shm_size_bytes=container.docker_size(last.get("shm-size"), sizes[0]),
        ulimits=container.ulimits(many.get("ulimit", ())),
        devices=tuple(text for text in devices if text not in cdi),
        gpus=container.gpu_request(last["gpus"]) if "gpus" in last else gpus,
        runtime="nvidia" if name_of_engine == "nvidia-docker" else last.get("runtime"),
        privileged=last.get("privileged", "false").lower() in ("true", "1", "t"),
        cap_add=tuple(added),
        security_opt=tuple(map(container.security_option, many.get("security-opt", ()))),
        mounts=tuple(mounts),
        cpuset_cpus=last.get("cpuset-cpus"),
        cpuset_mems=last.get("cpuset-mems"),
        memory_bytes=container.docker_size(last.get("memory"), sizes[1]),
        user=last.get("user"),
        device_rules=tuple(many.get("device-cgroup-rule", ())),
        pids=container.pids_limit(last.get("pids-limit")),
    )
