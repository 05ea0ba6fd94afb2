"""Programs that no reader here knows: any that may hold memory nobody counts.

A program that ends before a server starts takes no memory beside it, nor do the tools and services
that are named here. Any other program that runs beside the servers is unknown, as is its memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from checks.framework.regex import regex
from preflight.base.program import data_file
from preflight.launches.launchers import ASKING, LAUNCHERS, remote_words
from preflight.launches.source import Command, Place, brief, open_names
from preflight.launches.wrappers import SHELLS
from preflight.processes.processes import LaunchProcess, ProcessKind, is_program

_SMALL_NAMES = regex(
    r".*(?:balancer|dashboard|exporter|frontend|gateway|metrics|monitor|proxy|router|watcher"
    r"|websocket|[-_]lb)(?:[-_.].*)?",
    re.IGNORECASE | re.DOTALL,
)
# A size of gigabytes among its words: who is told one holds it, whatever the name.
_GIGABYTES = regex(
    r"(?:-[^=]*=)?\d+(?:\.\d+)?[GT](?:i?B)?|-[^=]*(?:size|bytes|pool|mem|cache)[^=]*=\d{10,}",
    re.IGNORECASE,
)
# Words in front by which a program says that it goes on, though the script does not wait for it.
_GOES_ON = regex(r"--?daemon(?:i[sz]e)?(?:=(?!no|false|0).*)?|--?d(?:etach)?|start|serve|server")
# Verbs of engines and clusters that start what their words do not show.
_STARTING = {
    "docker": ("service create", "service scale", "stack deploy"),
    "kubectl": ("create deployment", "create job", "new-app", "rollout restart", "run", "scale"),
    "podman": ("kube play", "play kube"),
}
_STARTING["nerdctl"], _STARTING["oc"] = (), _STARTING["kubectl"]
# Launchers whose first word says whether they start what is behind it.
_NEW_PANES = ("new", "new-session", "new-window", "neww", "respawn-pane", "split-window", "splitw")
_VERBS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("docker", "kubectl", "nerdctl", "oc", "podman"), ("exec",)),
    **dict.fromkeys(("apptainer", "singularity"), ("exec", "run", "instance")),
    **dict.fromkeys("conda hatch mamba micromamba pdm pipenv pixi poetry rye uv".split(), ("run",)),
    "accelerate": ("launch",),
    "enroot": ("start",),
    "ray": ("start",),
    "tmux": _NEW_PANES,
}
# Of launchers to which some of the options that take a word (``valued``) are switches.
_SWITCHES = {"nsenter": frozenset("-C -i -m -n -p -u".split())}
# What starts something that goes on, and the options with which it waits for it.
_DETACH: dict[str, tuple[str, ...]] = {
    **dict.fromkeys("at batch daemonize screen start-stop-daemon tmux".split(), ()),
    "systemd-run": ("--scope", "--wait", "--pty", "--pipe", "-t", "-P"),
}
# Programs and modules of engines and stores, and those among them that hold nothing.
_PRODUCT = regex(
    r"(?:.*[^a-z])?(?:sglang|mooncake|mc_store|vllm|lmcache|dynamo|trtllm|tensorrt_llm|lmdeploy|atom"
    r"|launch_server|api_server|openai_server)(?:[^a-z].*)?",
    re.IGNORECASE | re.DOTALL,
)
_HOLDS_NOTHING = regex(
    r"bench|test|eval|check_env|collect_env|frontend|profil|download|_cli$|conductor|exporter"
    r"|transfer_engine|planner|version|router|mesh|gateway"
)
# What starts a server, behind a program that nobody here knows.
_SERVER = regex(
    r"sglang\.launch_server|vllm\.entrypoints\S*|dynamo\.(?:sglang|vllm|trtllm)"
    r"|(?:.*/)?mooncake_(?:master|client|store_service)|mooncake\.mooncake_store_service"
    r"|lmcache_server"
)
_NOT_KNOWN = "this program is not known here, and so neither is the memory that it takes"


@cache
def _known(row_kind: str) -> frozenset[str]:
    """Return the names of a kind of ``data/small_programs.txt``: tool, small, module or valued."""
    with open(data_file("small_programs.txt"), encoding="ascii") as file:
        rows = [line.split() for line in file if line.startswith(f"{row_kind} ")]
    return frozenset(name for row in rows for name in row[1:])


def tells_of_server(text: str) -> bool:
    """Return whether a word of a command that is not known here says that it starts a server."""
    name = text.rpartition("/")[2]
    known = text in ("serve", "vllm", "sglang") or _SERVER.fullmatch(text) is not None
    return known or _PRODUCT.fullmatch(name) is not None


def unknown_program(command: Command) -> str:
    """Return why a program that no reader knows may be one of an engine or a store, or start one.

    Returns:
        "" if its words show nothing of the kind.
    """
    argv = command.words
    if not argv:
        return ""
    if argv[0].unresolved and not argv[0].text.rpartition("/")[2].isidentifier():
        return f"which program this is depends on {open_names(argv[0])}"
    name = argv[0].text.rpartition("/")[2]
    if name in _known("tool") or is_program(name):
        return ""
    texts = [word.text for word in argv[1:]]
    named = [name]
    if name.startswith("python"):
        script = next((text for text in texts if not text.startswith("-")), "")
        named = [script.rpartition("/")[2]] if "-c" not in texts[:2] else []
    for candidate in filter(_PRODUCT.fullmatch, named):
        if not _HOLDS_NOTHING.search(" ".join([candidate, *texts[:1]])):
            return _NOT_KNOWN
    serves = [a for a, b in pairwise(texts) if b == "serve"]
    started = next((text for text in texts if _SERVER.fullmatch(text)), "")
    if not name.startswith("python") and (started or {"vllm", "sglang"} & set(serves)):
        return f"it is not known here what {brief(name)} does with the server that it starts"
    return ""


class Servers:
    """The places at which known programs of a launch run, and the number of the first that runs in
    the background at each.
    """

    def __init__(self, processes: Iterable[LaunchProcess]) -> None:
        """Note the places of servers, and the first background server of each place and turn."""
        self.places: set[Place | None] = set()
        self.first: dict[tuple[Place | None, int], int] = {}
        for each in processes:
            if each.kind in (ProcessKind.OTHER, ProcessKind.BENCHMARK):
                continue
            self.places.add(each.command.place)
            if not each.command.waited:
                for place in {None, each.command.place}:  # None: of the whole launch
                    self.first.setdefault((place, each.command.turn), each.number)

    def before(self, process: LaunchProcess) -> bool:
        """Return whether a server runs already when a program starts."""
        command = process.command
        return self.first.get((command.place, command.turn), process.number) < process.number


def unknown_beside(process: LaunchProcess, servers: Servers, lost_source: bool) -> str:
    """Return why a program that no reader knows may hold memory beside servers; "" if it may not.

    Args:
        lost_source: Whether the script sources a file that was not read. A word such as
            wait_for_server may then be a function of that file, and no program.
    """
    command = process.command
    if process.kind is not ProcessKind.OTHER or not command.words:
        return ""
    if why := unknown_program(command):
        return why
    texts = [word.text for word in command.words]
    name = texts[0].rpartition("/")[2]
    # A word such as wait_for_server may be one of its functions.
    if is_program(name) or (lost_source and re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+", texts[0])):
        return ""
    # What Python is given in its words is read for what it starts; what it holds itself is not.
    holds = not command.waited and name.startswith("python") and texts[1:2] == ["-c"]
    if _is_small(name, texts) and not holds:
        return ""
    if not _runs_beside(process, servers):
        return ""
    image = command.container.image if command.container is not None else ""
    return f"{_NOT_KNOWN} ({brief(image)})" if image else _NOT_KNOWN


def _runs_beside(process: LaunchProcess, servers: Servers) -> bool:
    """Return whether a program may run while a server does."""
    command = process.command
    texts = [word.text for word in command.words]
    name = texts[0].rpartition("/")[2]
    started = _inner_command(name, texts) if name in _VERBS or name in LAUNCHERS else texts
    if not command.waited or any(map(_GOES_ON.fullmatch, (*texts[1:3], *started[1:3]))):
        return True
    if any(map(_detaches, (*command.wrappers, texts))) or _starts_unseen(name, texts):
        return True
    # Where no server is, it is its container's own program.
    of_container = command.place is not None and command.place not in servers.places
    return of_container or servers.before(process)


def _detaches(argv: Sequence[str]) -> bool:
    """Return whether a launcher leaves its program running."""
    name = argv[0].rpartition("/")[2]
    if name == "setsid":
        return bool({"-f", "--fork"} & set(argv))
    return name in _DETACH and not set(_DETACH[name]) & set(argv)


def _is_small(name: str, texts: Sequence[str]) -> bool:
    """Return whether a program's words show that it holds little memory, or is only a client."""
    if _starts_unseen(name, texts):
        return False
    if name in _VERBS or name in LAUNCHERS:
        remote = remote_words(texts)
        if remote is not None and not texts[remote.start :]:
            return True  # ssh -N -L: nothing runs behind it
        started = _inner_command(name, texts)
        return not started or _holds_little(started[0].rpartition("/")[2], started[1:])
    return _holds_little(name, texts[1:])


