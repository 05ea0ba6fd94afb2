"""Programs that start others in a way of their own: srun, ssh, uv run, docker exec, an entrypoint.

Their options are not read one by one. What is looked for behind them is the start of something that
is read here, and what they do to its environment is told rather than guessed.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from checks.framework.regex import regex
from preflight.launches.source import ASSIGNMENT, SourceNote, Word, brief


class LaunchedProgram(NamedTuple):
    """The program that a launcher starts.

    Attributes:
        start: The index of the program; behind the last word if a shell reads standard input.
        script: The text of a shell that begins at ``start``.
        module: Python's words (``-m sglang.launch_server``) without Python.
        elsewhere: The program has another place's environment, not the caller's.
        settings: ``-e NAME=value`` of the launcher.
    """

    start: int
    script: Word | None
    module: bool
    elsewhere: bool
    settings: tuple[tuple[str, Word], ...]
    note: SourceNote | None


# Beside the caller, in its environment, once: Python's own managers, profilers, guards.
_HERE = frozenset(
    "accelerate catchsegv conda coverage flock gdb hatch ip ltrace mamba micromamba ncu "
    "nsenter nsys pdm perf pipenv pixi poetry prlimit py-spy rye screen script setpriv "
    "sshpass strace tmux uv uvx valgrind watch xvfb-run".split()
)
# Of those, and of others, the ones that run a Python file by its name alone.
_RUN_FILES = frozenset("accelerate hatch pdm pipenv pixi poetry rye torchrun uv".split())
# What each of these changes, which a launch does not show.
_TOLD = {
    **dict.fromkeys(("runuser", "su"), "which variables it keeps"),
    **dict.fromkeys(("mpiexec", "mpirun", "prun"), "how many it starts, and where"),
    "srun": "how many it starts, where, and under which limits",
    "torchrun": "how many it starts",
    **dict.fromkeys(("apptainer", "enroot", "singularity"), "what the container brings along"),
}
_EXEC_ENGINES = ("docker", "nerdctl", "podman")
_ELSEWHERE = {
    **dict.fromkeys(_EXEC_ENGINES, "the environment of the container"),
    **dict.fromkeys(("kubectl", "oc"), "the environment of the pod"),
    "ray": "the environment of the cluster",
    "ssh": "the environment of the other host",
}
# Options of ssh that take the next word.
_SSH_VALUED = frozenset("-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w".split())
REMOTE = frozenset(("ssh",))
# Start several programs at once, with a colon between them, or as a file says it: not read.
SEVERAL_PROGRAMS = frozenset("mpiexec mpirun prun srun".split())
# Start one program with several words, or on several hosts: not read.
_FAN_OUT = frozenset("clush parallel parallel-ssh pdsh xargs".split())
# Type into the shells of panes: not read.
TYPISTS = frozenset(("screen", "tmux"))
LAUNCHERS = _HERE | _TOLD.keys() | _ELSEWHERE.keys()
# A script that is given a program: the entrypoint of an image, or one's own wrapper.
_ENTRYPOINT = regex(r"\.sh$|entrypoint")
_MODULE = regex(r"(sglang|sglang_router|mooncake|vllm|lmcache)\.[\w.]+|dynamo\.\w+")
_NAMED = regex(
    r"mooncake_(master|client|store_service|http_metadata_server)|mc_store_\w+|lmcache_server"
    r"|sglang-router|trtllm-serve|etcd|redis-server|nats-server"
)
_SCRIPT = regex(
    r"\s-m\s+(sglang|mooncake|vllm|dynamo|lmcache)|mooncake_(master|client)"
    r"|\b(sglang|vllm)\s+serve\s"
)
_SERVES = regex(
    r"-m (?:\w+\.)+(?:launch_server|api_server|mooncake_\w+|server)\b|(?:sglang|vllm) serve "
)
# What Python is given; a word alone is the value of an option, as in uv run --python python3.12.
_ARGUMENT = regex(r"-[BEIOSWXcmsuv]|.*\.pyz?$")
# Names of the shell's own, which here are a launcher's: docker exec.
_BUILTINS = frozenset(("builtin", "command", "exec", "time"))
# Programs that ask a server, or make its files: named so, they start none.
ASKING = regex(
    r"(?:.*[-_/.])?(?:analy[sz]e|bench|benchmark|check|client|collect_env|convert|download|eval"
    r"|evaluate|health|hello|merge|plot|prepare|preprocess|profile|quantize|query|report|request"
    r"|requests|send|setup|summarize|test|tests|validate|version|wait|warmup)(?:[-_.0-9][^/]*)?"
    r"|pip|conda",
    re.IGNORECASE,
)
# Programs that name others, and start none.
_TALKS = frozenset("cat echo grep kill killall pgrep pkill ps tail which".split())


def is_launcher(program: str) -> bool:
    """Return whether another program may stand behind the words of ``program``, a bare name."""
    return program in LAUNCHERS or _ENTRYPOINT.search(program) is not None


class RemoteWords(NamedTuple):
    """hosts: the host, "" for none. start: where the words for the host's shell begin."""

    hosts: str
    start: int


