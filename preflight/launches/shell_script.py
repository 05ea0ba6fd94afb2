"""What a shell script starts, read without running it.

tree-sitter-bash parses it; variables, conditions, loops and functions are followed as bash follows
them. A part that only a run could tell (most command substitutions, variables that nobody sets)
stays in its word as written, and the word names it. If such a part decides a branch, every branch
is read, and what follows is doubted. A part that is not followed at all is named with its line, and
the variables that it may set are unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from checks.framework.regex import regex
from checks.framework.unknown import Inside
from preflight.launches import launch_files, launchers, source
from preflight.launches.container_run import ENGINES
from preflight.launches.env_files import read_small_file
from preflight.launches.launch_files import Beside, HostWords
from preflight.launches.set_limits import slurm_memlock
from preflight.launches.shell_blocks import MOST_TURNS
from preflight.launches.shell_builtins import BUILTINS, DEEPEST_SCRIPT, nested_cost
from preflight.launches.shell_programs import ShellPrograms
from preflight.launches.shell_state import ExpansionBudget, ShellState
from preflight.launches.source import Command, Origin, Reading, SourceError, SourceNote, Word
from preflight.launches.starters import is_starter, read_starter
from preflight.launches.variables import Layers, Variables, environment_words
from preflight.launches.wrappers import SHELLS, StrippedCommand, shell_call, strip_wrappers

# What of a captured word depends on the host that it runs on: ``$A``, ``${A:-x}``, ``$(hostname)``.
_OPEN_PART = regex(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}$`]*))?\}|\(([^()$`]*)\))")


def read_script(
    text: str,
    name: str,
    environment: Mapping[str, str | Word],
    arguments: Sequence[str] | None = None,
    beside: Beside = lambda name: None,
    host_words: HostWords = lambda command: None,
) -> Reading:
    """Return the processes that a script called ``name`` starts in ``environment``.

    The commands are those that bash would run; notes name what the author hardly meant.

    Args:
        arguments: Those of the script, None if they are not known.
        beside: Gives the text of a file that the script sources or runs, None if it is not here.
        host_words: Gives the output of ``nproc`` and the like.

    Raises:
        SourceError: If the script is too long, or starts too many programs.
    """
    variables = environment_words(environment)
    is_job = "#SBATCH" in text[:65536]
    if is_job:
        slurm = launchers.slurm_variables(text)
        variables = {**{n: Word(v, Origin(name)) for n, v in slurm.items()}, **variables}
    state = ShellState(Variables(variables), ExpansionBudget(), name)
    if is_job and (number := launchers.IN_JOB) not in variables:
        state.assign(number, Word(f"${number}", Origin(name), (number,)), exported=True)
        state.set_limit(slurm_memlock(Origin(name)))
    reader = ShellPrograms(name, state, 0, beside, host_words)
    if arguments is not None:
        origin = Origin("command line")
        state.give_parameters(tuple(Word(text, origin) for text in arguments))
    reader.read(text, 1)
    return reader.reading()


def in_environment(
    reading: Reading, environment: Mapping[str, str], host_words: HostWords
) -> Reading:
    """Fill in the unresolved words of a reading from ``environment`` and the host, if known.

    Commands inherit the variables that they do not set; those of a container or manifest stay
    unchanged.

    Args:
        host_words: Gives the output of a command such as nproc, None if not known.
    """
    around = environment_words(environment)

    def part(match: re.Match[str]) -> str:
        """Return the value of one open part here, or the part as it is written."""
        name, braced, default, command = match.groups()
        text = getattr(around.get(name or braced or ""), "text", default)
        text = host_words(command) if command else text
        return match.group() if text is None else text

    def here(word: Word) -> Word:
        """Return a word with its unknown parts filled in, if this environment tells them."""
        if not word.unresolved or "$" not in word.text:
            return word
        filled_in = _OPEN_PART.sub(part, word.text)
        names = [name for name in word.unresolved if name in filled_in or name[:1] in "<{"]
        left = tuple(names) if filled_in != word.text else word.unresolved
        return word._replace(text=filled_in, unresolved=left)

    def of_command(command: Command) -> Command:
        """Return a command filled in from this shell, unless a container or manifest has it."""
        if command.container is not None or command.place is not None:
            return command
        own_variables = {name: here(word) for name, word in command.environment.items()}
        return command._replace(
            words=tuple(map(here, command.words)), environment={**around, **own_variables}
        )

    return reading.each(of_command)


def read_words(
    argv: Sequence[Word],
    environment: Mapping[str, Word],
    *,
    in_container: bool = False,
    depth: int = 0,
    budget: ExpansionBudget | None = None,
    beside: Beside = lambda name: None,
    stdin: Word | None = None,
) -> Reading:
    """Read one command's words: take wrappers off, read ``bash -c`` and scripts.

    Args:
        in_container: The words run in a container.
        depth, budget, beside: Of the script around the command.
        stdin: What the command reads from standard input, None if that is not known.

    Raises:
        SourceError: If a script is too long, or starts too many programs.
    """
    if not argv:
        return Reading(())
    stripped = strip_wrappers(argv, environment, in_container, stdin is not None)
    reading = _read_stripped(argv, stripped, depth, budget or ExpansionBudget(), beside, stdin)
    if stripped.limits or stripped.run_as.origin:
        reading = reading.each(
            # What stands in front of a container is its engine's.
            lambda command: (
                command
                if command.container is not None and stripped.container is None
                else command.under(stripped.run_as, stripped.limits)
            )
        )
    if stripped.published and reading.commands:
        reading = source.with_published(reading, stripped.published)
    srun_tasks = [launchers.tasks(front, stripped.environment) for front in stripped.wrappers]
    per_host = math.prod(each.per_host for each in srun_tasks if each)
    hosts = math.prod(each.hosts for each in srun_tasks if each)
    if per_host * hosts == 1 or len(reading.commands) * per_host > MOST_TURNS:
        return reading
    commands = [command._replace(copies=command.copies * hosts) for command in reading.commands]
    return reading._replace(commands=tuple(each for each in commands for _ in range(per_host)))


def read_argv(argv: Sequence[str], environment: Mapping[str, str | Word]) -> Reading:
    """Return the commands that a command line, split into words, starts.

    ``NAME=value`` words in front of the program set variables, as a shell would have done. Script
    files that the command names are read from the disk.

    Raises:
        SourceError: As ``read_words`` does.
    """
    origin = Origin("command line")
    typed = [Word(text, origin) for text in argv]
    front = [*takewhile(lambda word: source.ASSIGNMENT.match(word.text), typed)]
    pairs = (word.text.partition("=") for word in front)
    changes = {name: Word(value, origin) for name, _, value in pairs}
    variables = Layers(environment_words(environment), changes)
    return read_words(typed[len(front) :], variables, beside=read_small_file)


def _read_stripped(
    argv: Sequence[Word],
    stripped: StrippedCommand,
    depth: int,
    budget: ExpansionBudget,
    beside: Beside,
    stdin: Word | None,
) -> Reading:
    """Return the commands of ``argv`` without its wrappers (``stripped``): those of a shell's text
    or of a script, or one program.

    Args:
        depth: The number of shells around.
    """
    notes = stripped.notes

    def only(id_: str, text: str, origin: Origin) -> Reading:
        return Reading((), (*notes, SourceNote(id_, text, origin)))

    def of_shell(script: Word, name: str, arguments: Sequence[Word]) -> Reading:
        """Read a shell's text, or a script file if ``name``, its path, is not ""."""
        state = ShellState(Variables(stripped.environment), budget, name)
        state.give_parameters(tuple(arguments))
        reader = ShellPrograms(script.origin.source, state, depth + 1, beside)
        reader.doubts, reader.piped = script.doubts, None if name else stdin
        reader.read(script.text, script.origin.line)
        return reader.reading()

    def in_wrappers(inner: Reading, *front: tuple[str, ...], in_container: bool = False) -> Reading:
        """Return an inner shell's commands behind the wrappers, and ``front``.

        Args:
            in_container: The files that the shell writes are for its commands alone.
        """
        inner_own = inner.each(
            lambda command: command._replace(
                wrappers=(*stripped.wrappers, *front, *command.wrappers),
                container=command.container or stripped.container,
                files=inner.files if in_container else command.files,
            )
        )
        files = {} if in_container else inner.files
        return Reading(inner_own.commands, (*notes, *inner.notes), files, own_lines=True)

    if stripped.reads and stdin is not None:
        if stdin.unresolved and not stdin.text:
            text = f"the script is {stdin.unresolved[0]}, which is not read: name it to read it"
            return only("script-not-read", text, argv[0].origin)
        stripped, stdin = stripped._replace(script=stdin), None
    if stripped.script is not None:
        if depth >= DEEPEST_SCRIPT:
            text = f"more than {DEEPEST_SCRIPT} shells within each other: the innermost is not read"
            return only("script-not-read", text, argv[0].origin)
        budget.spend(nested_cost(stripped.script.text, depth))
        inner = of_shell(stripped.script, "", stripped.arguments)
        if (where := _inside(stripped, argv[0].origin)) is not None:
            outer = (stripped.script, *stripped.environment.values())
            inner = source.mark_inside(inner, where, outer)
        return in_wrappers(inner, in_container=stripped.container is not None)
    if not stripped.argv or (program := stripped.argv[0].text) in BUILTINS or not program:
        return Reading((), notes)
    origin = stripped.argv[0].origin
    if program.startswith("-"):
        text = f"{program} stands where a program should: the shell finds none of that name"
        return only("not-a-program", text, origin)
    if is_starter(stripped.argv):

        def near(name: str) -> str | None:
            """Return a file's text, paid for: a script cannot start others for ever."""
            text = beside(name)
            return None if text is None or not budget.spend(nested_cost(text, 1)) else text

        inner_or_none = read_starter(stripped.argv, stripped.environment, near, stdin)
        if inner_or_none is not None:
            inner = inner_or_none.each(
                lambda command: command._replace(wrappers=(*stripped.wrappers, *command.wrappers))
            )
            return inner._replace(notes=(*notes, *inner.notes))
    script = _script_words(stripped.argv)
    script_text = beside(script[0].text) if script and not script[0].unresolved else None
    if script_text is not None and depth < DEEPEST_SCRIPT and budget.spend(len(script_text)):
        path = script[0].text
        inner = of_shell(Word(script_text, Origin(path, 1)), path, script[1:])
        return in_wrappers(inner, (program, path))
    if script:
        text = "the script that this shell runs is not read: name it on its own to read it"
        notes = (*notes, SourceNote("script-not-read", text, origin))
    process = (stripped.argv, stripped.environment, stripped.wrappers, argv[0].origin)
    return Reading((Command(*process, stripped.container),), notes)


