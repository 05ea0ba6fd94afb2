"""What a shell script starts, read without running it.

tree-sitter-bash parses it; variables, conditions, loops and functions are followed as bash follows
them. What only running it could tell (most command substitutions, variables nobody sets) stays in
the words as written, and is named there; if it decides a branch, every branch is read, and what
follows is doubted. What is not followed at all is named with its line, and what it may set is
unknown.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from checks.base.needs import RunAs
from checks.base.unknown import Inside
from preflight.launches.container import ContainerSettings
from preflight.launches.container_run import ENGINES
from preflight.launches.described import STARTERS, described, is_described
from preflight.launches.env_files import env_file_settings
from preflight.launches.launch_kind import (
    Beside,
    HostWords,
    LaunchKind,
    LaunchText,
    with_env_files,
)
from preflight.launches.launchers import (
    IN_JOB,
    enters_container,
    slurm_variables,
    starts_anew,
    starts_server,
    tasks,
)
from preflight.launches.run_as import changed_user
from preflight.launches.set_limits import OWN_SHELL, of_job, prlimit, ulimit
from preflight.launches.shell_conditions import FALSE, OPEN, PROGRAM, TRUE, Truth
from preflight.launches.shell_expansion import expand, fields, number, value
from preflight.launches.shell_flow import (
    MOST_TURNS,
    STARTED,
    WRITES,
    Part,
    Redirection,
    ShellFlow,
    ShellFunction,
    redirections_of,
)
from preflight.launches.shell_output import TALKS, printed, written_out
from preflight.launches.shell_state import ELEMENT_COSTS, Changes, ExpansionBudget, ShellState
from preflight.launches.shell_text import ALONE, Pieces, ShellText
from preflight.launches.source import (
    Command,
    Origin,
    Reading,
    SourceError,
    SourceNote,
    Word,
    brief,
    read_inside,
)
from preflight.launches.variables import (
    Layers,
    Variables,
    environment_words,
    may_be_absent,
    unread,
)
from preflight.launches.wrappers import (
    SHELLS,
    Stripped,
    is_ordinary,
    shell_call,
    strip_wrappers,
)

if TYPE_CHECKING:
    from preflight.launches.shell_text import Node

# ``bash -c "bash -c '...'"`` and eval are read down to here.
DEEPEST_SCRIPT = 8
# A function within itself is followed down to here.
DEEPEST_CALLS = 4
# Programs that a script starts at most, loops and functions written out: more is no launch, and to
# read it took minutes. 1 MB of published launches starts 3000.
_MOST_PROGRAMS = 10_000
# Shell builtins that start no process, and sleep, which changes nothing.
BUILTINS = frozenset(
    "[ . : alias bg bind break caller cd compgen complete compopt continue declare dirs disown "
    "echo enable eval exit export false fc fg getopts hash help history jobs kill let local logout "
    "mapfile popd printf pushd pwd read readarray readonly return set shift shopt sleep source "
    "suspend test times trap true type typeset ulimit umask unalias unset wait".split()
)
# Builtins of which only a run tells how they end.
_OPEN_BUILTINS = frozenset("getopts hash kill let read mapfile readarray type wait".split())
# What starts a server in a way that is not followed: it is named with its line.
_NOT_FOLLOWED = frozenset(("coproc", "find", "trap"))
# Programs that are taken to do what they are told; what any other one says is not known.
_SUCCEED = frozenset("chmod chown cp install ln mkdir mv pip pip3 rm tee touch".split())
# What starts a program in a job of its own.
_ALLOCATE = frozenset(("oarsub", "salloc"))
# What ends processes that run aside, and what asks of one of them alone.
_KILLS = frozenset("kill killall pkill wait".split())
# Programs of which one that reads standard input may start what it finds there.
_READERS = STARTERS | SHELLS | set("read runuser ssh su sudo".split())
_ENGINES = frozenset(("docker", "nerdctl", "podman"))
_STOPS = frozenset(("kill", "rm", "stop"))
_ASKS = frozenset("-0 -l -L".split())
_DETACHED = frozenset(("-d", "--detach", "--wait"))
# What sets up the shell of whoever reads this, not of whoever starts the launch.
_PERSONAL = (".bashrc", ".profile", "/profile", "/activate", "conda.sh")
# What ``eval "$(conda shell.bash hook)"`` and its like set up, which is no setting of a launch.
_HOOK = re.compile(r"[$`(]+.*\b(hook|init|shellenv|activate|ssh-agent|modulecmd)\b", re.DOTALL)
# What writes nothing that $(...) would take.
_SILENT = frozenset(
    ": [ break cd continue declare exit export false local readonly return set shift shopt test "
    "trap true typeset unset".split()
)
# Files that set up a shell or its tools, and no setting of a launch.
_SOURCED = (
    *("/activate", ".bashrc", "/profile", ".profile", "conda.sh", "setvars.sh"),
    *("set_env.sh", "set_env.bash", "setenv.bash"),  # Ascend's
)
_SIMPLE = frozenset(
    "command declaration_command unset_command variable_assignment variable_assignments "
    "redirected_statement".split()
)
_DECLARATIONS = frozenset("declare export local readonly typeset unset".split())
_KEYWORDS = frozenset("case do done elif else esac fi for if in then until while { }".split())
# Notes of what a command substitution may write one thing or another by.
_DOUBTS = ("condition", "loop-not-counted", "script-not-read")
# The text of a shell within a shell costs so many times its length: such texts can multiply.
_NESTED_COSTS = 16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What of a captured word depends on the host that it runs on: ``$A``, ``${A:-x}``, ``$(hostname)``.
_OPEN_PART = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}$`]*))?\}|\(([^()$`]*)\))")


def _ends_others(words: Sequence[str]) -> bool:
    """Return whether a command ends what runs aside: ``kill $PID``, ``docker stop NAME``."""
    program = words[0].rpartition("/")[2]
    if program in _ENGINES:
        return bool(_STOPS & set(words[1:3]))
    return program in _KILLS and not _ASKS & set(words[1:])


def read_script(
    text: str,
    name: str,
    environment: Mapping[str, str | Word],
    arguments: Sequence[str] | None = None,
    beside: Beside = lambda name: None,
    host_words: HostWords = lambda command: None,
) -> Reading:
    """Return the processes that a script called ``name`` starts in ``environment``.

    The commands say what bash does, and the notes what its author hardly meant. Raises SourceError
    for what is too long. arguments: what the script is given, None if that is not known. beside:
    gives the text of a file that it sources or runs, if that lies here. host_words: what ``nproc``
    and its like write.
    """
    variables = environment_words(environment)
    is_job = "#SBATCH" in text[:65536]
    if is_job:
        given = slurm_variables(text)
        variables = {**{n: Word(v, Origin(name)) for n, v in given.items()}, **variables}
    state = ShellState(Variables(variables), ExpansionBudget(), name)
    if is_job and IN_JOB not in variables:
        state.assign(IN_JOB, Word(f"${IN_JOB}", Origin(name), (IN_JOB,)), exported=True)
        state.set_limit(of_job(Origin(name)))
    reader = _Script(name, state, 0, beside, host_words)
    if arguments is not None:
        origin = Origin("command line")
        state.give_parameters(tuple(Word(text, origin) for text in arguments))
    reader.read(text, 1)
    return reader.reading()


def in_environment(
    reading: Reading, environment: Mapping[str, str], host_words: HostWords
) -> Reading:
    """Return ``reading``, made without an environment, as it is in ``environment``.

    Words that were left open say what they come to here, and commands that no container starts get
    the variables that they do not set.
    """
    around = environment_words(environment)

    def part(match: re.Match[str]) -> str:
        name, braced, default, command = match.groups()
        found = around.get(name or braced or "")
        text = host_words(command) if command else found.text if found is not None else default
        return match.group() if text is None else text

    def here(word: Word) -> Word:
        if not word.unresolved or "$" not in word.text:
            return word
        text = _OPEN_PART.sub(part, word.text)
        names = [name for name in word.unresolved if name in text or name[:1] in "<{"]
        return word._replace(
            text=text, unresolved=tuple(names) if text != word.text else word.unresolved
        )

    def of_command(one: Command) -> Command:
        if one.container is not None or one.place is not None:
            return one
        own = {name: here(word) for name, word in one.environment.items()}
        return one._replace(words=tuple(map(here, one.words)), environment={**around, **own})

    return reading._replace(commands=tuple(map(of_command, reading.commands)))


def read_words(
    words: Sequence[Word],
    environment: Mapping[str, Word],
    *,
    inside: bool = False,
    depth: int = 0,
    budget: ExpansionBudget | None = None,
    beside: Beside = lambda name: None,
    given: Word | None = None,
) -> Reading:
    """Read one command's words: wrappers taken off, and the text of ``bash -c`` read. Never raises.

    inside: the words are those of a container. depth, budget, beside: of the script around them.
    given: what the command reads from standard input, where that is known.
    """
    if not words:
        return Reading(())
    stripped = strip_wrappers(words, environment, inside, given is not None)
    found = _read_stripped(words, stripped, depth, budget or ExpansionBudget(), beside, given)
    if stripped.limits or stripped.run_as.origin:
        each_one = tuple(
            # What stands in front of a container is its engine's.
            one
            if one.container is not None and stripped.container is None
            else one.under(stripped.run_as, stripped.limits)
            for one in found.commands
        )
        found = found._replace(commands=each_one)
    if stripped.published and found.commands:
        first, *rest = found.commands
        first = first._replace(published=stripped.published)
        found = found._replace(commands=(first, *rest))
    several = [tasks(wrapper, stripped.environment) for wrapper in stripped.wrappers]
    beside_each, hosts = 1, 1
    for one in several:
        if one is not None:
            beside_each, hosts = beside_each * one.beside, hosts * one.hosts
    if beside_each * hosts == 1 or len(found.commands) * beside_each > MOST_TURNS:
        return found
    commands = [command._replace(copies=command.copies * hosts) for command in found.commands]
    return found._replace(commands=tuple(each for each in commands for _ in range(beside_each)))


def _read_stripped(
    words: Sequence[Word],
    stripped: Stripped,
    depth: int,
    budget: ExpansionBudget,
    beside: Beside,
    given: Word | None,
) -> Reading:
    notes = list(stripped.notes)
    if stripped.reads and given is not None:
        if given.unresolved and not given.text:
            text = f"the script is {given.unresolved[0]}, which is not read: name it to read it"
            return Reading((), (*notes, SourceNote("script-not-read", text, words[0].origin)))
        stripped, given = stripped._replace(script=given), None
    if stripped.script is not None:
        if depth >= DEEPEST_SCRIPT:
            text = f"more than {DEEPEST_SCRIPT} shells within each other: the innermost is not read"
            return Reading((), (*notes, SourceNote("script-not-read", text, words[0].origin)))
        origin = stripped.script.origin
        state = ShellState(Variables(stripped.environment), budget)
        state.give_parameters(stripped.arguments)
        budget.spend(_nested_cost(stripped.script.text, depth))
        reader = _Script(origin.source, state, depth + 1, beside)
        reader.doubts, reader.piped = stripped.script.doubts, given
        reader.read(stripped.script.text, origin.line)
        inner = reader.reading()
        apart = stripped.container is not None  # its files are its container's
        if (where := _inside(stripped, words[0].origin)) is not None:
            outer = (stripped.script, *stripped.environment.values())
            inner = read_inside(inner, where, outer)
        commands = tuple(
            command._replace(
                wrappers=(*stripped.wrappers, *command.wrappers),
                container=command.container or stripped.container,
                files=inner.files if apart else command.files,
            )
            for command in inner.commands
        )
        files = {} if apart else inner.files
        return Reading(commands, (*notes, *inner.notes), files, own_lines=True)
    if not stripped.words or (program := stripped.words[0].text) in BUILTINS or not program:
        return Reading((), tuple(notes))
    origin = stripped.words[0].origin
    if program.startswith("-"):
        text = f"{program} stands where a program should: the shell finds none of that name"
        return Reading((), (*notes, SourceNote("not-a-program", text, origin)))
    if is_described(stripped.words):
        near = _metered(beside, budget)
        started = described(stripped.words, stripped.environment, near, given)
        if started is not None:
            commands = tuple(
                command._replace(wrappers=(*stripped.wrappers, *command.wrappers))
                for command in started.commands
            )
            return Reading(commands, (*notes, *started.notes), started.files)
    script = _script_words(stripped.words)
    found = beside(script[0].text) if script and not script[0].unresolved else None
    if found is not None and depth < DEEPEST_SCRIPT and budget.spend(len(found)):
        state = ShellState(Variables(stripped.environment), budget, script[0].text)
        state.give_parameters(script[1:])
        reader = _Script(state.name, state, depth + 1, beside)
        reader.read(found, 1)
        inner = reader.reading()
        wrapper = (*stripped.wrappers, (program, script[0].text))
        commands = tuple(
            command._replace(
                wrappers=(*wrapper, *command.wrappers),
                container=command.container or stripped.container,
            )
            for command in inner.commands
        )
        return Reading(commands, (*notes, *inner.notes), inner.files, own_lines=True)
    if script:
        text = "the script that this shell runs is not read: name it on its own to read it"
        notes.append(SourceNote("script-not-read", text, origin))
    command = Command(
        stripped.words,
        stripped.environment,
        stripped.wrappers,
        words[0].origin,
        stripped.container,
    )
    return Reading((command,), tuple(notes))


def _inside(stripped: Stripped, origin: Origin) -> Inside | None:
    """Return where a shell runs that has none of its caller's variables; None for another."""
    for wrapper in reversed(stripped.wrappers):
        name = wrapper[0].rpartition("/")[2]
        if enters_container(wrapper) or starts_anew(wrapper):
            verb = f"{name} exec" if enters_container(wrapper) else name
            return Inside("remote", f"{verb} ({origin})")
        if stripped.container is not None and name in ENGINES:
            return Inside("run", f"{name} run ({origin})")
    return None