def remote_words(argv: Sequence[str], first: int = 0) -> RemoteWords | None:
    """Return the host of ``ssh -p 22 user@host words`` at index ``first``, and where the words for
    its shell begin.

    Returns:
        None for another program.
    """
    if not argv[first:] or argv[first].rpartition("/")[2] != "ssh":
        return None
    host, index = "", first + 1
    while index < len(argv):
        text = argv[index]
        if text.startswith("-") and text != "--":
            index += 1 + (text in _SSH_VALUED)
        elif not host and text != "--":  # ssh takes options behind its host too
            host, index = text.rpartition("@")[2], index + 1
        else:
            index += text == "--"
            break
    return RemoteWords(host, min(index, len(argv)))


def types_into_pane(texts: Sequence[str]) -> bool:
    """Return whether a command of tmux or screen types into a pane."""
    return not {"send", "send-keys", "stuff"}.isdisjoint(texts)


def find_program(
    argv: Sequence[Word], first: int, begins: Callable[[str], bool], has_stdin: bool = False
) -> LaunchedProgram | None:
    """Find the program behind the launcher at index ``first`` (srun, ssh, su ...); None if no
    program that can be read stands behind it.

    Args:
        begins: Tells by a word's name whether the word is a wrapper, shell or container engine.
        has_stdin: Standard input has a script.
    """
    name = argv[first].text.rpartition("/")[2]
    remote = remote_words([word.text for word in argv], first)
    if remote is not None:
        behind = argv[remote.start :]
        if not behind and not has_stdin:
            return None
        script = _remote_text(behind) if behind else None
        return LaunchedProgram(remote.start, script, False, True, (), _note(argv[first], name))
    texts = [word.text for word in argv[first:]]
    several = name in SEVERAL_PROGRAMS and {":", "--multi-prog"} & {*texts}
    if several or (name in TYPISTS and types_into_pane(texts)):
        return None
    if name in _EXEC_ENGINES and all(word.text != "exec" for word in argv[first + 1 : first + 4]):
        return None
    start, is_script, module = first + 1, False, False
    while start < len(argv):
        text = argv[start].text
        program = text.rpartition("/")[2]
        following = argv[start + 1].text if start + 1 < len(argv) else ""
        before = argv[start - 1].text
        if name in ("su", "runuser") and before in ("-s", "--shell"):
            start += 1
            continue
        module = text == "-m" and _MODULE.fullmatch(following) is not None
        is_script = " " in text.strip() and _SCRIPT.search(text) is not None
        is_script = is_script or (name in ("su", "runuser") and before in ("-c", "--command"))
        if program in _TALKS:
            return None
        if (
            module
            or is_script
            or (begins(program) and (following or has_stdin) and program not in _BUILTINS)
            or (program.startswith("python") and _ARGUMENT.match(following))
            or _NAMED.fullmatch(program)
            or program in _FAN_OUT
            or (name in _RUN_FILES and text.endswith(".py") and "add" not in before)
            or (program in ("sglang", "vllm") and following == "serve")
        ):
            break
        start += 1
    else:
        if not (has_stdin and name in ("su", "runuser")):
            return None
    written = argv[start] if is_script else None
    settings, note = _settings(argv[first:start]), _note(argv[first], name)
    return LaunchedProgram(start, written, module, name in _ELSEWHERE, settings, note)


def _remote_text(argv: Sequence[Word]) -> Word:
    """Return the text for the shell of another host: the words, joined by blanks."""
    return argv[0]._replace(
        text=" ".join(word.text for word in argv),
        unresolved=tuple(name for word in argv for name in word.unresolved),
        doubts=tuple(dict.fromkeys(doubt for word in argv for doubt in word.doubts)),
    )