def _inside(stripped: StrippedCommand, origin: Origin) -> Inside | None:
    """Return the place (container, pod, other host, Ray cluster) that alone can set the unset
    variables of a wrapped script; None if the script runs beside its caller.
    """
    for wrapper in reversed(stripped.wrappers):
        name = wrapper[0].rpartition("/")[2]
        if launchers.enters_container(wrapper) or launchers.starts_anew(wrapper):
            verb = f"{name} exec" if launchers.enters_container(wrapper) else name
            return Inside("remote", f"{verb} ({origin})")
        if stripped.container is not None and name in ENGINES:
            return Inside("run", f"{name} run ({origin})")
    return None


def _script_words(argv: Sequence[Word]) -> tuple[Word, ...]:
    """Return the path and arguments of a script that is run by a shell, or by its name (``.sh``);
    () if no script is run.
    """
    program = argv[0].text
    if program.rpartition("/")[2] not in SHELLS:
        return tuple(argv) if program.endswith(".sh") else ()
    call = shell_call(argv, 0)
    return () if call.reads or call.commands else tuple(argv[call.place :])


def _read(launch: launch_files.LaunchText) -> Reading:
    """Return the commands of a launch file that is a shell script."""
    variables, notes = launch_files.with_env_files(launch)
    path, text = launch.path, launch.text
    if "\0" in text:
        raise SourceError(f"{path} is a binary file: give the script or manifest that runs it")
    reading = read_script(text, path, variables, launch.arguments, launch.beside, launch.host_words)
    marked = (_mark_note(text, path, reading),) if launch.marked else ()
    return reading._replace(notes=(*notes, *marked, *reading.notes))


def _mark_note(text: str, path: str, reading: Reading) -> SourceNote:
    """Return a note on how bash reads a script that begins with a byte order mark."""
    lost = any(command.origin == Origin(path, 1) for command in reading.commands)
    result = "does not find the program of this line" if lost else "loses this line"
    if text.startswith("#!"):
        result += ", and the kernel refuses to run it without a shell in front"
    why = "the file begins with a byte order mark (U+FEFF), which bash takes for a part of the "
    why += f"first word: it {result}. It is read here as meant; save it as UTF-8 without the mark"
    return SourceNote("program-behind-mark" if lost else "byte-order-mark", why, Origin(path, 1))


KIND = launch_files.LaunchKind("a shell script", lambda launch: launch.documents is None, _read)