def _script_words(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return a script that a shell is told to run, and its arguments; empty where there is none."""
    program = words[0].text
    if program.rpartition("/")[2] not in SHELLS:
        return tuple(words) if program.endswith(".sh") else ()
    call = shell_call(words, 0)
    return () if call.reads or call.commands else tuple(words[call.place :])


def _metered(beside: Beside, budget: ExpansionBudget) -> Beside:
    """Return a reader of files that spends ``budget``: a script cannot start others for ever."""

    def near(name: str) -> str | None:
        text = beside(name)
        return None if text is None or not budget.spend(_NESTED_COSTS * len(text)) else text

    return near


def _nested_cost(text: str, depth: int) -> int:
    """Return what the text of a shell within a shell costs: such texts can be made to multiply."""
    return _NESTED_COSTS * len(text) if depth else 0


def _deeper(command: Command) -> bool:
    """Tell whether a shell stands in front: its commands have lines of their own."""
    return any(
        wrapper[0].rpartition("/")[2] in SHELLS and len(wrapper) > 1 for wrapper in command.wrappers
    )


class _Assignment(NamedTuple):
    """``NAME=value``, ``NAME+=value`` (adds), ``NAME[place]=value``; elements: of an array."""

    name: str
    place: str | None
    adds: bool
    pieces: Pieces
    elements: Sequence[Node] | None


class _Script(ShellFlow):
    """Knows what the simple commands of a script mean: programs, functions, the shell's own."""

    def __init__(
        self,
        source: str,
        state: ShellState,
        depth: int = 0,
        beside: Beside = lambda name: None,
        host_words: HostWords = lambda command: None,
    ) -> None:
        super().__init__(source, state)
        self.depth = depth
        self.beside = beside
        self.host_words = host_words
        self.called: set[str] = set()
        self.locals: list[Changes] = []  # what each function hides
        # Of each container that docker run named: what it was given, and its variables.
        self.containers: dict[str, tuple[ContainerSettings, Mapping[str, Word]]] = {}
        self.captures = False  # this is the text of $(...)
        state.output = self.output

    def reading(self) -> Reading:
        for name, origin in self.conditions.assumed.items():
            said = f"{name} is not set: where the script asks whether it is, it is taken as empty"
            self.note("taken-as-empty", said, origin)
        return Reading(tuple(self.commands), tuple(dict.fromkeys(self.notes)), self.files)

    def lies(self, name: str) -> bool:
        return name in self.files or self.lying(name) is not None

    def lying(self, name: str) -> str | None:
        """Return the text of a file that lies where the script is when it names it."""
        path = self.state.path(name)
        return None if path is None else self.beside(path)

    def near(self, name: str) -> str | None:
        """Return the text of a file that the script wrote, or that lies where it looks."""
        word = self.files.get(name)
        if word is None:
            return self.lying(name)
        return None if word.unresolved else word.text

    def read(self, text: str, first_line: int | None) -> None:
        """Read a whole text, and then the functions that nothing calls, if it starts nothing."""
        parsed = self.parsed(text, self.source, first_line)
        self.whole(parsed)
        if self.stop == "exit" or self.started():
            return
        for name, function in list(self.functions.items()):
            if name in self.called:
                continue
            self.stop = ""
            said = f"nothing here calls the function {name}: read as if it were called"
            note = SourceNote("condition", said, function.text.origin(function.body))
            self.state.give_parameters(None)
            self.called.add(name)

            def steps(function: ShellFunction = function) -> Truth:
                return self.body(function.text, function.body)

            self.doubting(note, steps)

    # Simple commands

    def simple(self, text: ShellText, node: Node, redirections: Sequence[Redirection]) -> Truth:
        """Read a simple command, a declaration or assignments."""
        kind = node.type
        if node.has_error or any(r.node.has_error for r in redirections):
            return self.not_read(text, node)
        called = node.child_by_field_name("name")
        keyword = called is not None and text.text(called) in _KEYWORDS
        if kind not in _SIMPLE or keyword:  # what is left of a block that was cut
            return self.not_read(text, node)
        if kind in ("variable_assignment", "variable_assignments"):
            nodes = [node] if kind == "variable_assignment" else node.children
            for each in nodes:
                if each.type == "variable_assignment":
                    self.take(text, each)
            return TRUE
        children = [child for child in node.children if child.type != "comment"]
        for before, child in itertools.pairwise(list(children)):
            if not text.ends_line(before, child):
                continue
            if before.type != "variable_assignment":
                return self.not_read(text, node)
            # The grammar takes assignments on the lines before for those of a command.
            for setting in children[: children.index(child)]:
                self.take(text, setting)
            children = children[children.index(child) :]
        settings = [child for child in children if child.type == "variable_assignment"]
        own = [child for child in children if child.type.endswith("_redirect")]
        for child in own:
            redirections = [*redirections, *redirections_of(text, child)]
        written = [
            child
            for child in node.children
            if child not in own
            and child.type not in ("variable_assignment", "comment")
            # The 2 of ``2>&1``, of which the grammar makes a word.
            and not (child.type == "number" and text.bytes[child.end_byte :][:1] in (b"<", b">"))
        ]
        for redirection in redirections:
            written += redirection.extra
        words: list[Word] = []
        for word in text.words(written):
            words += expand(self.state, word, Origin(text.source, text.line(word.line)))
        origin = text.origin(node)
        if words and words[0].text == "time" and kind == "command":
            words = [word for word in words[1:] if word.text != "-p"]
        if kind in ("declaration_command", "unset_command") or (
            words and words[0].text in _DECLARATIONS  # the tree may have them for any command
        ):
            return self.declare(text, words, settings, origin)
        return self.program(text, words, settings, redirections, origin)

    def program(
        self,
        text: ShellText,
        words: list[Word],
        settings: Sequence[Node],
        redirections: Sequence[Redirection],
        origin: Origin,
    ) -> Truth:
        """Take in a command that is called by its name, with what it writes and reads."""
        for word in words:
            if word.text.startswith(("<(", ">(")) and STARTED.search(word.text):
                said = f"{brief(word.text)}: what it starts is not read"
                self.note("script-not-read", said, origin)
        writes = [
            word.text
            for redirection in redirections
            if redirection.operator in WRITES and redirection.target is not None
            for word in expand(self.state, redirection.target, origin)[:1]
        ]
        heredoc = next((r.node for r in redirections if r.operator in ("<<", "<<-")), None)
        body = None if heredoc is None else text.heredoc(heredoc)
        name = words[0].text.rpartition("/")[2] if words else ""
        if writes or name in ("tee", "sed"):
            appends = any(redirection.operator in (">>", "&>>") for redirection in redirections)
            self.written(body, words, writes, appends, origin)
        if self.said is not None:
            self.say(words, body, writes, origin)
        given = None
        if any(word.text.rpartition("/")[2] in _READERS for word in words):
            # What a loop reads line by line is not followed.
            own = words[0].text == "read"
            given = self.given(text, redirections, None if own else self.piped)
        if not words:
            return TRUE
        called = self.functions.get(words[0].text)
        if called is not None:
            mark = self.state.mark()
            for setting in settings:
                self.take(text, setting, exported=True)
            before = self.state.before(mark)
            ended = self.call(words[0].text, called, words, origin)
            for key, held in before.items():
                self.state.change(key, held)
            return ended
        texts = [word.text for word in words]
        if _ends_others(texts):
            self.kills += 1
        if self.names_unread(words, origin):
            return PROGRAM
        if texts[0] in BUILTINS:
            return self.builtin(text, words, settings, origin, given)
        if self.captures and texts[0] in TALKS:
            return TRUE
        if "prlimit" in texts[:3] and OWN_SHELL & set(texts):
            setter = changed_user(words[: texts.index("prlimit")] or words)
            for limit in prlimit(words):
                self.state.set_limit(limit._replace(must=False, setter=setter))
            return TRUE
        return self.starts(text, words, settings, given, origin)

    def starts(
        self,
        text: ShellText,
        words: list[Word],
        settings: Sequence[Node],
        given: Word | None,
        origin: Origin,
    ) -> Truth:
        """Take in a command that starts a program."""
        environment = self.environment(text, settings)
        program = words[0].text
        plain = is_ordinary(program) and not is_described(words)
        if plain and not words[0].unresolved and not self.is_script(words):
            self.start(Command(tuple(words), environment, (), origin))
        else:
            reading = read_words(
                words,
                environment,
                depth=self.depth,
                budget=self.state.budget,
                beside=self.near,
                given=given,
            )
            aside = bool(_DETACHED & {word.text for word in words})
            self.name_container(words, environment)
            for command in map(self.in_container, reading.commands):
                # What stands in the text of bash -c has lines of its own.
                deeper = reading.own_lines or _deeper(command)
                shown = command.origin.source != text.source or deeper
                command = command if shown else command._replace(origin=origin)
                self.start(command, aside, deeper)
            self.notes += reading.notes
            self.files.update(reading.files)
        if program == "exec" and len(words) > 1:
            self.stop = "exit"
        return TRUE if program.rpartition("/")[2] in _SUCCEED else PROGRAM

    def names_unread(self, words: Sequence[Word], origin: Origin) -> bool:
        """Name a command that starts what is not read; return whether it is left at that."""
        texts = [word.text for word in words]
        names = [text.rpartition("/")[2] for text in texts]
        job = names[0] in _ALLOCATE and any(n in SHELLS or n.endswith(".sh") for n in names[1:])
        runs = names[0] in _NOT_FOLLOWED and STARTED.search(" ".join(texts)) is not None
        if job or runs:
            said = f"{brief(' '.join(texts))}: what it starts, and when, is not read"
            self.note("script-not-read", f"{said}; give that on its own", origin)
        return runs or names[0] == "coproc"

    def given(
        self, text: ShellText, redirections: Sequence[Redirection], piped: Word | None
    ) -> Word | None:
        """Return what a command reads from standard input; None if nothing says it."""
        for redirection in reversed(redirections):
            node, origin = redirection.node, text.origin(redirection.node)
            if redirection.operator in ("<<", "<<-"):
                body = next((c for c in node.children if c.type == "heredoc_body"), node)
                return value(self.state, text.heredoc(node), text.origin(body))
            if redirection.operator == "<<<":
                nodes = [child for child in node.children if child.is_named]
                word = value(self.state, text.pieces(nodes[0]), origin) if nodes else None
                return None if word is None else word._replace(text=word.text + "\n")
            if redirection.operator == "<" and redirection.target is not None:
                place = expand(self.state, redirection.target, origin)[:1]
                return self.content(place[0]) if place else None
        return piped

    def content(self, place: Word) -> Word:
        """Return what a file holds; a text that is not known is empty and unresolved."""
        text = (
            "" if place.text == "/dev/null" else None if place.unresolved else self.near(place.text)
        )
        if text is None or not self.state.budget.spend(len(text)):
            return place._replace(text="", unresolved=(f"what {brief(place.text)} holds",))
        return Word(text, Origin(place.text, 1))

    # Assignments

    def assignment(self, text: ShellText, node: Node) -> _Assignment:
        """Return the parts of ``A=x``, ``A+=x``, ``A[1]=x`` or ``A=(x y)``."""
        target, behind = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = text.text(target)
        index = None
        if target.type == "subscript":
            name, _, index = name.removesuffix("]").partition("[")
        adds = any(child.type == "+=" for child in node.children)
        elements = behind.children[1:-1] if behind is not None and behind.type == "array" else None
        # What stands behind the grammar's value without a blank is part of it, too.
        nodes = [child for child in node.children[2:] if child.is_named]
        words = text.words(nodes) if elements is None else []
        pieces = tuple(piece for word in words for piece in word.pieces)
        return _Assignment(name, index, adds, pieces, elements)

    def take(self, text: ShellText, node: Node, exported: bool | None = None) -> None:
        """Take an assignment that stays."""
        state, origin = self.state, text.origin(node)
        name, index, adds, pieces, nodes = self.assignment(text, node)
        before = state.array(name)
        held = state.variables.get(name)
        keyed = state.held.get(("odd", name)) is not None
        if nodes is not None:
            words: list[Word] = []
            for element in text.words([child for child in nodes if child.type != "comment"]):
                if element.text.startswith("[") and "]=" in element.text:
                    keyed = True
                at = Origin(text.source, text.line(element.line))
                every = f"${{{name}[@]}}"
                loose = any(p.kind != "text" and not p.quoted for p in element.pieces)
                words += [
                    # $(...) may be several elements, or none.
                    word._replace(text=every) if loose and word.unresolved else word
                    for word in expand(state, element, at)
                ]
            if keyed:
                state.lose(name, origin, array=True)
                return
            old = (
                (before if before is not None else () if held is None else (held,)) if adds else ()
            )
            fits = state.budget.spend(ELEMENT_COSTS * (len(old) + len(words)))
            state.assign_array(name, (*old, *words) if fits else tuple(words))
            if held is not None:
                state.assign(name, None)
            return
        word = value(state, pieces, origin)
        if keyed and before is None and index is None:
            state.lose(name, origin)
            return
        if index is None and before is None:
            state.assign(name, self.added(name, word) if adds else word, exported)
            return
        elements = list(before if before is not None else () if held is None else (held,))
        place = 0 if index is None else number(state, index, origin)
        if keyed or place is None or not -len(elements) <= place <= len(elements):
            state.lose(name, origin, array=True)
            return
        if any(each.several for each in elements):
            state.lose(name, origin, array=True)
            return
        if adds and place < len(elements):
            both = (*elements[place].unresolved, *word.unresolved)
            word = word._replace(text=elements[place].text + word.text, unresolved=both)
        elements[place : place + 1 or None] = [word]
        state.assign_array(name, tuple(elements))
        if held is not None:
            state.assign(name, None)

    def added(self, name: str, word: Word, variables: Variables | None = None) -> Word:
        """Return what ``NAME+=word`` makes of a variable."""
        before = (variables or self.state.variables).get(name)
        if before is None:
            return word
        fits = self.state.budget.spend(len(before.text))
        text = before.text + word.text if fits else f"${name}"
        names = (*before.unresolved, *word.unresolved, *(() if fits else (name,)))
        doubts = (*before.doubts, *word.doubts)
        return word._replace(text=text, unresolved=tuple(dict.fromkeys(names)), doubts=doubts)

    def declare(
        self, text: ShellText, words: list[Word], settings: Sequence[Node], origin: Origin
    ) -> Truth:
        """Carry out ``export A=1 B``, ``declare -x``, ``local``, ``unset`` and their like."""
        state = self.state
        program, *arguments = [word.text for word in words]
        options = "".join(each for each in arguments if each.startswith("-"))
        if program == "unset":
            self.unset(arguments, origin)
            return TRUE
        names = [self.assignment(text, each).name for each in settings]
        names += [each.partition("=")[0] for each in arguments if each[:1] not in "-+"]
        if self.locals and program in ("local", "declare", "typeset") and "g" not in options:
            for name in names:
                for kind in ("variable", "array", "odd"):
                    self.locals[-1].setdefault((kind, name), state.current((kind, name)))
        if any(letter in options for letter in "Ainlu") and program not in ("export", "readonly"):
            # Arrays by key, sums, references, letters: what these names hold is not followed.
            for name in filter(_NAME.fullmatch, names):
                state.change(("odd", name), "array" if "A" in options else "text")
                state.lose(name, origin, array="A" in options)
            return TRUE
        exporting = program == "export" or "x" in options
        exports = ("n" not in options or program != "export") if exporting else None
        exports = False if any(each[:1] == "+" and "x" in each for each in arguments) else exports
        # A builtin's words are all expanded before it runs: export A=1 B=$A gives B the old A.
        ready = []
        for setting in settings:
            name, index, adds, pieces, elements = self.assignment(text, setting)
            odd = state.held.get(("odd", name)) is not None
            if index is None and elements is None and state.array(name) is None and not odd:
                word = value(state, pieces, text.origin(setting))
                ready.append((name, self.added(name, word) if adds else word))
            else:
                self.take(text, setting, exports)
        for name, word in ready:
            state.assign(name, word, exports)
        for word in words[1:]:
            name, equals, given = word.text.partition("=")
            if name[:1] in ("-", "+", ""):
                continue
            if word.unresolved and not _NAME.fullmatch(name):
                self.not_known(f"{program} of what {brief(word.text)} gives", origin)
            elif equals:
                state.assign(name, word._replace(text=given), exports)
            elif exports is not None and (held := state.variables.get(name)) is not None:
                state.assign(name, held, exports)
            elif exports:
                state.variables.export_later(name)
            elif self.locals and program != "readonly":
                state.assign(name, None)
                state.assign_array(name, None)
        return TRUE

    def unset(self, arguments: Sequence[str], origin: Origin) -> None:
        """Carry out ``unset A B``, ``unset -f NAME`` and ``unset A[1]``."""
        for name in arguments:
            array, bracket, _ = name.partition("[")
            if name.startswith("-"):
                continue
            if "-f" in arguments or self.state.variables.get(name) is None:
                self.functions.pop(name, None)
            if "-f" in arguments:
                continue
            if bracket:
                self.state.lose(array, origin, array=True)
                continue
            self.state.assign(name, None, exported=False)
            self.state.assign_array(name, None)
            self.state.change(("odd", name), None)

    def environment(self, text: ShellText, settings: Sequence[Node]) -> Mapping[str, Word]:
        """Return what a process gets that has ``settings`` in front of it."""
        environment = self.state.variables.environment()
        if not settings:
            return environment
        kept = self.state.variables
        scope = Variables(environment, kept)
        changes: dict[str, Word | None] = {}
        for setting in settings:
            name, index, adds, pieces, elements = self.assignment(text, setting)
            if index is not None or elements is not None:
                continue
            self.state.variables = scope
            word = value(self.state, pieces, text.origin(setting))
            self.state.variables = kept
            changes[name] = self.added(name, word, scope) if adds else word
            scope.put(name, changes[name], True)
        return Layers(environment, changes)

    # Containers and what is started

    def is_script(self, words: Sequence[Word]) -> bool:
        """Return whether a command is a shell script that lies here.

        It is read with its arguments.
        """
        name = words[0].text
        return name.endswith(".sh") and self.lying(name) is not None

    def name_container(self, words: Sequence[Word], environment: Mapping[str, Word]) -> None:
        """Keep what ``docker run --name`` gives a container: docker exec starts more in it."""
        texts = [word.text for word in words]
        given = [text.removeprefix("--name=") for text in texts if text.startswith("--name=")]
        given += [after for text, after in itertools.pairwise(texts) if text == "--name"]
        stripped = strip_wrappers(words, environment) if given else None
        if stripped is not None and stripped.container is not None:
            self.containers[given[0]] = (stripped.container, stripped.environment)

    def in_container(self, command: Command) -> Command:
        """Return what ``docker exec`` starts with what its container was given in this script."""
        names = [wrapper[-1] for wrapper in command.wrappers if enters_container(wrapper)]
        found = self.containers.get(names[0]) if len(names) == 1 else None
        if found is None or command.container is not None:
            return command
        settings, environment = found
        own = {
            name: word
            for name, word in command.environment.items()
            if not may_be_absent(word, name)
        }
        limits = tuple(one for one in command.limits if one.origin != command.run_as.origin)
        return command._replace(
            container=settings,
            environment={**environment, **own},
            limits=limits,
            run_as=RunAs(),
        )

    def start(self, command: Command, aside: bool = False, deeper: bool = False) -> None:
        """Take a command in.

        aside: the words that start its container say that nobody waits. deeper: a shell within this
        one told of its own commands.
        """
        doubts = tuple(dict.fromkeys((*self.doubts, *command.doubts)))
        detached = command.container is not None and (
            any(word in _DETACHED for wrapper in command.wrappers for word in wrapper)
            or (aside and command.container.engine == "compose")
        )
        waited = (command.waited or not deeper) and not self.aside and not detached
        limits = command.limits
        if command.container is None and not any(map(starts_anew, command.wrappers)):
            limits = (*self.state.limits(), *limits)
        turn = self.kills + command.turn
        command = command._replace(doubts=doubts, waited=waited, turn=turn, limits=limits)
        self.commands.append(command)
        if len(self.commands) > _MOST_PROGRAMS:
            raise SourceError(f"{self.source} starts more than {_MOST_PROGRAMS} programs: {ALONE}")

    # Functions and the shell's own commands

    def call(
        self, name: str, function: ShellFunction, words: Sequence[Word], origin: Origin
    ) -> Truth:
        """Go through a function with the arguments of a call."""
        cost = function.body.end_byte - function.body.start_byte
        self.called.add(name)
        deep = self.active.count(name) >= DEEPEST_CALLS or len(self.active) > 4 * DEEPEST_SCRIPT
        if deep or not self.state.budget.spend(cost):
            why = "calls itself" if deep else "is called more often than is followed"
            self.note("loop-not-counted", f"{name} {why}: not followed further", origin)
            return OPEN
        before = self.state.parameters
        self.state.give_parameters(tuple(words[1:]))
        self.active.append(name)
        self.locals.append({})
        outer, self.may_return = self.may_return, False
        ended = self.command(function.text, Part("", function.body))
        self.active.pop()
        for key, held in self.locals.pop().items():
            self.state.change(key, held)
        self.state.give_parameters(before)
        if self.stop == "return":
            self.stop, ended = "", self.ended
        ended = OPEN if self.may_return else ended
        self.may_return = outer
        return ended

    def builtin(
        self,
        text: ShellText,
        words: list[Word],
        settings: Sequence[Node],
        origin: Origin,
        given: Word | None,
    ) -> Truth:
        """Carry out one of the shell's own commands."""
        state = self.state
        program, *arguments = [word.text for word in words]
        if program in (".", "source"):
            return self.source_file(words[1:], origin)
        if program == "eval":
            return self.eval(words[1:], text, origin)
        if program in ("[", "test"):
            inner = words[1:-1] if program == "[" and arguments[-1:] == ["]"] else words[1:]
            return self.conditions.test(inner)
        if program in ("exit", "return", "break", "continue"):
            self.leave(program, arguments)
        elif program == "ulimit":
            said = f"ulimit {' '.join(arguments)}: sets a limit of the processes that follow"
            self.note("ulimit", said, origin)
            must = state.option("errexit") and not self.tested
            for limit in ulimit(words):
                state.set_limit(limit._replace(must=must))
            return PROGRAM if self.tested else TRUE
        elif program == "shift":
            self.shift(arguments)
        elif program == "unset":
            self.unset(arguments, origin)
        elif program in ("cd", "pushd", "popd"):
            state.enter(words)
        elif program == "let":
            for word in words[1:]:
                number(state, word.text, origin, assigns=True)
        elif program == "set":
            self.set_options(words)
        elif program == "printf" and len(arguments) > 2 and arguments[0] == "-v":
            known = None
            if not any(word.unresolved for word in words):
                known = printed(arguments[2:])
            state.lose(arguments[1], origin)
            if known is not None:
                state.assign(arguments[1], Word(known, origin))
        elif program == "read":
            return self.read_names(text, words, settings, given)
        elif program in ("mapfile", "readarray", "getopts"):
            for name in arguments[1:] if program == "getopts" else arguments or ["MAPFILE"]:
                if _NAME.fullmatch(name):
                    state.lose(name, origin, array=program != "getopts")
            if program == "getopts":
                state.lose("OPTARG", origin)
        elif program in ("alias", "shopt") and STARTED.search(" ".join(arguments)):
            self.not_read_words(words, origin)
        if program == "false":
            return FALSE
        return PROGRAM if program in _OPEN_BUILTINS else TRUE

    def not_read_words(self, words: Sequence[Word], origin: Origin) -> None:
        said = f"{brief(' '.join(word.text for word in words))}: what it changes is not read"
        self.note("script-not-read", said, origin)

    def read_names(
        self, text: ShellText, words: Sequence[Word], settings: Sequence[Node], given: Word | None
    ) -> Truth:
        """Carry out ``IFS=, read -ra NAMES <<< TEXT``; of another text the names are not known."""
        state = self.state
        ends = state.field_ends()
        for setting in settings:
            name, _, _, pieces, _ = self.assignment(text, setting)
            word = value(state, pieces, words[0].origin)
            ends = word.text if name == "IFS" and not word.unresolved else None
        flags, names, left = "", [], list(words[1:])
        while left:
            word = left.pop(0)
            if word.text in ("-d", "-p", "-n", "-t", "-u", "-N", "-i") and left:
                flags += word.text[1:]
                left.pop(0)
            elif word.text.startswith("-"):
                flags += word.text[1:]
            else:
                names.append(word.text)
        line, end, rest = ("", "", "") if given is None else given.text.partition("\n")
        known = given is not None and not given.unresolved and not rest and ends is not None
        known = known and not set(flags) - set("ra") and not ("\\" in line and "r" not in flags)
        for name in filter(_NAME.fullmatch, names or ["REPLY"]):
            state.lose(name, words[0].origin, array="a" in flags)
        if not known or given is None or ends is None:
            return PROGRAM
        if "a" in flags and names:
            split = tuple(given._replace(text=each) for each in fields(line, ends))
            state.assign_array(names[0], split)
        elif names:
            for name, each in zip(names, fields(line, ends, len(names)), strict=True):
                state.assign(name, given._replace(text=each))
                state.assign_array(name, None)
        else:
            state.assign("REPLY", given._replace(text=line))
        return TRUE if end else FALSE

    def set_options(self, words: Sequence[Word]) -> None:
        """Carry out ``set -euo pipefail -f`` and ``set -- x y``."""
        long, on = 0, True
        for place, word in enumerate(words[1:], start=1):
            text = word.text
            if text == "--":
                self.state.give_parameters(tuple(words[place + 1 :]))
                return
            if text[:1] in ("-", "+") and len(text) > 1:
                on = text[0] == "-"
                long += text.count("o")
                given = set(text[1:])
            elif long:
                long -= 1
                given = {text}
            else:
                self.state.give_parameters(tuple(words[place:]))
                return
            for letter, name in (("a", "allexport"), ("e", "errexit"), ("f", "noglob")):
                if letter in given or name in given:
                    self.state.change(("option", name), on)

    def leave(self, program: str, arguments: list[str]) -> None:
        """Carry out exit, return, break or continue."""
        known = arguments and re.fullmatch(r"[0-9]{1,3}", arguments[0])
        status = int(arguments[0]) if known else None
        if program == "return":
            self.ended = OPEN if arguments and status is None else Truth(not status)
        self.failing = program == "exit" and bool(status)
        self.levels = max(1, status or 1)
        self.stop = program

    def shift(self, arguments: list[str]) -> None:
        """Take what shift leaves: unknown if it may take any number."""
        count = arguments[0] if arguments else "1"
        given = self.state.parameters
        if given is None:
            return
        several = any(word.several for word in given)
        if not (count.isdecimal() and len(count) < 4) or several:
            self.state.give_parameters(None)
        elif int(count) <= len(given):  # else shift fails, and leaves all
            self.state.give_parameters(given[int(count) :])

    def eval(self, words: Sequence[Word], text: ShellText, origin: Origin) -> Truth:
        """Read the text that eval is given; name it if it is not known."""
        said = " ".join(word.text for word in words)
        if self.depth + len(self.active) >= DEEPEST_SCRIPT:
            self.note("script-not-read", "eval within eval: the innermost is not read", origin)
            return OPEN
        if any(word.unresolved for word in words):
            if said.startswith(("$(", "`")):
                self.not_known(
                    f"eval of what {brief(said)} writes", origin, bool(_HOOK.match(said))
                )
                return PROGRAM
            if any(word.text.startswith("$") for word in words[:1]):
                why = f"eval {brief(said)}: what it runs is not known"
                self.note("script-not-read", why, origin)
                self.may_set(origin)
                return PROGRAM
        if not self.state.budget.spend(_nested_cost(said, self.depth + 1)):
            return OPEN
        inner = self.parsed(said, text.source, origin.line)
        self.active.append("eval")
        ended = self.whole(inner)
        self.active.pop()
        return ended

    def source_file(self, words: Sequence[Word], origin: Origin) -> Truth:
        """Go through a file that lies beside the launch, in this shell."""
        name = words[0].text if words else ""
        known = bool(words) and (not words[0].unresolved or name in self.files)
        text = self.near(name) if known and not name.endswith(_PERSONAL) else None
        deep = len(self.active) >= DEEPEST_SCRIPT
        if text is None or deep or not self.state.budget.spend(len(text)):
            common = name.endswith(_SOURCED)
            self.not_known(name, origin, common, "; name its settings here")
            return PROGRAM
        before = self.state.parameters
        if len(words) > 1:
            self.state.give_parameters(tuple(words[1:]))
        self.active.append("source")
        inner = self.parsed(text, name, 1)
        ended = self.whole(inner)
        self.active.pop()
        if len(words) > 1:
            self.state.give_parameters(before)
        if self.stop == "return":
            self.stop = ""
        return ended

    def not_known(self, what: str, origin: Origin, common: bool = False, advice: str = "") -> None:
        """Note that what is not read may set variables: those that a server needs are unknown.

        common: it is known to set paths and the like, and none of those.
        """
        said = f"{what} is not read: variables that it sets are unknown{advice}"
        self.note("source-environment" if common else "source-not-read", said, origin)
        if not common:
            self.may_set(origin)

    def may_set(self, origin: Origin) -> None:
        for name, word in unread({}, origin).items():
            if self.state.variables.get(name) is None:
                self.state.assign(name, word, exported=True)

    # What $(...) writes

    def output(self, text: str, origin: Origin) -> Word | None:
        """Return what a command substitution writes, if that follows from the text alone."""
        known = self.host_words(text)
        if known is None:
            known = env_file_settings(text, self.near)
        if known is not None:
            return Word(known, origin)
        if self.depth >= DEEPEST_SCRIPT or not self.state.budget.spend(len(text)):
            return None
        mark, kept = self.state.mark(), self.state.output
        inner = _Script(self.source, self.state, self.depth + 1, self.beside, self.host_words)
        inner.files, inner.functions = self.files, dict(self.functions)
        inner.active, inner.nested = [*self.active], self.nested + 1
        inner.said, inner.captures = [], True
        parsed = self.parsed(text, self.source, origin.line)
        ended = inner.whole(parsed)
        self.state.back_to(mark)
        self.state.output = kept
        for command in inner.commands:
            if starts_server(command.words):
                program = brief(command.words[0].text)
                said = f"$(...) starts {program}: it is not read; give that command alone"
                self.note("script-not-read", said, origin)
        doubted = any(note.id in _DOUBTS for note in inner.notes)
        if inner.said is None or inner.commands or ended.value is None or doubted:
            return None
        return Word("".join(inner.said).rstrip("\n"), origin)

    def say(
        self, words: Sequence[Word], body: Pieces | None, writes: Sequence[str], origin: Origin
    ) -> None:
        """Keep what a command writes to standard output."""
        program = words[0].text if words else ""
        if self.said is None or not words or writes:
            return
        if program in self.functions or program in _SILENT:
            return
        if any(word.unresolved or word.doubts for word in words):
            self.said = None
            return
        arguments = [word.text for word in words[1:]]
        folder = self.state.folder()
        if program in ("readlink", "realpath") and folder is not None:
            arguments = [
                text if text.startswith(("-", "/")) else f"{folder}/{text}" for text in arguments
            ]
        found = written_out(program, arguments)
        if program == "pwd":
            found = None if folder is None else folder + "\n"
        elif program == "cat" and body is not None:
            word = value(self.state, body, origin)
            found = None if word.unresolved else word.text
        elif program == "cat" and len(arguments) == 1:
            text = self.near(arguments[0])
            found = text if text is not None and self.state.budget.spend(len(text)) else None
        self.said = None if found is None else [*self.said, found]

    def written(
        self,
        body: Pieces | None,
        words: list[Word],
        writes: list[str],
        appends: bool,
        origin: Origin,
    ) -> None:
        """Keep what a command writes to files, if its text stands in the script."""
        program = words[0].text.rpartition("/")[2] if words else ""
        plain = [word for word in words[1:] if not word.text.startswith("-")]
        if program == "tee":
            writes = [word.text for word in plain]
            appends = any(word.text in ("-a", "--append") for word in words)
        elif program == "sed":
            edits = any(word.text.startswith(("-i", "--in-place")) for word in words)
            if edits:
                writes = [*writes, *(word.text for word in plain[1:] if word.text in self.files)]
        content = Word("", origin, (f"what {program} writes",))
        if body is not None and program in ("cat", "tee"):
            content = value(self.state, body, origin)
        elif program == "echo":
            flags = [word.text for word in words[1:2] if word.text in ("-e", "-n", "-en", "-ne")]
            said = words[1 + len(flags) :]
            names = tuple(name for word in said for name in word.unresolved)
            end = "" if any("n" in flag for flag in flags) else "\n"
            content = Word(" ".join(word.text for word in said) + end, origin, names)
        for target in (name for path in writes for name in self.state.names_of(path)):
            before = self.files.get(target) if appends else None
            if appends and before is None:
                content = Word("", origin, (f"what {target} held before",))
            elif before is not None:
                names = (*before.unresolved, *content.unresolved)
                content = Word(before.text + content.text, origin, names)
            self.files[target] = content
            starts = content.unresolved or STARTED.search(content.text)
            if target.startswith("/etc/cron") and starts:
                why = f"{target}: what cron starts of it, and when, is not read"
                self.note("script-not-read", why, origin)


def _read(launch: LaunchText) -> Reading:
    variables, notes = with_env_files(launch)
    path, text = launch.path, launch.text
    if "\0" in text:
        raise SourceError(f"{path} is a binary file: give the script or manifest that runs it")
    reading = read_script(
        text,
        path,
        variables,
        launch.arguments,
        launch.beside,
        launch.host_words,
    )
    marked = (_marked(text, path, reading),) if launch.marked else ()
    return reading._replace(notes=(*notes, *marked, *reading.notes))


def _marked(text: str, path: str, reading: Reading) -> SourceNote:
    """Say what bash makes of a script behind a byte order mark, which YAML and Docker skip."""
    line = text.partition("\n")[0]
    word = (line.split() or [""])[0][:40]
    said = "No such file or directory" if "/" in word else "command not found"
    lost = any(command.origin == Origin(path, 1) for command in reading.commands)
    goes_on = "this line is lost, and the rest runs"
    if line.startswith("#!"):
        goes_on = "and without a shell in front the kernel refuses to run it (Exec format error)"
    elif lost:
        goes_on = "the program of this line is not started"
    return SourceNote(
        "program-behind-mark" if lost else "byte-order-mark",
        "the file begins with a byte order mark (U+FEFF), which bash takes for a part of the first "
        f"word: it says \\ufeff{word}: {said}, {goes_on}. It is read here as it was meant; save it "
        "as UTF-8 without the mark",
        Origin(path, 1),
    )


KIND = LaunchKind("a shell script", lambda launch: launch.documents is None, _read)
