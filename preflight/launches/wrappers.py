"""What stands in front of a program: numactl, sudo, env and the like, a shell, or a container."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checks.framework.needs import RunAs, SetLimit
from checks.framework.regex import regex
from preflight.launches import launchers, set_limits
from preflight.launches.container import ContainerSettings, Published
from preflight.launches.container_run import (
    ENGINES,
    container_run,
    env_file_variables,
    run_position,
)
from preflight.launches.source import ASSIGNMENT, Origin, SourceNote, Word, brief
from preflight.launches.variables import Layers, matching, unknown_needed


class StrippedCommand(NamedTuple):
    """A process without its wrappers.

    Attributes:
        script: The text behind ``bash -c``, with ``argv`` empty, and arguments: its ``$1`` and so
            on.
        reads: The script comes on standard input.
        container: The settings of the container around the process.
        limits: Those that wrappers set.
        run_as: The user.
        published: The container's ports.
    """

    argv: tuple[Word, ...]
    environment: Mapping[str, Word]
    wrappers: tuple[tuple[str, ...], ...] = ()
    notes: tuple[SourceNote, ...] = ()
    script: Word | None = None
    container: ContainerSettings | None = None
    arguments: tuple[Word, ...] = ()
    limits: tuple[SetLimit, ...] = ()
    run_as: RunAs = RunAs()
    published: tuple[Published, ...] = ()
    reads: bool = False


class _Wrapper(NamedTuple):
    """short, long: the options that take the next word. positional: words before the program."""

    short: str = ""
    long: str = ""
    positional: int = 0
    assignments: bool = False  # takes NAME=value in front of the program


_WRAPPERS = {
    **dict.fromkeys(("builtin", "command", "nohup", "setsid"), _Wrapper()),
    "chrt": _Wrapper("TPD", "sched-runtime sched-deadline sched-period", 1),
    "dumb-init": _Wrapper("r", "rewrite"),
    "env": _Wrapper("uC", "unset chdir", assignments=True),
    "exec": _Wrapper("a"),
    "gosu": _Wrapper(positional=1),
    "ionice": _Wrapper("cn", "class classdata"),
    "nice": _Wrapper("n", "adjustment"),
    "numactl": _Wrapper(
        "iwNCmpPcSLfoM",
        "interleave weighted-interleave preferred preferred-many physcpubind cpunodebind cpubind "
        "membind shm file shmid shmmode offset length",
    ),
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
# What comes before -- of this program's own gate: its options that take the next word.
GATE = _Wrapper(
    "",
    "env-file fail-on gpu-memory host-group ignore locked model-config mooncake-version "
    "nic-numa-nodes only rank-numa-nodes report sglang-version skip timeout waivers",
)
# This program, by its name or as one file (docs/howto-automation.md).
_OWN = regex(r"(?:.*/)?(?:mooncake-preflight(?:\.pyz)?|mooncake-hicache-sizing|mp\.pyz)")
_OWN_MODULES = ("preflight", "mooncake_preflight")
_STARTS = SHELLS | ENGINES | _WRAPPERS.keys() | {"mooncake-preflight"}
_APART = _STARTS | launchers.LAUNCHERS
_BEGINS = _STARTS | launchers.REMOTE
# Settings that most launches have one of, and sudo could lose; to look for every name would cost
# each sudo a pass.
_SETTINGS = (
    "CUDA_VISIBLE_DEVICES MC_MMAP_ARENA_POOL_SIZE MC_STORE_USE_HUGEPAGE MOONCAKE_CONFIG_PATH "
    "MOONCAKE_DEVICE MOONCAKE_GLOBAL_SEGMENT_SIZE MOONCAKE_MASTER MOONCAKE_PROTOCOL "
    "MOONCAKE_TE_META_DATA_SERVER SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
).split()
# What sudo keeps or sets itself with env_reset, and of those what a launch may read.
_SUDO_KEEPS = ("PATH", "HOME", "TERM", "SHELL", "USER", "LOGNAME", "LANG", "LC_ALL", "DISPLAY")
# How the programs begin that are read here.
_PROGRAMS = ("python", "mooncake", "sglang", "mc_store")


# command -v python3 starts nothing.
_ASKS = regex(r"-p?[vV]\Z")
# env with a text that it splits itself.
_SPLITS = regex(r"-S|--split-string")
# What runs an image, or a project, as a program of the caller, with options for its environment.
_IMAGE_RUNNERS = frozenset(("apptainer", "singularity", "uv", "uvx"))
_OF_VARIABLES = regex(r"--env(?:-file)?(?:=.*)?|-e|-C|--cleanenv|--contain-?all", re.DOTALL)
_INTO = regex(r"(?:APPTAINER|SINGULARITY)ENV_(?=[A-Za-z_])")


def is_ordinary(argv: Sequence[Word]) -> bool:
    """Return whether a command starts its program itself: no wrapper, shell or engine."""
    program = argv[0].text
    name = program.rpartition("/")[2]
    apart = name in _APART or launchers.is_launcher(name) or own_words(argv) is not None
    return not apart and program[:1] not in ("-", "")


def own_words(argv: Sequence[Word], start: int = 0) -> int | None:
    """Return the index behind this program's own name, which its subcommand follows.

    ``python3 mp.pyz exec`` and ``python3 -m preflight exec`` are this program too.

    Returns:
        None for another program, or a subcommand that is not known.
    """
    place = start
    if argv[start].text.rpartition("/")[2].startswith("python"):
        place = _behind_options(argv, start + 1, _Wrapper("WX"))
    text = argv[place].text if place < len(argv) else ""
    of_module = place > start and re.fullmatch(r"-[A-Za-z]*m", argv[place - 1].text) is not None
    known = text in _OWN_MODULES if of_module else _OWN.fullmatch(text) is not None
    open_ = any(word.unresolved for word in argv[place + 1 : place + 2])
    return place + 1 if known and not open_ else None


def strip_wrappers(
    argv: Sequence[Word],
    environment: Mapping[str, Word],
    in_container: bool = False,
    has_stdin: bool = False,
) -> StrippedCommand:
    """Take wrappers off a command, outermost first.

    Never raises.

    Args:
        in_container: The words run in a container; a ``docker run`` among them is no wrapper then.
        has_stdin: Standard input is known, which is the script of a shell that has no other.
    """
    changes: dict[str, Word | None] = {}
    wrappers: list[tuple[str, ...]] = []
    notes: list[SourceNote] = []
    limits: list[SetLimit] = []
    run_as = RunAs()
    start, clear = 0, False

    def note(id_: str, text: str, origin: Origin, advice: str = "") -> None:
        notes.append(SourceNote(id_, text, origin, advice))

    def variables() -> Mapping[str, Word]:
        return Layers(environment, changes, clear) if changes or clear else environment

    def stripped(left: Sequence[Word] = ()) -> StrippedCommand:
        """Return the words that are left, with all wrappers so far."""
        so_far = (tuple(left), variables(), tuple(wrappers), tuple(notes))
        return StrippedCommand(*so_far, limits=tuple(limits), run_as=run_as)

    while start < len(argv):
        name = argv[start].text.rpartition("/")[2]
        if name == "env" and _SPLITS.match("".join(word.text for word in argv[start + 1 :][:1])):
            why = "env -S: what it starts is not read; write its words apart"
            note("script-not-read", why, argv[start].origin)
            break
        first = start
        own = own_words(argv, start)
        if own is not None:
            if [word.text for word in argv[own : own + 1]] != ["exec"]:
                return stripped()  # it looks, sets or measures, and ends
            start = _behind_options(argv, own + 1, GATE)
            wrappers.append(tuple(word.text for word in argv[first:start]))
            files = [
                word._replace(text=word.text.removeprefix("--env-file="))
                for before, word in itertools.pairwise(argv[own:start])
                if before.text == "--env-file" or word.text.startswith("--env-file=")
            ]
            # It judges by them, and sets none: what the command has already wins.
            judged, lost = env_file_variables(files, variables(), notes)
            judged |= unknown_needed(judged, lost.origin) if lost is not None else {}
            had = variables()
            changes |= {each: word for each, word in judged.items() if each not in had}
            continue
        call = shell_call(argv, start) if name in SHELLS else None
        if call is not None and (call.commands or (call.reads and has_stdin)):
            wrappers.append(tuple(word.text for word in argv[start : call.place]))
            script = argv[call.place] if call.commands else None
            arguments = tuple(argv[call.place + 2 * call.commands :])
            return stripped()._replace(script=script, arguments=arguments, reads=script is None)
        if not in_container and name in ENGINES and (run := run_position(argv, start)):
            inner = container_run(argv, start, run, variables(), notes)
            rest = strip_wrappers(inner.argv, inner.environment, True, has_stdin)
            return rest._replace(
                wrappers=(*wrappers, inner.wrapper, *rest.wrappers),
                notes=(*notes, *rest.notes),
                container=inner.settings,
                published=inner.published,
            )
        if _may_be_wrapper(argv, start):
            why = (
                f"{brief(argv[start].text)} stands in front of the program and is not set: taken "
                "as nothing; give it as the caller has it, NAME=... in front of this command, or "
                "--env-file"
            )
            note("wrapper-not-set", why, argv[start].origin)
            wrappers.append((argv[start].text,))
            start += 1
            continue
        wrapper = _WRAPPERS.get(name)
        if wrapper is None and launchers.is_launcher(name):
            launched = launchers.find_program(argv, start, _BEGINS.__contains__, has_stdin)
            if launched is None:
                break
            if launched.elsewhere:
                clear, changes = True, dict(unknown_needed({}, argv[first].origin))
            front = argv[first : launched.start]
            changes = {**changes, **dict(launched.settings)}
            options = any(_OF_VARIABLES.fullmatch(word.text) for word in front[1:])
            if name in _IMAGE_RUNNERS and (options or next(matching(variables(), _INTO), None)):
                why = f"{name}: what its options make of the environment is not read; "
                why += "put the settings in front of the program, as env NAME=value program"
                note("source-not-read", why, argv[first].origin)
                changes = {**changes, **unknown_needed(variables(), argv[first].origin)}
            notes += [launched.note] if launched.note else []
            if name == "srun":
                if launchers.IN_JOB not in variables():
                    limits.append(set_limits.slurm_memlock(argv[first].origin))
                changes |= launchers.step_gpus(front, variables())
            elif name == "ray":
                limits += set_limits.ray_limits(argv[first].origin)
            notes += set_limits.options_not_read(front)
            if set_limits.opens_login(argv[first:] if launched.script is not None else front):
                clear, changes = True, {}
            set_here = set_limits.prlimit(front) if name == "prlimit" else ()
            limits += (limit._replace(setter=run_as) for limit in set_here)
            behind = argv[launched.start + 1 :] if launched.script is not None else ()
            run_as, opened = _user_behind(run_as, front, behind)
            limits += () if in_container else opened
            wrappers.append(tuple(word.text for word in front))
            start = launched.start
            if launched.script is not None:
                return stripped()._replace(script=launched.script)
            if launched.module:
                python = argv[start]._replace(text="python3", unresolved=())
                argv = (*argv[:start], python, *argv[start:])
            continue
        if wrapper is None or (
            name == "command" and argv[start + 1 :][:1] and _ASKS.match(argv[start + 1].text)
        ):
            break
        start = _behind_options(argv, start + 1, wrapper)
        if name == "env":
            clear, changes = _env_options(argv, first, start, clear, changes)
        start = min(start + wrapper.positional, len(argv))
        begin = start
        notes += set_limits.options_not_read(argv[first:start])
        kept = _kept_by_sudo(argv[first:start]) if name == "sudo" else None
        if kept is not None:
            before = variables()
            clear, changes = True, {each: before[each] for each in kept if each in before}
        while start < len(argv) and ASSIGNMENT.match(argv[start].text):
            variable, _, value = argv[start].text.partition("=")
            changes[variable] = argv[start]._replace(text=value)
            start += 1
        if start > begin and not wrapper.assignments:
            shown = brief(argv[begin].text)
            why = (
                f"{name} takes {shown} for the program and fails (execution of `{shown}': No such "
                "file or directory): nothing starts; read here as meant"
            )
            advice = f"put the assignments in front of {name}, or env between the two"
            note("assignment-after-wrapper", why, argv[begin].origin, advice)
        if name == "sudo" and kept is not None and any(each in environment for each in _SETTINGS):
            why = (
                "sudo drops the caller's variables, unless sudoers keeps them: they are read here "
                "as dropped; write sudo -E, or sudo NAME=value"
            )
            note("sudo-environment", why, argv[first].origin)
        wrappers.append(tuple(word.text for word in argv[first:start]))
        run_as, opened = _user_behind(run_as, argv[first:start], ())
        limits += () if in_container else opened
    shell = has_stdin and start == len(argv) and bool(wrappers) and _starts_shell(wrappers[-1])
    return stripped(argv[start:])._replace(reads=shell)


def _starts_shell(wrapper: Sequence[str]) -> bool:
    """Return whether a wrapper that nothing stands behind starts a shell."""
    name = wrapper[0].rpartition("/")[2]
    letters = "".join(word for word in wrapper[1:] if re.fullmatch(r"-[A-Za-z]+", word))
    interactive = name == "sudo" and bool({*"is"} & {*letters})
    return interactive or name in ("at", "batch", "ssh", "su", "runuser")


def _user_behind(
    before: RunAs, argv: Sequence[Word], behind: Sequence[Word]
) -> tuple[RunAs, Sequence[SetLimit]]:
    """Return the user of a wrapper's program, and the limits of the session that the wrapper opens.

    Args:
        before: The user in front.
        argv: The wrapper's words.
        behind: The words after those of ``su -c``.
    """
    run_as = set_limits.changed_user(argv, behind)
    texts = tuple(word.text for word in argv)
    if launchers.starts_anew(texts):
        if launchers.enters_container(texts):
            return set_limits.exec_user_and_limits(f"{texts[0]} exec", argv[0].origin)
        return RunAs(), ()
    return before.then(run_as), tuple(set_limits.login_limits(argv, before.then(run_as)))


def _may_be_wrapper(argv: Sequence[Word], start: int) -> bool:
    """Return whether a variable that nobody sets may hold a wrapper: ``$NUMA python3 ...``."""
    word = argv[start]
    if not word.unresolved or not word.text.startswith("$") or start + 1 == len(argv):
        return False
    name = argv[start + 1].text.rpartition("/")[2]
    return name in _APART or name.startswith(_PROGRAMS)


def _behind_options(argv: Sequence[Word], start: int, wrapper: _Wrapper) -> int:
    """Return the index behind a wrapper's own options, which begin at ``start``."""
    long = frozenset(wrapper.long.split())
    while start < len(argv):
        text = argv[start].text
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
    return min(start, len(argv))


