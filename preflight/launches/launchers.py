"""Programs that start others in a way of their own: srun, ssh, uv run, docker exec, an entrypoint.

Their options are not read one by one. What is looked for behind them is the start of something that
is read here, and what they do to its environment is told rather than guessed.
"""

import itertools
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from preflight.launches.source import ASSIGNMENT, SourceNote, Word, brief


class Launched(NamedTuple):
    """What a launcher starts.

    start: where it begins; behind the last word where that is a shell which reads standard input.
    script: the text for a shell that begins there. module: whether it is what
    Python takes (``-m sglang.launch_server``), without Python in front. elsewhere: whether it has
    the environment of another place, not the caller's. settings: ``-e NAME=value`` of the launcher.
    """

    start: int
    script: Word | None
    module: bool
    elsewhere: bool
    settings: tuple[tuple[str, Word], ...]
    note: SourceNote | None


# Beside the caller, in its environment, once: Python's own managers, profilers, guards.
_HERE = frozenset(
    "accelerate at batch catchsegv conda coverage flock gdb hatch ip ltrace mamba micromamba ncu "
    "nsenter nsys pdm perf pipenv pixi poetry prlimit py-spy rye screen script setpriv setuidgid "
    "sshpass strace su-exec tmux unshare uv uvx valgrind watch xvfb-run".split()
)
# Of those, and of others, the ones that run a Python file by its name alone.
_RUN_FILES = frozenset("accelerate hatch pdm pipenv pixi poetry rye torchrun uv".split())
# What each of these changes, which a launch does not show.
_TOLD = {
    "doas": "which variables it keeps",
    "runuser": "which variables it keeps",
    "su": "which variables it keeps",
    "mpiexec": "how many it starts, and where",
    "mpirun": "how many it starts, and where",
    "parallel": "how many it starts, and where",
    "prun": "how many it starts, and where",
    "srun": "how many it starts, where, and under which limits",
    "systemd-run": "the limits and the environment of the unit",
    "torchrun": "how many it starts",
    "xargs": "how many it starts, and their last arguments",
    "apptainer": "what the container brings along",
    "enroot": "what the container brings along",
    "singularity": "what the container brings along",
}
_ELSEWHERE = {
    "ansible": "the environment of the other hosts",
    "clush": "the environment of the other hosts",
    "kubectl": "the environment of the pod",
    "oc": "the environment of the pod",
    "parallel-ssh": "the environment of the other hosts",
    "pdsh": "the environment of the other hosts",
    "pssh": "the environment of the other hosts",
    "ray": "the environment of the cluster",
    "ssh": "the environment of the other host",
}
# What gives its words, with blanks between them, to the shell of each other host: the options that
# take the next word, and whether a host stands behind them.
_PSSH = "-h -H -l -p -o -e -t -O -x -X --hosts --host --user --par --outdir --errdir --timeout"
_REMOTE = {
    "clush": ("-w -x -g -X -l -o -f -t -u -m -O", False),
    "parallel-ssh": (_PSSH, False),
    "pdsh": ("-w -x -g -X -l -t -u -f -R -M -F -P -j", False),
    "pssh": (_PSSH, False),
    "ssh": ("-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", True),
}
REMOTE = frozenset(_REMOTE)
_COPIES = frozenset(("-c", "--copy", "--rcopy"))  # of clush
_EXEC_ENGINES = ("docker", "nerdctl", "podman")
LAUNCHERS = _HERE | _TOLD.keys() | _ELSEWHERE.keys() | set(_EXEC_ENGINES)
# A script that is given a program: the entrypoint of an image, or one's own wrapper.
_ENTRYPOINT = re.compile(r"\.sh$|entrypoint")
_MODULE = re.compile(r"(sglang|sglang_router|mooncake|vllm|lmcache)\.[\w.]+|dynamo\.\w+")
_NAMED = re.compile(
    r"mooncake_(master|client|store_service|http_metadata_server)|mc_store_\w+|lmcache_server"
    r"|sglang-router|trtllm-serve|etcd|redis-server|nats-server"
)
_SCRIPT = re.compile(
    r"\s-m\s+(sglang|mooncake|vllm|dynamo|lmcache)|mooncake_(master|client)"
    r"|\b(sglang|vllm)\s+serve\s"
)
_SERVES = re.compile(
    r"-m (?:\w+\.)+(?:launch_server|api_server|mooncake_\w+|server)\b|(?:sglang|vllm) serve "
)
# What Python is given; a word alone is the value of an option, as in uv run --python python3.12.
_ARGUMENT = re.compile(r"-[BEIOSWXcmsuv]|.*\.py$")
# Names of the shell's own, which here are a launcher's: docker exec.
_BUILTINS = frozenset(("builtin", "command", "exec", "time"))
# Programs that name others, and start none.
_TALKS = frozenset("cat echo grep kill killall pgrep pkill ps tail which".split())