def starts_server(argv: Sequence[Word]) -> bool:
    """Tell whether words start a long-running program of a launch: an engine, a store, a master, a
    router, or a service such as etcd.

    ``--help`` and ``--version`` start none.
    """
    texts = [word.text for word in argv]
    if not texts or {"-h", "--help", "-v", "--version"} & set(texts):
        return False
    named = _NAMED.fullmatch(texts[0].rpartition("/")[2]) is not None
    return named or _SERVES.search(" ".join(texts)) is not None


def starts_anew(wrapper: Sequence[str]) -> bool:
    """Return whether a wrapper's program is no child of the caller: its limits differ."""
    name = wrapper[0].rpartition("/")[2]
    return name in _ELSEWHERE and (name not in _EXEC_ENGINES or "exec" in wrapper)


def enters_container(wrapper: Sequence[str]) -> bool:
    """Return whether a wrapper starts something in a container that runs already."""
    name = wrapper[0].rpartition("/")[2]
    return "exec" in wrapper and (name in _EXEC_ENGINES or name in ("kubectl", "oc"))


# What Slurm sets in a job, and in no shell that submits one.
IN_JOB = "SLURM_JOB_ID"


class Tasks(NamedTuple):
    """How many processes a launcher starts.

    Attributes:
        per_host: On each host.
        hosts: On how many hosts.
    """

    per_host: int
    hosts: int