def _env_options(
    argv: Sequence[Word], first: int, end: int, clear: bool, changes: dict[str, Word | None]
) -> tuple[bool, dict[str, Word | None]]:
    """Return ``clear`` and ``changes``, the changes of the environment so far, with -i and -u of
    ``env`` applied.

    Args:
        first, end: The index of env, and the one behind its options.
    """
    texts = [word.text for word in argv[first + 1 : end]]
    for text, following in zip(texts, [*texts[1:], ""], strict=False):
        unset = re.fullmatch(r"(?:--unset=|-u)(.+)|-u|--unset", text)
        if text in ("-", "-i", "--ignore-environment"):
            clear, changes = True, {}
        elif unset is not None:
            changes[unset[1] or following] = None
    return clear, changes


def _kept_by_sudo(argv: Sequence[Word]) -> tuple[str, ...] | None:
    """Return the names of the variables that sudo 1.9 keeps with ``env_reset`` (observed), and the
    names behind ``--preserve-env=``.

    Returns:
        () for a login shell; None with -E, which keeps all.
    """
    texts = [word.text for word in argv]
    if set_limits.opens_login(argv):
        return ()
    if "--preserve-env" in texts or any(re.match(r"-[A-Za-z]*E", text) for text in texts):
        return None
    option = "--preserve-env="
    listed = [text.removeprefix(option).split(",") for text in texts if text.startswith(option)]
    return (*_SUDO_KEEPS, *(name for names in listed for name in names))


def is_gate(wrapper: Sequence[str]) -> bool:
    """Return whether a wrapper is this program's own ``exec``."""
    return bool(wrapper) and own_words([Word(text, Origin("")) for text in wrapper]) is not None


class ShellCall(NamedTuple):
    """How a shell is called.

    Attributes:
        place: The index of the first word that is no option.
        commands: That word is a text (``-c``).
        reads: The script is standard input, and the words behind the options are its arguments.
    """

    place: int
    commands: bool
    reads: bool


def shell_call(argv: Sequence[Word], start: int) -> ShellCall:
    """Return how the shell at ``start`` is called, by its options."""
    letters = ""
    index = start + 1
    while index < len(argv):
        text = argv[index].text
        if not text.startswith(("-", "+")) or text in ("-", "--"):
            index += text in ("-", "--")
            break
        if not text.startswith("--"):
            letters += text[1:] if text[0] == "-" else ""
            index += text[-1] in "oO"
        index += 1
    index = min(index, len(argv))
    more = index < len(argv)
    reads = "c" not in letters and ("s" in letters or not more)
    return ShellCall(index, more and "c" in letters, reads)