def is_launcher(program: str) -> bool:
    """Return whether another program may stand behind this program's own words.

    program: without its folder.
    """
    return program in LAUNCHERS or _ENTRYPOINT.search(program) is not None


class RemoteWords(NamedTuple):
    """hosts: as ssh and ``-w`` take them; "" for none. start: where the words for a shell begin."""

    hosts: str
    start: int


def remote_words(words: Sequence[str], first: int = 0) -> RemoteWords | None:
    """Return what the ``ssh -p 22 user@host words`` at ``first`` gives to another host's shell."""
    name = words[first].rpartition("/")[2] if words[first:] else ""
    if name not in _REMOTE or (name == "clush" and _COPIES & set(words[first:])):
        return None
    valued, named = _REMOTE[name]
    hosts, index = "", first + 1
    while index < len(words):
        text = words[index]
        if text.startswith("-") and text != "--":
            takes = text in valued.split()
            if takes and text == "-w" and not named:
                hosts = "".join(words[index + 1 : index + 2])
            index += 1 + takes
        elif named and not hosts and text != "--":  # ssh takes options behind its host too
            hosts, index = text.rpartition("@")[2], index + 1
        else:
            index += text == "--"
            break
    return RemoteWords(hosts, min(index, len(words)))


def launched(
    words: Sequence[Word], first: int, begins: Callable[[str], bool], reads: bool = False
) -> Launched | None:
    """Return what the launcher at ``first`` starts; None where nothing is seen that is read here.

    begins: tells a wrapper, a shell or a container engine by its name. reads: whether standard
    input has a text for a shell that is given none.
    """
    name = words[first].text.rpartition("/")[2]
    remote = remote_words([word.text for word in words], first)
    if remote is not None:
        behind = words[remote.start :]
        if not behind and not (reads and name == "ssh"):
            return None
        script = _joined(behind) if behind else None
        return Launched(remote.start, script, False, True, (), _note(words[first], name))
    if name == "ansible":
        return _of_ansible(words, first)
    if name in ("at", "batch"):  # their text comes on standard input
        return Launched(len(words), None, False, False, (), None) if reads else None
    if name in _EXEC_ENGINES and all(word.text != "exec" for word in words[first + 1 : first + 4]):
        return None
    start, is_script, module = first + 1, False, False
    while start < len(words):
        text = words[start].text
        program = text.rpartition("/")[2]
        following = words[start + 1].text if start + 1 < len(words) else ""
        before = words[start - 1].text
        if name in ("su", "runuser") and before in ("-s", "--shell"):
            start += 1
            continue
        module = text == "-m" and _MODULE.fullmatch(following) is not None
        is_script = " " in text.strip() and _SCRIPT.search(text) is not None
        is_script = is_script or (name in ("su", "runuser") and before in ("-c", "--command"))
        if program in _TALKS:
            return None
        named = begins(program) and bool(following or reads) and program not in _BUILTINS
        named = named or (program.startswith("python") and _ARGUMENT.match(following) is not None)
        named = named or _NAMED.fullmatch(program) is not None
        named = named or (name in _RUN_FILES and text.endswith(".py") and "add" not in before)
        if module or is_script or named or (program in ("sglang", "vllm") and following == "serve"):
            break
        start += 1
    else:
        if not (reads and name in ("su", "runuser")):
            return None
    elsewhere = name in _ELSEWHERE or name in _EXEC_ENGINES
    written = words[start] if is_script else None
    return Launched(
        start, written, module, elsewhere, _settings(words[first:start]), _note(words[first], name)
    )