def tasks(wrapper: Sequence[str], environment: Mapping[str, Word]) -> Tasks | None:
    """Return how many processes srun(1) starts, by its options and sbatch's variables.

    Returns:
        None for another wrapper, or if that is not known.
    """
    if not wrapper or wrapper[0].rpartition("/")[2] != "srun":
        return None

    def slurm_count(variable: str) -> int | None:
        word = environment.get(variable)
        return None if word is None or word.unresolved else _whole(word.text)

    nodes_asked = _option_count(wrapper, "-N", "--nodes")
    nodes = slurm_count("SLURM_NNODES") if nodes_asked is None else nodes_asked
    each = _option_count(wrapper, "--ntasks-per-node")
    each = slurm_count("SLURM_NTASKS_PER_NODE") if each is None else each
    number = _option_count(wrapper, "-n", "--ntasks")
    if number is None and nodes_asked is None and each is None:
        number = slurm_count("SLURM_NTASKS")
    if 0 in (nodes_asked, nodes, each, number):
        return None
    if number is None or nodes is None:
        one_each = None if nodes is None else Tasks(each or 1, nodes)
        return Tasks(1, 1) if number == 1 else one_each
    return Tasks(-(-number // nodes), min(nodes, number))


def _option_count(argv: Sequence[str], *names: str) -> int | None:
    """Return the count behind the first option of ``names``; 0 for no number, None without it."""
    short = tuple(name for name in names if len(name) == 2)
    for name, value in option_values(argv):
        attached = name.startswith(short) and name[2:3].isdigit()  # -N4
        if name in names or attached:
            return _whole(name[2:] if attached else value)
    return None


def option_values(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word as an option, with the value behind its = or else the next word."""
    for word, following in zip(argv, (*argv[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        yield name, value if equals else following


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 5 else 0


def _slurm_gpus(argv: Sequence[str], nodes: int | None, per_host: int = 1) -> int | None:
    """Return the GPUs on a host by options of srun(1) or sbatch(1): the least number if several
    options give one, None if no option does.

    Args:
        nodes: The number of hosts, None if not known.
        per_host: Tasks on a host.
    """
    counts: list[int] = []
    for name, value in option_values(argv):
        each = {"--gpus-per-node": 1, "--gpus-per-task": per_host}.get(name)
        if name in ("-G", "--gpus") and nodes in (None, 1):
            each = 1
        if name == "--gres":
            gpus = [g for g in value.split(",") if re.fullmatch(r"(gres[:/])?gpu(:.*)?", g)]
            each, value = (1, gpus[0]) if gpus else (1 if value == "none" else None, "0")
        last = value.partition("(")[0].rpartition(":")[2]
        if each is not None and (last.isdecimal() or name == "--gres"):
            counts.append(each * (_whole(last) if last.isdecimal() else 1))
    return min(counts, default=None)


def step_gpus(argv: Sequence[Word], environment: Mapping[str, Word]) -> dict[str, Word]:
    """Return the variable ``SLURM_GPUS_ON_NODE`` as a task of ``srun`` has it; {} if neither the
    options in ``argv`` nor SLURM_GPUS_PER_TASK tell.

    The options win.
    """
    texts = [word.text for word in argv]
    each = environment.get("SLURM_GPUS_PER_TASK")
    if each is not None and not any(text.startswith(("--gpus", "--gres", "-G")) for text in texts):
        return {"SLURM_GPUS_ON_NODE": each}
    number = _slurm_gpus(texts, _option_count(texts, "-N", "--nodes"))
    if number is None:
        return {}
    return {"SLURM_GPUS_ON_NODE": argv[0]._replace(text=str(number), unresolved=())}


def _slurm_mem(argv: Sequence[str]) -> int | None:
    """Return the MiB of ``--mem``, which is for each node; None without it, or if 0, for all."""
    text = next((value for name, value in option_values(argv) if name == "--mem"), "")
    parts = re.fullmatch(r"(\d{1,12})([kmgt]?)b?", text.lower())
    kib = 0 if parts is None else int(parts[1]) * 1024 ** ("kmgt".index(parts[2] or "m"))
    return kib // 1024 or None


def slurm_variables(text: str) -> dict[str, str]:
    """Return the variables that sbatch sets for a job with the ``#SBATCH`` lines of a script.

    Those that the lines do not tell are left out.
    """
    argv: list[str] = ["sbatch"]
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            argv += line.removeprefix("#SBATCH").partition(" #")[0].split()
        elif line.strip() and not line.startswith("#"):
            break
    nodes, number = _option_count(argv, "-N", "--nodes"), _option_count(argv, "-n", "--ntasks")
    each = _option_count(argv, "--ntasks-per-node")
    if number is None and nodes is not None:
        number = nodes * (each or 1)
    values = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": number,
        "SLURM_NTASKS_PER_NODE": each,
        "SLURM_GPUS_PER_TASK": _option_count(argv, "--gpus-per-task"),
        "SLURM_MEM_PER_NODE": _slurm_mem(argv),
        "SLURM_GPUS_ON_NODE": _slurm_gpus(argv, nodes, each or (number or 1) // (nodes or 1) or 1),
    }
    return {name: str(value) for name, value in values.items() if value}


def _settings(argv: Sequence[Word]) -> tuple[tuple[str, Word], ...]:
    """Return name and value of the variables that a launcher's own options set: ``-e``, ``-x``,
    Ray's environment.
    """
    settings: list[tuple[str, Word]] = []
    before = ""
    for word in argv:
        if "--runtime-env-json" in (word.text.partition("=")[0], before):
            settings += _ray_env(word._replace(text=word.text.removeprefix("--runtime-env-json=")))
        text = word.text.removeprefix("--env=")
        if (text != word.text or before in ("-e", "--env", "-x")) and ASSIGNMENT.match(text):
            variable, _, value = text.partition("=")
            settings.append((variable, word._replace(text=value)))
        before = word.text
    return tuple(settings)


def _ray_env(word: Word) -> list[tuple[str, Word]]:
    """Return the variables of ``ray job submit --runtime-env-json '{"env_vars": {...}}'``; [] for a
    text that is no such JSON.
    """
    try:
        variables = json.loads(word.text).get("env_vars", {})
    except (ValueError, RecursionError, AttributeError):
        return []
    if not isinstance(variables, dict):
        return []
    return [(name, word._replace(text=str(value))) for name, value in variables.items()]


def _note(word: Word, name: str) -> SourceNote | None:
    """Return a note on what a launcher changes and a launch does not show; None if it changes
    nothing.

    Args:
        word: The launcher.
        name: Its name without a folder.
    """
    if name in _HERE:
        return None
    id_, why = "launcher", "it is not read, nor what it sets for the program"
    if name in _TOLD:
        why = "read as if it started one process here, in this environment; not known here: "
        why += _TOLD[name]
    elif name in _ELSEWHERE:
        why = f"{_ELSEWHERE[name]} is not known here, and none is assumed; put the settings that "
        why += "matter in front of the program, as env NAME=value program"
    else:
        id_, name = "script-not-read", brief(word.text)
    return SourceNote(id_, f"{name} stands in front: {why}", word.origin)
