"""What stands in front of a program: numactl, sudo, env and the like, and docker run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preflight.env_file import Layers, read_env_file, read_small_file
from preflight.launch_source import Origin, SourceNote, Word


class ContainerSettings(NamedTuple):
    """What a container is given of its host; None and empty where the launch does not say."""

    image: str = ""
    ipc: str | None = None
    network: str | None = None
    shm_size_bytes: int | None = None
    ulimits: Mapping[str, tuple[str, str]] = {}  # name: soft and hard limit, -1 for none
    devices: tuple[str, ...] = ()
    privileged: bool = False
    cap_add: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    cpuset_mems: str | None = None
    memory_bytes: int | None = None
    hugepages_bytes: Mapping[str, int] = {}  # limit per page size, such as 2Mi
    user: str | None = None
    gpus: str | None = None


class Stripped(NamedTuple):
    """A process without what stands in front of it.

    script: the text behind ``bash -c``, of which ``words`` is then empty.
    """

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    wrappers: tuple[tuple[str, ...], ...] = ()
    notes: tuple[SourceNote, ...] = ()
    script: Word | None = None


class _Wrapper(NamedTuple):
    """short, long: the options that take the next word. positional: words before the program."""

    short: str = ""
    long: str = ""
    positional: int = 0
    assignments: bool = False  # takes NAME=value in front of the program


_WRAPPERS = {
    "builtin": _Wrapper(),
    "chrt": _Wrapper("TPD", "sched-runtime sched-deadline sched-period", 1),
    "command": _Wrapper(),
    "dumb-init": _Wrapper("r", "rewrite"),
    "env": _Wrapper("uC", "unset chdir", assignments=True),
    "exec": _Wrapper("a"),
    "gosu": _Wrapper(positional=1),
    "ionice": _Wrapper("cn", "class classdata"),
    "nice": _Wrapper("n", "adjustment"),
    "nohup": _Wrapper(),
    "numactl": _Wrapper(
        "iwNCmpPcSLfoM",
        "interleave weighted-interleave preferred preferred-many physcpubind cpunodebind cpubind "
        "membind shm file shmid shmmode offset length",
    ),
    "setsid": _Wrapper(),
    "stdbuf": _Wrapper("ioe", "input output error"),
    "sudo": _Wrapper(
        "ugpCrtTUDRh",
        "user group prompt close-from role type command-timeout other-user chdir chroot host",
        assignments=True,
    ),
    "taskset": _Wrapper(positional=1),
    "time": _Wrapper("fo", "format output", assignments=True),
    "timeout": _Wrapper("ks", "kill-after signal", 1),
    "tini": _Wrapper("pe"),
}
SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
_ENGINES = frozenset({"docker", "nerdctl", "nvidia-docker", "podman"})
# Options of docker run that take no value; every other one takes the next word.
_FLAGS = frozenset(
    "detach disable-content-trust help init interactive no-healthcheck oom-kill-disable privileged "
    "publish-all quiet read-only replace rm rmi sig-proxy tls-verify tty use-api-socket".split()
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
# Settings that most launches have one of; to look for every name would cost each sudo a pass.
_SETTINGS = (
    "CUDA_VISIBLE_DEVICES MC_MMAP_ARENA_POOL_SIZE MC_STORE_USE_HUGEPAGE MOONCAKE_CONFIG_PATH "
    "MOONCAKE_DEVICE MOONCAKE_GLOBAL_SEGMENT_SIZE MOONCAKE_MASTER MOONCAKE_PROTOCOL "
    "MOONCAKE_TE_META_DATA_SERVER SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
).split()
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_DOCKER_SIZE = re.compile(r"(\d{1,18})(?:\.\d*)?\s*([kmgtp]?)i?b?", re.IGNORECASE | re.ASCII)


def strip_wrappers(
    words: Sequence[Word], environment: Mapping[str, Word], inside: bool = False
) -> Stripped:
    """Takes off what stands in front of a program, outermost first. Never raises.

    inside: the words stand in a container already; a container run in there is left as it is.
    """
    changes: dict[str, Word | None] = {}
    wrappers: list[tuple[str, ...]] = []
    notes: list[SourceNote] = []
    start, clear = 0, False
    while start < len(words):
        name = _program(words[start])
        first = start
        if name in SHELLS and (script := _shell_script(words, start)) is not None:
            wrappers.append(tuple(word.text for word in words[start:script]))
            left = Layers(environment, changes, clear)
            return Stripped((), left, tuple(wrappers), tuple(notes), words[script])
        if not inside and name in _ENGINES and (run := _run_position(words, start)):
            outside = Layers(environment, changes, clear)
            inner = _container(words, start, run, outside, notes)
            wrappers.append(inner.wrappers[0])
            rest = strip_wrappers(inner.words, inner.environment, inside=True)
            return rest._replace(wrappers=(*wrappers, *rest.wrappers), notes=(*notes, *rest.notes))
        wrapper = _WRAPPERS.get(name)
        if wrapper is None or (name == "command" and _asks(words, start)):
            break
        start = _behind_options(words, start + 1, wrapper)
        if name == "env":
            clear, changes = _env_options(words, first, start, clear, changes)
        start = min(start + wrapper.positional, len(words))
        begin = start
        while start < len(words) and _ASSIGNMENT.match(words[start].text):
            variable, _, value = words[start].text.partition("=")
            changes[variable] = words[start]._replace(text=value)
            start += 1
        if start > begin and not wrapper.assignments:
            notes.append(_misplaced(name, words[begin]))
        if name == "sudo" and not _keeps(words[first:begin]) and _matters(environment):
            notes.append(_sudo(words[first]))
        wrappers.append(tuple(word.text for word in words[first:start]))
    inherited = Layers(environment, changes, clear) if changes or clear else environment
    return Stripped(tuple(words[start:]), inherited, tuple(wrappers), tuple(notes))


def _program(word: Word) -> str:
    return word.text.rpartition("/")[2]


def _behind_options(words: Sequence[Word], start: int, wrapper: _Wrapper) -> int:
    long = frozenset(wrapper.long.split())
    while start < len(words):
        text = words[start].text
        if text == "--":
            return start + 1
        if not text.startswith("-"):
            break
        start += 1
        if text.startswith("--"):
            start += text[2:] in long
        else:
            # ``-n 5`` takes the next word, ``-n5`` and ``-Eu root`` show where the value begins.
            takes = [index for index, letter in enumerate(text) if letter in wrapper.short]
            start += bool(takes) and takes[0] == len(text) - 1
    return min(start, len(words))


def _env_options(
    words: Sequence[Word], first: int, end: int, clear: bool, changes: dict[str, Word | None]
) -> tuple[bool, dict[str, Word | None]]:
    texts = [word.text for word in words[first + 1 : end]]
    for index, text in enumerate(texts):
        if text in ("-", "-i", "--ignore-environment"):
            clear, changes = True, {}
        elif text in ("-u", "--unset") and index + 1 < len(texts):
            changes[texts[index + 1]] = None
        elif text.startswith("--unset="):
            changes[text.partition("=")[2]] = None
        elif text.startswith("-u"):
            changes[text[2:]] = None
    return clear, changes


def _asks(words: Sequence[Word], start: int) -> bool:
    """True for ``command -v python3``, which starts nothing."""
    return start + 1 < len(words) and words[start + 1].text in ("-v", "-V", "-pv", "-pV")


def _keeps(words: Sequence[Word]) -> bool:
    return any(
        word.text.startswith("--preserve-env") or re.match(r"-[A-Za-z]*E", word.text)
        for word in words
    )


def _matters(environment: Mapping[str, Word]) -> bool:
    """True where a launch has settings in its environment that a wrapper could lose."""
    return any(name in environment for name in _SETTINGS)


def _sudo(word: Word) -> SourceNote:
    text = (
        "sudo drops most of the caller's variables where its policy does not keep them; they are "
        "read here as kept: write sudo -E, or sudo NAME=value"
    )
    return SourceNote("sudo-environment", text, word.origin)


def _misplaced(wrapper: str, word: Word) -> SourceNote:
    text = (
        f"{wrapper} takes {_brief(word.text)} for the program and fails (execution of "
        f"`{_brief(word.text)}': No such file or directory); put the assignments in front of "
        f"{wrapper}, or env between the two; read here as meant"
    )
    return SourceNote("assignment-after-wrapper", text, word.origin)


def _brief(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _shell_script(words: Sequence[Word], start: int) -> int | None:
    """Where the text behind ``bash -c`` stands."""
    commanded = False
    index = start + 1
    while index < len(words):
        text = words[index].text
        if not text.startswith(("-", "+")) or text in ("-", "--"):
            index += text in ("-", "--")
            return index if commanded and index < len(words) else None
        if not text.startswith("--"):
            commanded = commanded or (text[0] == "-" and "c" in text)
            index += text[-1] in "oO"
        elif text in ("--rcfile", "--init-file"):
            index += 1
        index += 1
    return None


def _run_position(words: Sequence[Word], start: int) -> int:
    """Where ``run`` stands in ``docker --context x container run``; 0 for another command."""
    index = start + 1
    while index < len(words) and words[index].text.startswith("-"):
        index += 2 if words[index].text in _ENGINE_OPTIONS else 1
    if index < len(words) and words[index].text == "container":
        index += 1
    return index if index < len(words) and words[index].text in ("run", "create") else 0


def _options(words: Sequence[Word], start: int) -> tuple[list[tuple[str, Word]], int]:
    """The options of docker run by their long names, and where the image stands."""
    found: list[tuple[str, Word]] = []
    index = start
    while index < len(words):
        word = words[index]
        if word.text == "--":
            return found, index + 1
        if not word.text.startswith("-") or word.text == "-":
            return found, index
        index += 1
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            if equals or name in _FLAGS:
                found.append((name, word._replace(text=value if equals else "true")))
            elif index < len(words):
                found.append((name, words[index]))
                index += 1
            continue
        for position, letter in enumerate(word.text[1:], start=2):
            name = _SHORT.get(letter, letter)
            if name in _FLAGS:
                found.append((name, word._replace(text="true")))
                continue
            value = word.text[position:].removeprefix("=")
            if value:
                found.append((name, word._replace(text=value)))
            elif index < len(words):
                found.append((name, words[index]))
                index += 1
            break
    return found, index


def _container(
    words: Sequence[Word],
    start: int,
    run: int,
    outside: Mapping[str, Word],
    notes: list[SourceNote],
) -> Stripped:
    options, image = _options(words, run + 1)
    variables: dict[str, Word] = {}
    # Docker reads env files first, wherever they stand, and -e over them.
    for _, word in (option for option in options if option[0] == "env-file"):
        text = None if word.unresolved else read_small_file(word.text)
        if text is None:
            why = f"{_brief(word.text)} cannot be read here: its variables are unknown"
            notes.append(SourceNote("env-file-not-read", why, word.origin))
            continue
        read, said = read_env_file(text, word.text, outside)
        variables.update(read)
        notes.extend(said)
    for _, word in (option for option in options if option[0] == "env"):
        name, equals, value = word.text.partition("=")
        if equals:
            variables[name] = word._replace(text=value)
        elif name in outside:
            variables[name] = outside[name]
    entries = [word for name, word in options if name == "entrypoint" and word.text]
    inner = (*entries[-1:], *words[image + 1 :])
    origin = words[start].origin
    if image >= len(words):
        notes.append(SourceNote("image-missing", "the container run names no image", origin))
    elif not inner or inner[0].text.startswith("-"):
        text = (
            f"{_brief(words[image].text)} runs its own command, which the launch does not show: "
            "name the program behind the image"
        )
        notes.append(SourceNote("image-command", text, origin))
        inner = ()
    wrapper = tuple(word.text for word in words[start : image + 1])
    return Stripped(inner, variables, (wrapper,))


def container_settings(wrapper: Sequence[str]) -> ContainerSettings | None:
    """What the words of ``docker run ... image`` ask for; None for another wrapper."""
    words = [Word(text, Origin("command line")) for text in wrapper]
    if not words or _program(words[0]) not in _ENGINES:
        return None
    run = _run_position(words, 0)
    if not run:
        return None
    options, image = _options(words, run + 1)
    many: dict[str, list[str]] = {}
    for name, word in options:
        many.setdefault(name, []).append(word.text)
    last = {name: values[-1] for name, values in many.items()}
    mounts = [*many.get("volume", ()), *many.get("mount", ()), *many.get("tmpfs", ())]
    return ContainerSettings(
        image=words[image].text if image < len(words) else "",
        ipc=last.get("ipc"),
        network=last.get("network", last.get("net")),
        shm_size_bytes=docker_size(last.get("shm-size", "")),
        ulimits=dict(ulimit(text) for text in many.get("ulimit", ())),
        devices=tuple(many.get("device", ())),
        privileged=last.get("privileged", "false").lower() in ("true", "1", "t"),
        cap_add=tuple(many.get("cap-add", ())),
        mounts=tuple(mounts),
        cpuset_mems=last.get("cpuset-mems"),
        memory_bytes=docker_size(last.get("memory", "")),
        user=last.get("user"),
        gpus=last.get("gpus"),
    )


def ulimit(text: str) -> tuple[str, tuple[str, str]]:
    """``memlock=-1:-1`` as a name with its soft and hard limit; one number is both."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    return name, (soft, hard or soft)


def docker_size(text: str) -> int | None:
    """``32g`` as Docker reads it, in powers of 1024; None for what it refuses."""
    match = _DOCKER_SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number = text.strip()[: match.start(2)].strip()
    power = "kmgtp".find(match.group(2).lower()) + 1 if match.group(2) else 0
    return int(float(number) * 1024**power) if "." in number else int(number) * 1024**power