# Programs that read their standard input, which they hand on to what they start.
_READS_ALL = frozenset("docker kubectl mpiexec mpirun nerdctl oc podman srun ssh".split())


def reads_all(words: Sequence[str]) -> str:
    """Return the program of a command that reads all of its standard input; "" for none.

    ``while read host; do ssh $host ...; done < hosts`` ends after its first turn. Sources: ssh(1)
    -n, srun(1) --input, docker run and kubectl exec --interactive.
    """
    names = [word.rpartition("/")[2] for word in words]
    at = next((at for at, name in enumerate(names) if name in _READS_ALL), None)
    if at is None:
        return ""
    name, behind = names[at], words[at + 1 :]
    if name == "ssh":
        remote = remote_words(words, at)
        options = words[at + 1 : remote.start] if remote is not None else ()
        return "" if {"n", "f"} & _letters(options) else name
    if name in ("srun", "mpirun", "mpiexec"):
        given = {word.partition("=")[0] for word in behind} & {"-i", "--input", "--stdin", "-stdin"}
        return "" if given else name
    verb = next((at for at, word in enumerate(behind[:3]) if word in ("exec", "run")), None)
    if verb is None:
        return ""
    # What stands behind the container, or behind --, is for the program in it.
    own = behind[: behind.index("--")] if "--" in behind else behind
    if name not in ("kubectl", "oc"):
        later = range(verb + 1, len(own))
        flagged = [word.startswith("-") for word in own]
        plain = (at for at in later if not flagged[at] and not flagged[at - 1])
        own = own[: next(plain, None)]
    asks = "i" in _letters(own) or {"--interactive", "--stdin"} & set(own)
    return name if asks else ""


def _letters(options: Sequence[str]) -> set[str]:
    """Return the letters of options that are given as -i or -it."""
    return set("".join(word[1:] for word in options if re.fullmatch(r"-[A-Za-z]+", word)))


class Fanned(NamedTuple):
    """The commands that one command starts. known: whether these are all of them.

    waits: whether each waits for the one before it.
    """

    commands: tuple[tuple[Word, ...], ...]
    known: bool = True
    waits: bool = False


def fanned(words: Sequence[Word], given: Word | None) -> Fanned | None:
    """Return what xargs and parallel make of their words, and srun of ``A : B``; None of others.

    given: what the command reads from standard input, where that is known.
    """
    for first, word in enumerate(words[:8]):
        name = word.text.rpartition("/")[2]
        if name in ("xargs", "parallel"):
            found = (_xargs if name == "xargs" else _parallel)(words[first + 1 :], given)
            if found is None or _quiet(found.commands[0]):
                return None
            front = tuple(words[:first])
            return found._replace(commands=tuple((*front, *each) for each in found.commands))
        if name in _SEVERAL_PROGRAMS:
            return _programs(words, first + 1)
        if name not in _IN_FRONT and word.text[:1] != "-":
            return None
    return None


# May stand in front of xargs and the like.
_IN_FRONT = frozenset("command env exec nice nohup sudo time".split())
# Start several programs at once, with a colon between them.
_SEVERAL_PROGRAMS = frozenset("mpiexec mpirun prun srun".split())
# The options that take the next word. Source: xargs(1), parallel(1).
_XARGS_VALUED = frozenset(
    "-a -d -E -I -L -n -P -s --arg-file --delimiter --max-args --max-chars --max-procs".split()
)
_PARALLEL_VALUED = frozenset(
    "-a -C -d -E -I -j -L -n -N -P --arg-file --colsep --delay --env --halt --jobs --joblog --load "
    "--max-args --max-procs --memfree --nice --results --retries --tagstring --timeout --tmpdir "
    "--workdir --wd".split()
)
# Programs behind xargs that end or move things.
_ENDS = frozenset("awk chmod chown cp docker grep kill ln ls mkdir mv pkill rm sed wc".split())
_ITEM = "ITEM"  # stands for what is not known
_MOST_ITEMS = 256
_PLACES = re.compile(r"\{(?:\d+)?(?:/?\.|//?)?\}|\{[#%]\}")