def _holds_little(name: str, behind: Sequence[str]) -> bool:
    if name in _known("tool") | _known("small") | SHELLS:
        return True
    if name.startswith("python"):
        return _is_small_python(behind)
    return _is_small_by_name(name, behind)


def _is_small_by_name(name: str, behind: Iterable[str]) -> bool:
    """Return whether a name is that of a proxy, a monitor or a client."""
    named = ASKING.fullmatch(name) is not None or _SMALL_NAMES.fullmatch(name) is not None
    return named and not any(map(_GIGABYTES.fullmatch, behind))


def _inner_command(name: str, texts: Sequence[str]) -> Sequence[str]:
    """Return the words of the command that a launcher starts; empty if its words start nothing.

    Args:
        name: The launcher's, without folder.
        texts: All words, the launcher first. Only options that ``small_programs.txt`` lists as
            valued take a word; every other option is a switch.
    """
    plain: list[str] = []
    before = ""
    for at, text in enumerate(texts[1:], start=1):
        if text == "--" and len(plain) >= len(_VERBS.get(name, ())[:1]):
            plain += texts[at + 1 :]
            break
        cluster = f"-{before[-1:]}" if re.fullmatch(r"-[A-Za-z]+", before) else before
        valued = _known("valued") - _SWITCHES.get(name, frozenset())
        if text[:1] != "-" and valued.isdisjoint((before, cluster)):
            plain.append(text)
        before = text
    if name not in _VERBS:
        return [text for each in plain[:1] for text in each.split()] + plain[1:]
    verb = next((at for at, text in enumerate(plain[:2]) if text in _VERBS[name]), None)
    if verb is None:
        return ()
    behind = plain[verb + 1 + (plain[verb] == "exec") :]  # behind its container or image
    return [text for each in behind[:1] for text in each.split()] + behind[1:]


def _starts_unseen(name: str, texts: Sequence[str]) -> bool:
    """Return whether words such as ``kubectl run x`` start an unseen program."""
    plain = [text for text in texts[1:] if text[:1] != "-"][:2]
    if any(text in ("--replicas=0", "--help", "-h") for text in texts):
        return False
    return any(plain[: len(verb.split())] == verb.split() for verb in _STARTING.get(name, ()))


def _is_small_python(texts: Sequence[str]) -> bool:
    """Tell whether a Python command holds little memory: its script is read as text, or it runs a
    small module.

    Args:
        texts: The words behind ``python``.
    """
    for at, text in enumerate(texts):
        if text == "-":
            return True  # what it reads from standard input is read
        if text == "-m" or not text.startswith("-"):
            named = texts[at + 1] if text == "-m" and at + 1 < len(texts) else text
            break
        if text.startswith("-c"):
            return True  # its text is read
    else:
        return True  # what it reads from standard input is read, too
    if text != "-m":
        return _is_small_by_name(named.rpartition("/")[2], texts)
    small = named.partition(".")[0] in _known("module")
    return small or _HOLDS_NOTHING.search(named) is not None or _is_small_by_name(named, texts)
