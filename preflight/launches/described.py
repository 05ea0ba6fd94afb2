"""Programs that start what a file describes: kubectl apply, docker compose up, sbatch, Python.

Those of which nothing is read are named, with what to give in their place.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from checks.base.needs import RunAs
from preflight.base.shell import quote
from preflight.launches.asking import ASKING
from preflight.launches.launch_kind import (
    COMPOSE_FILES,
    COMPOSE_OVERRIDES,
    Beside,
    LaunchText,
    read_kind,
    started_by_python,
)
from preflight.launches.launchers import IN_JOB, SEVERAL_PROGRAMS, TYPISTS, slurm_variables, types
from preflight.launches.set_limits import of_job
from preflight.launches.source import (
    Command,
    Origin,
    Reading,
    SourceError,
    SourceNote,
    Word,
    brief,
    joined,
)


class _Starter(NamedTuple):
    """verbs: of which one is among the words. flags: each in front of a file.

    usual: the files that it takes where none is named. alone: the first word that is no option is
    the file, and those behind it are its arguments.
    """

    verbs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    alone: bool = False


class _Unread(NamedTuple):
    """What a program starts that is not read. give: what to give in its place.

    verbs: of which one is among its first words, () for any words.
    """

    give: str
    verbs: tuple[str, ...] = ()


_COMPOSE = _Starter(("up", "run", "start", "create"), ("-f", "--file"), COMPOSE_FILES)
_APPLY = _Starter(("apply", "create", "replace"), ("-f", "--filename", "-k", "--kustomize"))
_STARTERS = {
    "kubectl": _APPLY,
    "oc": _APPLY,
    "docker-compose": _COMPOSE,
    "docker": _COMPOSE,
    "podman-compose": _COMPOSE,
    "srtctl": _Starter(("apply", "dry-run"), ("-f", "--file")),
    "sbatch": _Starter(alone=True),
}
_ON_HOSTS = _Unread("give what it runs on one host")
_EACH = _Unread("write each command that it starts on a line of its own")
_ITSELF = _Unread("give the command itself")
_UNITS = ("enable", "reenable", "reload-or-restart", "restart", "start")
_CONTAINER = _Unread("give the run that made the container", ("start", "restart"))
_SUPERVISED = _Unread("give the lines behind command= as a script")
_MADE = _Unread("give what make -n prints with these words")
_UNREAD = {
    **dict.fromkeys(("ansible", "ansible-playbook", "clush", "parallel-ssh"), _ON_HOSTS),
    **dict.fromkeys(("pdsh", "pssh"), _ON_HOSTS),
    **dict.fromkeys(("parallel", "xargs"), _EACH),
    **dict.fromkeys(("at", "batch", "crontab"), _ITSELF),
    **dict.fromkeys(("docker", "nerdctl", "podman"), _CONTAINER),
    **dict.fromkeys(SEVERAL_PROGRAMS, _EACH._replace(verbs=("--multi-prog", ":"))),
    **dict.fromkeys(TYPISTS, _ITSELF),
    **dict.fromkeys(("make", "gmake"), _MADE),
    "just": _Unread("give what just --dry-run prints with these words"),
    "sky": _ON_HOSTS._replace(verbs=("launch", "exec", "up")),
    "terraform": _ON_HOSTS._replace(verbs=("apply",)),
    "systemd-run": _Unread("write it as a unit of its own"),
    "helm": _Unread("give what helm template CHART prints", ("install", "upgrade")),
    "supervisord": _SUPERVISED,
    "supervisorctl": _SUPERVISED._replace(verbs=("add", "reload", "restart", "start", "update")),
    "systemctl": _Unread("give what systemctl cat UNIT prints", _UNITS),
    "service": _Unread("give what systemctl cat UNIT prints", ("start", "restart")),
}
# Words with which a program of these only tells, or removes.
_TELLS = {
    **dict.fromkeys(("at", "batch"), frozenset("-l -q -r -d -c -V".split())),
    "crontab": frozenset("-l -r -e".split()),
}
# Programs behind xargs that end or move things, or ask; of an engine those verbs that start.
_ENDS = re.compile(
    r"awk|basename|cat|chmod|chown|cp|curl|dirname|du|echo|grep|head|kill|ln|ls|mkdir|mv|pkill|ps"
    r"|rm|sed|stat|tail|tar|touch|wc|wget|(?:docker|podman|kubectl)(?! .*\b(?:run|exec|start|create"
    r"|apply)\b)"
)
_MINORS = ("", *(f".{minor}" for minor in range(6, 16)))
# Targets that build: no server runs after them.
_BUILDS = re.compile(
    r"(?:all|build|check|clean|compile|install|lint|test|wheel)(?:[-_./]|$)|.*\.o$"
)
# Units of a host itself, and of what watches it: they take none of a launch's memory.
_DAEMONS = re.compile(
    r"(?:acpid|apache2|apparmor|atd|auditd|autofs|beegfs.*|caddy|ceph.*|chrony.*|containerd|crio"
    r"|cron|crond|dbus.*|dcgm.*|docker|fail2ban|firewalld|.*exporter|getty.*|glusterd|grafana.*"
    r"|haproxy|httpd|iptables|irqbalance|iscsi.*|k3s.*|kubelet|libvirtd|lnet|lustre.*|mst|multipathd?"
    r"|munge|network.*|NetworkManager|nfs.*|nftables|nginx|ntp.*|numad|nv.*|openibd|opensm.*|podman"
    r"|polkit|postfix|procps|prometheus.*|rdma.*|rke2.*|rngd|rpc.*|rsyslog|slurm.*|snapd|sshd?|sssd"
    r"|sysctl|systemd-.*|tailscaled|telegraf|tuned|udev.*|ufw|.*hugepages?.*)(?:@.*)?",
    re.IGNORECASE,
)
_NO_SERVICES = re.compile(r".*\.(?:automount|device|mount|path|slice|socket|swap|target)")
_PYTHONS = frozenset(("python", "python2", *(f"python3{minor}" for minor in _MINORS)))
STARTERS = frozenset((*_STARTERS, *_UNREAD, *_PYTHONS))
# Options of Python that take the next word.
_PYTHON_VALUED = frozenset(("-W", "-X", "--check-hash-based-pycs"))
# What it is given: a text or a module, attached or in the next word.
_PYTHON_GIVEN = re.compile(r"-[BEIOPSbdiqsuvx]*([cm])(.*)", re.DOTALL)
# Programs of Python that are told from their words alone.
_TOLD_PROGRAMS = frozenset(("launch_server.py", "bench_multiturn.py"))
# One of these stands in every text that starts something which is told here, or that is unread.
_MAY_START = re.compile(
    r"subprocess|system|[Pp]open|exec|spawn|runpy|sglang|mooncake|vllm|lmcache|dynamo|lmdeploy"
    r"|tensorrt|Engine|ServerArgs"
)
# What a text that is not valid Python has to hold before it may start something.
_PYTHON_STARTS = re.compile(
    r"\b(?:subprocess|Popen|exec\w*\(|os\.(?:system|popen|spawn)|sglang|mooncake|vllm|lmcache)\b"
)
# Lines of a script above the Python text that stands in it: further down they cost too much.
_MOST_ABOVE = 2000
# Packages whose modules are told from their words, or start nothing.
_PACKAGES = frozenset(
    "accelerate aiperf atom dynamo evalscope genai_perf guidellm http huggingface_hub json lib2to3 "
    "lm_eval lmcache lmdeploy mindie_llm mooncake pip pytest sglang sglang_router tensorrt_llm "
    "torch unittest venv vllm".split()
)
# Options of docker compose that take the next word; -w is --watch to up.
_VALUED = frozenset(
    "-f --file -p --project-name --profile --env-file --project-directory --ansi --parallel "
    "--progress --scale -t --timeout --wait-timeout --attach --no-attach --exit-code-from --pull "
    "-e --env -v --volume --publish -u --user --workdir --name --entrypoint -l --label --cap-add "
    "--cap-drop".split()
)
_JOBS = (".sh", ".sbatch", ".slurm", ".job", ".batch")
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


def described(
    words: Sequence[Word],
    environment: Mapping[str, Word],
    beside: Beside,
    given: Word | None = None,
) -> Reading | None:
    """Return what the files that a command names start; None for a command that starts nothing.

    given: what the command reads from standard input, where that is known.
    """
    name = words[0].text.rpartition("/")[2] if words else ""
    starter = _STARTERS.get(name)
    texts = [word.text for word in words[1:]]
    if (said := _unread(name, texts)) is not None:
        return Reading((), (SourceNote("script-not-read", said, words[0].origin),))
    if name in _PYTHONS:
        return _python(words, environment, beside, given)
    if _is_python_file(name):
        python = words[0]._replace(text="python3", unresolved=())
        return _python((python, *words), environment, beside, given)
    if starter is None or (starter.verbs and not set(starter.verbs) & set(texts)):
        return None
    if name == "docker" and "compose" not in texts[:4]:
        return None
    if starter.alone:
        return _job(words, environment, beside)
    named = list(_named(words[1:], starter.flags))
    usual = next((each for each in starter.usual if beside(each) is not None), None)
    if not named and usual is not None:
        lies = [usual]
        if starter is _COMPOSE:
            lies += [each for each in COMPOSE_OVERRIDES if beside(each) is not None][:1]
        named = [words[0]._replace(text=each, unresolved=()) for each in lies]
    if not named:
        said = f"{' '.join([name, *texts])[:80]}: the file that it reads is not here"
        return Reading((), (SourceNote("manifest-not-read", said, words[0].origin),))
    if starter is _COMPOSE:
        return _compose(words, named, environment, beside, given)
    return joined(_one(word, environment, beside, given) for word in named)


def _compose(
    words: Sequence[Word],
    named: Sequence[Word],
    environment: Mapping[str, Word],
    beside: Beside,
    given: Word | None,
) -> Reading:
    """Return what ``docker compose up`` starts of one file; several over each other are named."""
    first, *others = named
    verb, chosen = _chosen(words)
    said = []
    if others:
        files = " ".join(f"-f {quote(word.text)}" for word in named)
        said.append(
            f"files over each other are not read: give what docker compose {files} config prints"
        )
    if profiles := list(_named(words, ("--profile",))):  # they stand over the variable
        names = ",".join(word.text for word in profiles)
        open_ = tuple(name for word in profiles for name in word.unresolved)
        asked = profiles[0]._replace(text=names, unresolved=open_)
        environment = {**environment, "COMPOSE_PROFILES": asked}
    if not chosen and any(word.unresolved for word in words[1:]):
        # Who names a service starts it, whatever its profiles, and here anybody may be named.
        environment = {**environment, "COMPOSE_PROFILES": first._replace(text="*")}
    found = Reading(())
    if not others:
        arguments = chosen[: 1 if verb == "run" else None]
        found = _one(first, environment, beside, given, arguments)
    if scaled := [word.text for word in _named(words, ("--scale",))]:
        said.append(
            f"how many --scale {scaled[0]} starts is not read: write it under deploy.replicas"
        )
    if verb == "run" and len(chosen) > 1:
        run = f"docker compose run {quote(chosen[0])} {quote(chosen[1])}"
        said.append(f"{run}: what stands in place of the service's command is not read")
    if chosen and not (found.commands or found.notes or said):
        said.append(f"{first.text} has no service {', '.join(chosen)}")
    notes = (SourceNote("manifest-not-read", each, first.origin) for each in said)
    return found._replace(notes=(*found.notes, *notes))


def _unread(name: str, texts: Sequence[str]) -> str | None:
    """Return what to say of a command of which nothing is read; None if it starts nothing."""
    entry = _UNREAD.get(name)
    plain = [text for text in texts if text[:1] != "-"]
    near = texts if name in SEVERAL_PROGRAMS else plain[:2]
    if entry is None or not _TELLS.get(name, frozenset()).isdisjoint(texts):
        return None
    if entry.verbs and set(entry.verbs).isdisjoint(near):
        return None
    if entry is _CONTAINER and ("compose" in near or len(plain) < 2 or plain[0] == "pull"):
        return None
    if entry in (_MADE, _UNREAD["just"]) and _builds(texts):
        return None
    if entry is _EACH and _ENDS.match(" ".join(_program(plain))):
        return None
    if name in TYPISTS and not types(texts):
        return None
    units = [text for text in plain if text not in _UNITS]
    if name in ("systemctl", "service") and (
        all(map(_of_host, units)) or ("enable" in near and "--now" not in texts)
    ):
        return None
    return f"{brief(' '.join([name, *texts]))}: what it starts is not read; {entry.give}"


def _program(plain: Sequence[str]) -> Sequence[str]:
    """Return the words from the first that may be a program on: no number, no place for an item."""
    place = next((at for at, text in enumerate(plain) if re.match(r"[A-Za-z/.]", text)), None)
    return ["echo"] if place is None else plain[place:]


def _of_host(unit: str) -> bool:
    """Return whether a unit is one of the host itself, or no service."""
    unit = unit.removesuffix(".service")
    return bool(_DAEMONS.fullmatch(unit) or _NO_SERVICES.fullmatch(unit))


def _builds(texts: Sequence[str]) -> bool:
    """Return whether all targets of a recipe are such that no server runs after them."""
    behind = ("", *texts)  # what stands in front of each: -C takes a folder, -f a file
    targets = [
        text
        for before, text in zip(behind, texts, strict=False)
        if text[:1] != "-" and "=" not in text and before not in ("-C", "-f")
    ]
    return all(_BUILDS.match(target) or target.isdigit() for target in targets)


def is_described(words: Sequence[Word]) -> bool:
    """Return whether what a command starts may stand in a file or text that it reads."""
    name = words[0].text.rpartition("/")[2] if words else ""
    if name not in _PYTHONS or len(words) < 3 or words[1].text != "-m":
        return name in STARTERS or _is_python_file(name)
    return "." in words[2].text and words[2].text.partition(".")[0] not in _PACKAGES


def _is_python_file(name: str) -> bool:
    return name.endswith(".py") and name not in _TOLD_PROGRAMS


def _python(
    words: Sequence[Word],
    environment: Mapping[str, Word],
    beside: Beside,
    given: Word | None,
) -> Reading | None:
    """Return what ``python3 FILE``, ``-c TEXT`` or a text on standard input starts.

    None where that is nothing, and for what is told from its words.
    """
    place = 1
    while place < len(words) and words[place].text[:1] == "-" and words[place].text != "-":
        if _PYTHON_GIVEN.fullmatch(words[place].text) or words[place].unresolved:
            break
        place += 2 if words[place].text in _PYTHON_VALUED else 1
    first = words[place].text if place < len(words) else "-"
    option = _PYTHON_GIVEN.fullmatch(first)
    behind = words[place + 1 : place + 2]  # what -c and -m take, where it is not attached
    if option is not None and option[2]:
        behind = (words[place]._replace(text=option[2]),)
    shown, own = "", ""
    if option is not None and option[1] == "c":
        text = next(iter(behind), None)
        shown = "the text of python -c"
    elif option is not None:
        module = behind[0].text if behind else ""
        own = f"{module.replace('.', '/')}.py"
        if module.partition(".")[0] in _PACKAGES:
            return None
        found = beside(own)
        if found is None and "." in module and not ASKING.fullmatch(module):
            return _unread_python(module, words, environment)
        text = None if found is None else Word(found, Origin(own, 1))
    elif first == "-":
        text, shown = given, "what Python reads from standard input"
    else:
        script, own, shown = words[place], first, brief(first)
        file = first.rpartition("/")[2]
        told = any(word.text.startswith("--sglang-") for word in words[place:])
        if told or file in _TOLD_PROGRAMS:
            return None
        found = None if script.unresolved and "/" not in first else beside(first)
        if found is None and not ASKING.fullmatch(file):
            return _unread_python(shown, words, environment)
        text = None if found is None else Word(found, Origin(own, 1))
    if text is None:
        return None
    if not text.text and text.unresolved:
        return _unread_python(shown, words, environment)
    if _MAY_START.search(text.text) is None:  # to parse each text takes long where they are many
        return None

    def near(path: str) -> str | None:
        return None if own and posixpath.normpath(path) == posixpath.normpath(own) else beside(path)

    # Its lines are those of the script around it.
    above = 0 if own else min((text.origin.line or 1) - 1, _MOST_ABOVE)
    body = "\n" * above + text.text
    launch = LaunchText(text.origin.source, body, False, environment, (), near)
    try:
        started = started_by_python(launch)
    except (SourceError, RecursionError):
        if _PYTHON_STARTS.search(text.text) is None:
            return None
        return _unread_python(shown or own, words, environment)
    if started is None or started.commands:
        return started
    return started._replace(commands=(_itself(words, environment),))


def _unread_python(shown: str, words: Sequence[Word], environment: Mapping[str, Word]) -> Reading:
    said = f"{shown} is not read: what it starts is unknown; name it on its own to read it"
    note = SourceNote("script-not-read", said, words[0].origin)
    return Reading((_itself(words, environment),), (note,))


def _itself(words: Sequence[Word], environment: Mapping[str, Word]) -> Command:
    return Command(tuple(words), environment, (), words[0].origin)


def _chosen(words: Sequence[Word]) -> tuple[str, tuple[str, ...]]:
    """Return the verb of ``docker compose``, and the services behind it; none where one is open."""
    plain: list[Word] = []
    before = ""
    for word in words[1:]:
        if before not in _VALUED and word.text[:1] != "-":
            plain.append(word)
        before = word.text
    texts = [word.text for word in plain]
    place = next((i for i, text in enumerate(texts) if text in _COMPOSE.verbs), len(texts) - 1)
    open_ = any(word.unresolved for word in plain[place + 1 :])
    return texts[place], () if open_ else tuple(texts[place + 1 :])


def _named(words: Sequence[Word], flags: Sequence[str]) -> Iterator[Word]:
    before = ""
    for word in words:
        name, equals, value = word.text.partition("=")
        if equals and name in flags:
            yield word._replace(text=value)
        elif before in flags:
            yield from (word._replace(text=each) for each in word.text.split(",") if each)
        before = word.text


def _job(words: Sequence[Word], environment: Mapping[str, Word], beside: Beside) -> Reading:
    """Read ``sbatch OPTIONS FILE ARGUMENTS`` or ``sbatch --wrap TEXT``."""
    for index, word in enumerate(words):
        option, equals, text = word.text.partition("=")
        if option == "--wrap" and (equals or index + 1 < len(words)):
            text = text if equals else words[index + 1].text
            return _in_job(_text(text, word.origin.source, environment, beside), words[0].origin)
    plain = [index for index, word in enumerate(words) if index and word.text[:1] != "-"]
    place = next((index for index in plain if beside(words[index].text) is not None), None)
    if place is None:
        place = next((i for i in plain if words[i].text.endswith(_JOBS)), None)
    if place is None:
        said = "sbatch: the job that it starts is not read: name its script"
        return Reading((), (SourceNote("manifest-not-read", said, words[0].origin),))
    arguments = tuple(word.text for word in words[place + 1 :])
    options = [word.text for word in words[1:place]]
    told = slurm_variables(beside(words[place].text) or "", options)
    variables = {name: Word(text, words[0].origin) for name, text in told.items()}
    found = _one(words[place], {**environment, **variables}, beside, None, arguments)
    return _in_job(found, words[0].origin)


def _in_job(reading: Reading, origin: Origin) -> Reading:
    """Return what a job starts, with the limits that Slurm gives it where its text is no job's."""
    commands = (
        one if IN_JOB in one.environment else one.under(RunAs(), (of_job(origin),))
        for one in reading.commands
    )
    return reading._replace(commands=tuple(commands))