def _quiet(words: Sequence[Word]) -> bool:
    return not words or words[0].text.rpartition("/")[2] in _ENDS | _TALKS


def _programs(words: Sequence[Word], start: int) -> Fanned | None:
    """Return the parts of a heterogeneous job: each has options and a program of its own."""
    places = [start - 1, *(at for at in range(start, len(words)) if words[at].text == ":")]
    if len(places) == 1:
        return None
    ends = (*places[1:], len(words))
    parts = [words[a + 1 : b] for a, b in zip(places, ends, strict=True)]
    return Fanned(tuple((*words[:start], *part) for part in parts if part))


def _values(words: Sequence[Word], valued: frozenset[str]) -> tuple[dict[str, str], int]:
    """Return options with their values, and where the command behind them begins."""
    found: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].text[:1] == "-":
        name, equals, value = words[index].text.partition("=")
        if name[:2] != "--" and name[:2] in valued and len(words[index].text) > 2:
            name, value = name[:2], words[index].text[2:]
        elif name in valued and not equals:
            index += 1
            value = words[index].text if index < len(words) else ""
        found[name] = value
        index += 1
        if name == "--":
            break
    return found, min(index, len(words))


def _xargs(words: Sequence[Word], given: Word | None) -> Fanned | None:
    options, start = _values(words, _XARGS_VALUED)
    command = words[start:]
    if not command:
        return None
    replaced = options.get("-I")
    if replaced is None and ("--replace" in options or any(o.startswith("-i") for o in options)):
        short = next((o[2:] for o in options if o.startswith("-i")), "")
        replaced = options.get("--replace") or short or "{}"
    at_once = options.get("-P", options.get("--max-procs", "1"))
    text = None if given is None or given.unresolved else given.text
    if {"-0", "--null", "-d", "--delimiter", "-a", "--arg-file", "-L", "-l"} & options.keys():
        text = None
    if text is not None and re.search(r"[\\'\"]", text):
        text = None
    waits = at_once == "1"
    if text is None:
        item = [Word("{}", command[0].origin, ("{}",))]
        if replaced is None:
            return Fanned(((*command, *item),), False, waits)
        return Fanned((_filled(command, replaced, None),), False, waits)
    if replaced is not None:
        items = [line.lstrip() for line in text.splitlines() if line.strip()]
        filled = tuple(_filled(command, replaced, item) for item in items[:_MOST_ITEMS])
        return Fanned(filled, len(items) <= _MOST_ITEMS, waits) if filled else None
    items = text.split()
    each = options.get("-n", options.get("--max-args", str(len(items) or 1)))
    if not each.isdecimal() or int(each) < 1:
        return Fanned(((*command, Word("{}", command[0].origin, ("{}",))),), False, waits)
    chunks = [items[at : at + int(each)] for at in range(0, len(items), int(each))]
    added = tuple(
        (*command, *(Word(item, command[0].origin) for item in chunk))
        for chunk in chunks[:_MOST_ITEMS]
    )
    return Fanned(added, len(chunks) <= _MOST_ITEMS, waits) if added else None


def _filled(words: Sequence[Word], place: str, item: str | None) -> tuple[Word, ...]:
    """Return words with an item in its place; in the text of a shell an open one is a variable."""

    def fill(word: Word) -> Word:
        if place not in word.text:
            return word
        if item is not None:
            return word._replace(text=word.text.replace(place, item))
        if " " in word.text:
            return word._replace(text=word.text.replace(place, f"${{{_ITEM}}}"))
        return word._replace(unresolved=(*word.unresolved, place))

    return tuple(map(fill, words))


