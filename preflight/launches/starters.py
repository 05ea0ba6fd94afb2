"""Programs that start what stands in a file: Python, whose text is read; all others are named.

What is named says what to give in its place, as a manifest itself for ``kubectl apply``.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checks.framework.regex import regex
from preflight.launches.launch_files import Beside, LaunchText, read_kind, read_python_text
from preflight.launches.launchers import ASKING, SEVERAL_PROGRAMS, TYPISTS, types_into_pane
from preflight.launches.source import Command, Origin, Reading, SourceError, SourceNote, Word, brief


class _UnreadProgram(NamedTuple):
    """A program that starts what is not read.

    Attributes:
        give: What to give instead.
        verbs: The words with which it starts something, () for any.
    """

    give: str
    verbs: tuple[str, ...] = ()


_ON_HOSTS = _UnreadProgram("give what it runs on one host")
_EACH = _UnreadProgram("write each command that it starts on a line of its own")
_ITSELF = _UnreadProgram("give the command itself")
_UNITS = ("enable", "reenable", "reload-or-restart", "restart", "start")
_CONTAINER = _UnreadProgram("give the run that made the container", ("start", "restart"))
_MANIFEST = _UnreadProgram(
    "give the manifest itself, of -k what kubectl kustomize prints", ("apply", "create", "replace")
)
_COMPOSE = _UnreadProgram(
    "give the Compose file itself, of several what docker compose config prints",
    ("up", "run", "start", "create", "restart"),
)
_SUPERVISED = _UnreadProgram("give the lines behind command= as a script")
_MADE = _UnreadProgram("give what make -n prints with these words")
_UNIT = _UnreadProgram("give what systemctl cat UNIT prints", _UNITS)
_UNREAD = {
    name: entry
    for names, entry in (
        ("ansible ansible-playbook clush parallel-ssh pdsh pssh", _ON_HOSTS),
        ("sky", _ON_HOSTS._replace(verbs=("launch", "exec", "up"))),
        ("terraform", _ON_HOSTS._replace(verbs=("apply",))),
        ("parallel xargs", _EACH),
        (" ".join(SEVERAL_PROGRAMS), _EACH._replace(verbs=("--multi-prog", ":"))),
        ("at batch crontab", _ITSELF),
        (" ".join(TYPISTS), _ITSELF),
        ("chpst doas setuidgid su-exec unshare", _UnreadProgram("put sudo -u NAME in its place")),
        ("docker nerdctl podman", _CONTAINER),
        ("kubectl oc", _MANIFEST),
        ("docker-compose podman-compose", _COMPOSE),
        ("sbatch", _UnreadProgram("give the script of the job on its own")),
        ("srtctl", _UnreadProgram("give the file of the job on its own", ("apply",))),
        ("make gmake", _MADE),
        ("just", _UnreadProgram("give what just --dry-run prints with these words")),
        ("systemd-run", _UnreadProgram("write it as a unit of its own")),
        ("helm", _UnreadProgram("give what helm template CHART prints", ("install", "upgrade"))),
        ("supervisord", _SUPERVISED),
        (
            "supervisorctl",
            _SUPERVISED._replace(verbs=("add", "reload", "restart", "start", "update")),
        ),
        ("systemctl", _UNIT),
        ("service", _UNIT._replace(verbs=("start", "restart"))),
    )
    for name in names.split()
}
# Words with which a program of these only tells, or removes.
_TELLS = {
    **dict.fromkeys(("at", "batch"), frozenset("-l -q -r -d -c -V".split())),
    "crontab": frozenset("-l -r -e".split()),
}
# Programs behind xargs that end or move things, or ask; of an engine those verbs that start.
_ENDS = regex(
    r"awk|basename|cat|chmod|chown|cp|curl|dirname|du|echo|grep|head|kill|ln|ls|mkdir|mv|pkill|ps"
    r"|rm|sed|stat|tail|tar|touch|wc|wget|(?:docker|podman|kubectl)(?! .*\b(?:run|exec|start|create"
    r"|apply)\b)"
)
# In front of that program: a number, a place for an item.
_IN_FRONT = regex(r"^(?:[^A-Za-z/.]\S*(?: |$))+")
# Options of kubectl with a manifest behind them.
_FILES = regex(r"-f|-k|--filename|--kustomize")
# tree-sitter-bash 0.25 loses the - in front of <<.
_STDIN = regex(r"(?:-f|--filename)(?:[ =]?-(?= |$)|$)")
_MINORS = ("", *(f".{minor}" for minor in range(6, 16)))
# Targets that build: no server runs after them.
_BUILDS = regex(r"(?:all|build|check|clean|compile|install|lint|test|wheel)(?:[-_./]|$)|.*\.o$")
# Units of a host itself, and of what watches it: they take none of a launch's memory.
_DAEMONS = regex(
    r"(?:acpid|apache2|apparmor|atd|auditd|autofs|beegfs.*|caddy|ceph.*|chrony.*|containerd|crio"
    r"|cron|crond|dbus.*|dcgm.*|docker|fail2ban|firewalld|.*exporter|getty.*|glusterd|grafana.*"
    r"|haproxy|httpd|iptables|irqbalance|iscsi.*|k3s.*|kubelet|libvirtd|lnet|lustre.*|mst|multipathd?"
    r"|munge|network.*|NetworkManager|nfs.*|nftables|nginx|ntp.*|numad|nv.*|openibd|opensm.*|podman"
    r"|polkit|postfix|procps|prometheus.*|rdma.*|rke2.*|rngd|rpc.*|rsyslog|slurm.*|snapd|sshd?|sssd"
    r"|sysctl|systemd-.*|tailscaled|telegraf|tuned|udev.*|ufw|.*hugepages?.*)(?:@.*)?(?:\.service)?"
    r"|.*\.(?:automount|device|mount|path|slice|socket|swap|target)",  # no services
    re.IGNORECASE,
)
_PYTHONS = frozenset(("python", "python2", *(f"python3{minor}" for minor in _MINORS)))
STARTERS = frozenset((*_UNREAD, *_PYTHONS))
# Options of Python that take the next word.
_PYTHON_VALUED = frozenset(("-W", "-X", "--check-hash-based-pycs"))
# What it is given: a text or a module, attached or in the next word.
_PYTHON_GIVEN = regex(r"-[BEIOPSbdiqsuvx]*([cm])(.*)", re.DOTALL)
# Programs of Python that are told from their words alone.
_TOLD_PROGRAMS = frozenset(("launch_server.py", "bench_multiturn.py"))
# One of these stands in every text that starts something which is told here, or that is unread.
_MAY_START = regex(
    r"subprocess|system|[Pp]open|exec|spawn|runpy|sglang|mooncake|vllm|lmcache|dynamo|lmdeploy"
    r"|tensorrt|Engine|ServerArgs"
)
# Lines of a script above the Python text that stands in it: further down they cost too much.
_MOST_ABOVE = 2000
# Packages whose modules are told from their words, or start nothing.
_PACKAGES = frozenset(
    "accelerate aiperf atom dynamo evalscope genai_perf guidellm http huggingface_hub json lib2to3 "
    "lm_eval lmcache lmdeploy mindie_llm mooncake pip pytest sglang sglang_router tensorrt_llm "
    "torch unittest venv vllm".split()
)


def read_starter(
    argv: Sequence[Word],
    environment: Mapping[str, Word],
    beside: Beside,
    stdin: Word | None = None,
) -> Reading | None:
    """Return the commands of a Python text that a command names or reads.

    A program that starts something described elsewhere, as ``kubectl apply`` does, gives one note,
    on what to give instead.

    Args:
        beside: Gives the text of a file.
        stdin: None if not known.

    Returns:
        None for another command, or if the text starts nothing.
    """
    name = argv[0].text.rpartition("/")[2] if argv else ""
    reading: Reading | None = None
    texts = [word.text for word in argv[1:]]
    if (message := _unread(name, texts)) is not None:
        alone = sum(map(bool, map(_FILES.match, texts))) == 1
        if _UNREAD[name] is _MANIFEST and alone and _STDIN.search(" ".join(texts)):
            reading = stdin and _manifest(stdin, environment, beside)
        return reading or Reading((), (SourceNote("script-not-read", message, argv[0].origin),))
    if name in _PYTHONS:
        return _python(argv, environment, beside, stdin)
    if _is_python_file(name):
        python = argv[0]._replace(text="python3", unresolved=())
        return _python((python, *argv), environment, beside, stdin)
    return None


def _manifest(text: Word, environment: Mapping[str, Word], beside: Beside) -> Reading | None:
    """Return the commands of a manifest on standard input; None if it is not known or is broken.

    Its lines are those of the script around it.
    """
    where, body = text.origin.source, _below(text) + text.text
    manifest = LaunchText(where, body, False, environment, (), beside, is_manifest=True)
    try:
        reading = None if text.unresolved else read_kind(manifest)
    except SourceError:
        return None
    doubted = reading and reading.each(lambda each: each._replace(doubts=text.doubts))
    return doubted and doubted._replace(own_lines=True)


def _below(text: Word) -> str:
    """Return the lines to put above a text, so that its own are those of the script around it."""
    return "\n" * min((text.origin.line or 1) - 1, _MOST_ABOVE)


def _unread(name: str, texts: Sequence[str]) -> str | None:
    """Return the text of the note on a program that starts what is not read, with what to give
    instead.

    Returns:
        None for any other program, or if ``texts``, the words behind it, start nothing.
    """
    entry = _UNREAD.get(name)
    plain = [text for text in texts if text[:1] != "-"]
    near = texts if name in SEVERAL_PROGRAMS else plain[:2]
    if "compose" in near[:1] and entry is _CONTAINER:
        entry = _COMPOSE
    if entry is _COMPOSE:
        near = plain
    units = [text for text in plain if text not in _UNITS]
    of_host = all(map(_DAEMONS.fullmatch, units)) or ("enable" in near and "--now" not in texts)
    if (
        entry is None
        or not _TELLS.get(name, frozenset()).isdisjoint(texts)
        or (entry.verbs and set(entry.verbs).isdisjoint(near))
        or (entry is _CONTAINER and (len(plain) < 2 or plain[0] == "pull"))
        or (entry is _MANIFEST and not any(map(_FILES.match, texts)))
        or (entry in (_MADE, _UNREAD["just"]) and _only_builds(texts))
        or (entry is _EACH and _ENDS.match(_IN_FRONT.sub("", " ".join(plain)) or "echo"))
        or (name in TYPISTS and not types_into_pane(texts))
        or (name in ("systemctl", "service") and of_host)
    ):
        return None
    return f"{brief(' '.join([name, *texts]))}: what it starts is not read; {entry.give}"


def _only_builds(texts: Sequence[str]) -> bool:
    """Return whether all targets of a recipe only build: no server runs after them."""
    pairs = zip(("", *texts), texts, strict=False)  # -C takes a folder, -f a file
    named = [text for before, text in pairs if before not in ("-C", "-f")]
    targets = [text for text in named if text[:1] != "-" and "=" not in text]
    return all(_BUILDS.match(target) or target.isdigit() for target in targets)


def is_starter(argv: Sequence[Word]) -> bool:
    """Return whether a command may start what stands in a file or text that it reads."""
    name = argv[0].text.rpartition("/")[2] if argv else ""
    if name not in _PYTHONS or len(argv) < 3 or argv[1].text != "-m":
        return name in STARTERS or _is_python_file(name)
    return "." in argv[2].text and argv[2].text.partition(".")[0] not in _PACKAGES


def _is_python_file(name: str) -> bool:
    return name.endswith(".py") and name not in _TOLD_PROGRAMS


def _python(
    argv: Sequence[Word], environment: Mapping[str, Word], beside: Beside, stdin: Word | None
) -> Reading | None:
    """Return the commands of ``python3 FILE``, ``-c TEXT`` or standard input.

    If the text cannot be read, the command itself is kept, with a note.

    Returns:
        None if the text may start nothing, or if its words alone tell the program.
    """
    place = 1
    while place < len(argv) and argv[place].text[:1] == "-" and argv[place].text != "-":
        if _PYTHON_GIVEN.fullmatch(argv[place].text) or argv[place].unresolved:
            break
        place += 2 if argv[place].text in _PYTHON_VALUED else 1
    first = argv[place].text if place < len(argv) else "-"
    option = _PYTHON_GIVEN.fullmatch(first)
    behind = argv[place + 1 : place + 2]  # what -c and -m take, where it is not attached
    if option is not None and option[2]:
        behind = (argv[place]._replace(text=option[2]),)
    shown, script_path = "", ""
    if option is not None and option[1] == "c":
        text = next(iter(behind), None)
        shown = "the text of python -c"
    elif option is not None:
        module = behind[0].text if behind else ""
        is_known = module.partition(".")[0] in _PACKAGES or "." not in module
        quiet = is_known or ASKING.fullmatch(module) is not None
        return None if quiet else _unread_python(module, argv, environment)
    elif first == "-":
        text, shown = stdin, "what Python reads from standard input"
    else:
        script, script_path, shown = argv[place], first, brief(first)
        file = first.rpartition("/")[2]
        is_known = any(word.text.startswith("--sglang-") for word in argv[place:])
        if is_known or file in _TOLD_PROGRAMS:
            return None
        content = None if script.unresolved and "/" not in first else beside(first)
        if content is None and not ASKING.fullmatch(file):
            return _unread_python(shown, argv, environment)
        text = None if content is None else Word(content, Origin(script_path, 1))
    if text is None:
        return None
    if not text.text and text.unresolved:
        return _unread_python(shown, argv, environment)
    if _MAY_START.search(text.text) is None:  # to parse each text takes long where they are many
        return None

    def near(path: str) -> str | None:
        itself = script_path and posixpath.normpath(path) == posixpath.normpath(script_path)
        return None if itself else beside(path)

    body = text.text if script_path else _below(text) + text.text
    launch = LaunchText(text.origin.source, body, False, environment, (), near)
    try:
        started = read_python_text(launch)
    except (SourceError, RecursionError):
        return _unread_python(shown or script_path, argv, environment)
    if started is None or started.commands:
        return started
    return started._replace(commands=(_itself(argv, environment),))


def _unread_python(shown: str, argv: Sequence[Word], environment: Mapping[str, Word]) -> Reading:
    message = f"{shown} is not read: what it starts is unknown; name it on its own to read it"
    note = SourceNote("script-not-read", message, argv[0].origin)
    return Reading((_itself(argv, environment),), (note,))


def _itself(argv: Sequence[Word], environment: Mapping[str, Word]) -> Command:
    return Command(tuple(argv), environment, (), argv[0].origin)