def _one(
    word: Word,
    environment: Mapping[str, Word],
    beside: Beside,
    given: Word | None,
    arguments: Sequence[str] = (),
) -> Reading:
    name = word.text
    text: str | None = None
    open_names = given.unresolved if given is not None else ()
    if name == "-" and given is not None and all(map(str.isidentifier, open_names)):
        text, name = given.text, f"{word.origin} (standard input)"
    elif not word.unresolved and name != "-":
        text = beside(name)
    if text is None:
        shown = "what it reads from standard input" if name == "-" else name
        said = f"{shown} is not read: give the manifest on its own"
        return Reading((), (SourceNote("manifest-not-read", said, word.origin),))
    folder = posixpath.dirname(name)

    def near(path: str) -> str | None:
        own = posixpath.normpath(posixpath.join(folder, path)) if word.text != "-" else path
        return None if own == posixpath.normpath(name) else beside(own)  # not itself again

    reading = _text(text, name, environment, near, arguments)
    if open_names and word.text == "-":
        commands = tuple(_left_open(command, open_names) for command in reading.commands)
        return reading._replace(commands=commands)
    return reading


def _left_open(command: Command, names: Sequence[str]) -> Command:
    """Return a command of a text in which variables stand that nothing sets."""

    def marked(word: Word) -> Word:
        found = [name for name in _NAME.findall(word.text) if name in names]
        return word._replace(unresolved=(*word.unresolved, *found)) if found else word

    environment = {name: marked(word) for name, word in command.environment.items()}
    return command._replace(words=tuple(map(marked, command.words)), environment=environment)


def _text(
    text: str,
    name: str,
    environment: Mapping[str, Word],
    beside: Beside,
    arguments: Sequence[str] = (),
) -> Reading:
    launch = LaunchText(name, text, False, environment, (), beside, arguments)
    try:
        return read_kind(launch)
    except SourceError as error:
        return Reading((), (SourceNote("manifest-not-read", str(error), Origin(name)),))