def _parallel(words: Sequence[Word], given: Word | None) -> Fanned | None:
    """Return the shells that GNU parallel starts; None where it starts them on other hosts."""
    options, start = _values(words, _PARALLEL_VALUED)
    marks = [at for at in range(start, len(words)) if words[at].text[:3] == ":::"]
    command = words[start : marks[0] if marks else len(words)]
    elsewhere = any(o in ("-S", "--sshlogin", "--sshloginfile", "--slf") for o in options)
    if not command or elsewhere:
        return None
    plain = {"-I", "-a", "-C", "-d", "-L", "-N", "-n", "-X", "-m", "--arg-file", "--colsep"}
    lists: list[list[str]] | None = None
    if marks and not plain & options.keys():
        ends = (*marks[1:], len(words))
        given_lists = [words[a + 1 : b] for a, b in zip(marks, ends, strict=True)]
        if all(words[at].text == ":::" for at in marks) and not any(
            word.unresolved for each in given_lists for word in each
        ):
            lists = [[word.text for word in each] for each in given_lists]
    elif not marks and given is not None and not given.unresolved and not plain & options.keys():
        lists = [given.text.splitlines()]
    text = _joined(command)
    shell = tuple(text._replace(text=each, unresolved=()) for each in ("bash", "-c"))
    if _PLACES.search(text.text) is None:
        text = text._replace(text=f"{text.text} {{}}")
    if lists is None or math.prod(map(len, lists)) > _MOST_ITEMS:
        opened = _PLACES.sub(f"${{{_ITEM}}}", text.text)
        return Fanned(((*shell, text._replace(text=opened)),), False)
    commands = [
        (*shell, text._replace(text=_PLACES.sub(partial(_of_items, items, number), text.text)))
        for number, items in enumerate(itertools.product(*lists), start=1)
    ]
    return Fanned(tuple(commands), waits=options.get("-j", options.get("--jobs")) == "1")


def _of_items(items: Sequence[str], number: int, place: re.Match[str]) -> str:
    """Return what GNU parallel puts in the place of ``{}``, ``{2}``, ``{.}``, ``{#}``."""
    inner = place[0][1:-1]
    if inner == "#":
        return str(number)
    which = re.match(r"\d*", inner)
    index = which[0] if which is not None else ""
    kind = inner[len(index) :]
    if inner == "%" or (index and not 1 <= int(index) <= len(items)):
        return f"${{{_ITEM}}}"
    item = items[int(index) - 1] if index else " ".join(items)
    folder, slash, file = item.rpartition("/")
    if kind == "//":
        item = folder or ("/" if slash else ".")
    elif kind in ("/", "/."):
        item = file
    if kind in (".", "/."):
        item = item[: item.rfind(".")] if "." in item.rpartition("/")[2] else item
    return shlex.quote(item)


def _joined(words: Sequence[Word]) -> Word:
    """Return the text that the shell of another host gets: the words, with blanks between them."""
    return words[0]._replace(
        text=" ".join(word.text for word in words),
        unresolved=tuple(name for word in words for name in word.unresolved),
        doubts=tuple(dict.fromkeys(doubt for word in words for doubt in word.doubts)),
    )


def starts_server(words: Sequence[Word]) -> bool:
    """Return whether words start a server or a store, and do not only ask for its version."""
    texts = [word.text for word in words]
    if not texts or {"-h", "--help", "-v", "--version"} & set(texts):
        return False
    named = _NAMED.fullmatch(texts[0].rpartition("/")[2]) is not None
    return named or _SERVES.search(" ".join(texts)) is not None


def _of_ansible(words: Sequence[Word], first: int) -> Launched | None:
    """Return what ``ansible HOSTS -m shell -a TEXT`` starts; None for its other modules."""
    module, text, place = "command", None, first
    for index in range(first + 1, len(words) - 1):
        if words[index].text in ("-m", "--module-name"):
            module = words[index + 1].text.rpartition(".")[2]
        elif words[index].text in ("-a", "--args"):
            text, place = words[index + 1], index + 1
    if text is None or module not in ("command", "raw", "shell"):
        return None
    return Launched(place, text, False, True, (), _note(words[first], "ansible"))


def starts_anew(wrapper: Sequence[str]) -> bool:
    """Tell whether what a wrapper starts is no child of the caller: it has other limits."""
    name = wrapper[0].rpartition("/")[2]
    if name == "systemd-run":
        return "--scope" not in wrapper
    return name in _ELSEWHERE or (name in _EXEC_ENGINES and "exec" in wrapper)


def enters_container(wrapper: Sequence[str]) -> bool:
    """Return whether a wrapper starts something in a container that runs already."""
    name = wrapper[0].rpartition("/")[2]
    return "exec" in wrapper and (name in _EXEC_ENGINES or name in ("kubectl", "oc"))


# What Slurm sets in a job, and in no shell that submits one.
IN_JOB = "SLURM_JOB_ID"
# Without any of them mpirun starts all on its own host.
_MPI_HOSTS = frozenset("-H -host --host -hostfile --hostfile -machinefile --machinefile".split())


class Tasks(NamedTuple):
    """How many processes a launcher starts: on each host, and on how many of these."""

    beside: int
    hosts: int


def tasks(wrapper: Sequence[str], environment: Mapping[str, Word]) -> Tasks | None:
    """Return what srun and mpirun are told to start; None where nothing says it.

    environment: what sbatch gives a job (SLURM_NNODES, SLURM_NTASKS). Source: srun(1), mpirun(1).
    """
    name = wrapper[0].rpartition("/")[2] if wrapper else ""
    if name in ("mpirun", "mpiexec", "prun"):
        number = _option(wrapper, "-np", "-n", "--np", "-c")
        elsewhere = any(word.partition("=")[0] in _MPI_HOSTS for word in wrapper)
        return (Tasks(1, number) if elsewhere else Tasks(number, 1)) if number else None
    if name != "srun":
        return None

    def held(variable: str) -> int | None:
        word = environment.get(variable)
        return None if word is None or word.unresolved else _whole(word.text)

    own = _option(wrapper, "-N", "--nodes")
    nodes = held("SLURM_NNODES") if own is None else own
    each = _option(wrapper, "--ntasks-per-node")
    each = held("SLURM_NTASKS_PER_NODE") if each is None else each
    number = _option(wrapper, "-n", "--ntasks")
    if number is None and own is None and each is None:
        number = held("SLURM_NTASKS")
    if 0 in (own, nodes, each, number):
        return None
    if number is None:
        return None if nodes is None else Tasks(each or 1, nodes)
    if nodes is None:
        return Tasks(1, number) if number == 1 else None
    return Tasks(-(-number // nodes), min(nodes, number))


def _option(words: Sequence[str], *names: str) -> int | None:
    """Return the count behind an option: 0 where it is not known, None without the option."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        short = any(len(n) == 2 and word.startswith(n) and word[2:3].isdigit() for n in names)
        if name in names:
            return _whole(value if equals else "".join(words[index + 1 : index + 2]))
        if short:
            return _whole(word[2:])
    return None


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 5 else 0


def _slurm_gpus(words: Sequence[str], nodes: int | None, beside: int = 1) -> int | None:
    """Return the GPUs on each host that sbatch or srun is told of; None where nothing tells.

    beside: tasks of a host that have them together. Source: srun(1), gres ``gpu:TYPE:NUMBER``.
    """
    found: list[int] = []
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        value = value if equals else "".join(words[index + 1 : index + 2])
        if word.startswith("-G") and len(word) > 2:
            name, value = "-G", word[2:]
        each = {"--gpus-per-node": 1, "--gpus-per-task": beside}.get(name)
        if name in ("-G", "--gpus") and nodes in (None, 1):
            each = 1
        if name == "--gres":
            gpus = [one for one in value.split(",") if re.fullmatch(r"(gres[:/])?gpu(:.*)?", one)]
            each, value = (1, gpus[0]) if gpus else (1 if value == "none" else None, "0")
        last = value.partition("(")[0].rpartition(":")[2]
        if each is not None and (last.isdecimal() or name == "--gres"):
            found.append(each * (_whole(last) if last.isdecimal() else 1))
    return min(found, default=None)


def step_gpus(words: Sequence[Word], environment: Mapping[str, Word]) -> dict[str, Word]:
    """Return the variable that tells how many GPUs a task of ``srun`` sees, where that is said."""
    texts = [word.text for word in words]
    each = environment.get("SLURM_GPUS_PER_TASK")
    if each is not None and not any(text.startswith(("--gpus", "--gres", "-G")) for text in texts):
        return {"SLURM_GPUS_ON_NODE": each}
    number = _slurm_gpus(texts, _option(texts, "-N", "--nodes"))
    if number is None:
        return {}
    return {"SLURM_GPUS_ON_NODE": words[0]._replace(text=str(number), unresolved=())}


def _slurm_mem(words: Sequence[str]) -> int | None:
    """Return the MiB of ``--mem``, which is for each node; None without it, or for all there is."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--mem":
            value = value if equals else "".join(words[index + 1 : index + 2])
            parts = re.fullmatch(r"(\d{1,12})([kmgt]?)b?", value.lower())
            if parts is None:
                return None
            kib = int(parts[1]) * 1024 ** ("kmgt".index(parts[2] or "m"))
            return kib // 1024 or None
    return None


def slurm_variables(text: str, options: Sequence[str] = ()) -> dict[str, str]:
    """Return what the ``#SBATCH`` lines of a job make sbatch set for it.

    options: the words behind sbatch itself, which win over the job's lines.
    """
    words: list[str] = ["sbatch", *options]
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            words += line.removeprefix("#SBATCH").partition(" #")[0].split()
        elif line.strip() and not line.startswith("#"):
            break
    nodes, number = _option(words, "-N", "--nodes"), _option(words, "-n", "--ntasks")
    each = _option(words, "--ntasks-per-node")
    if number is None and nodes is not None:
        number = nodes * (each or 1)
    found = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": number,
        "SLURM_NTASKS_PER_NODE": each,
        "SLURM_GPUS_PER_TASK": _option(words, "--gpus-per-task"),
        "SLURM_MEM_PER_NODE": _slurm_mem(words),
        "SLURM_GPUS_ON_NODE": _slurm_gpus(words, nodes, each or (number or 1) // (nodes or 1) or 1),
    }
    return {name: str(value) for name, value in found.items() if value}


def _settings(words: Sequence[Word]) -> tuple[tuple[str, Word], ...]:
    found: list[tuple[str, Word]] = []
    before = ""
    for word in words:
        if "--runtime-env-json" in (word.text.partition("=")[0], before):
            found += _of_ray(word._replace(text=word.text.removeprefix("--runtime-env-json=")))
        text = word.text.removeprefix("--env=")
        if (text != word.text or before in ("-e", "--env", "-x")) and ASSIGNMENT.match(text):
            variable, _, value = text.partition("=")
            found.append((variable, word._replace(text=value)))
        before = word.text
    return tuple(found)


def _of_ray(word: Word) -> list[tuple[str, Word]]:
    """Return the variables of ``ray job submit --runtime-env-json '{"env_vars": {...}}'``."""
    try:
        variables = json.loads(word.text).get("env_vars", {})
    except (ValueError, RecursionError, AttributeError):
        return []
    if not isinstance(variables, dict):
        return []
    return [(name, word._replace(text=str(value))) for name, value in variables.items()]


def _note(word: Word, name: str) -> SourceNote | None:
    if name in _HERE:
        return None
    if name in _TOLD:
        said = (
            f"{name} stands in front: read as if it started one process here, in this environment; "
            f"not known here: {_TOLD[name]}"
        )
        return SourceNote("launcher", said, word.origin)
    if name in _ELSEWHERE or name in _EXEC_ENGINES:
        where = _ELSEWHERE.get(name, "the environment of the container")
        said = (
            f"{name} stands in front: {where} is not known here, and none is assumed; put the "
            "settings that matter in front of the program, as env NAME=value program"
        )
        return SourceNote("launcher", said, word.origin)
    said = f"{brief(word.text)} stands in front: it is not read, nor what it sets for the program"
    return SourceNote("script-not-read", said, word.origin)
