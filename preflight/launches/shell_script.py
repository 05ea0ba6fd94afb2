"""What a shell script starts, read without running it.

Variables, conditions, loops and functions are followed as bash follows them. Whatever only running
it could tell (most command substitutions, variables nobody sets) stays in the words as written, and
is named there; where it decides a branch, every branch is read, and what follows is doubted.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from checks.base.needs import RunAs, SetLimit
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
    Listed,
    with_env_files,
)
from preflight.launches.launchers import (
    IN_JOB,
    enters_container,
    reads_all,
    slurm_variables,
    starts_anew,
    starts_server,
    tasks,
)
from preflight.launches.run_as import changed_user
from preflight.launches.set_limits import OWN_SHELL, conditional, of_job, prlimit, ulimit
from preflight.launches.shell_builtins import (
    BUILTINS,
    TALKS,
    assigned,
    declare,
    enter,
    folder_of,
    names_of,
    run_builtin,
    take,
    take_line,
    take_lines,
    take_option,
    written_out,
)
from preflight.launches.shell_conditions import FALSE, OPEN, PROGRAM, TRUE, Truth
from preflight.launches.shell_expansion import ExpansionBudget, Shell, path_from
from preflight.launches.shell_flow import (
    MOST_TURNS,
    NESTED_COSTS,
    STARTED,
    WRITES,
    Feed,
    ShellFlow,
    ShellFunction,
    ShellText,
    Steps,
    drive,
)
from preflight.launches.shell_tokens import ALONE, DECLARATIONS, REDIRECTIONS, Token
from preflight.launches.shell_words import Piece, heredoc_pieces
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

# ``bash -c "bash -c '...'"`` and eval are read down to here.
DEEPEST_SCRIPT = 8
# A function within itself is followed down to here.
DEEPEST_CALLS = 4
# Programs that a script starts at most, loops and functions written out: more is no launch, and to
# read it took minutes. 1 MB of published launches starts 3000.
_MOST_PROGRAMS = 10_000
# Programs that are taken to do what they are told; what any other one says is not known.
_SUCCEED = frozenset("chmod chown cp install ln mkdir mv pip pip3 rm tee touch".split())
# What starts a program in a job of its own.
_ALLOCATE = frozenset(("oarsub", "salloc"))
# Programs that make, rename or remove the files that they are told of.
_MAKE_FILES = frozenset(
    "cp curl dd gunzip gzip install ln mkdir mv rm rmdir rsync scp sed split tar tee touch "
    "truncate unlink unzip wget".split()
)
# What ends processes that run aside, and what asks of one of them alone.
_KILLS = frozenset("kill killall pkill wait".split())
# Programs of which one that reads standard input may start what it finds there.
_LINES = frozenset(("mapfile", "readarray"))
_READERS = STARTERS | SHELLS | _LINES | set("read runuser ssh su sudo".split())
_ENGINES = frozenset(("docker", "nerdctl", "podman"))
_STOPS = frozenset(("kill", "rm", "stop"))
_ASKS = frozenset("-0 -l -L".split())
_DETACHED = frozenset(("-d", "--detach", "--wait"))
_OPEN_BUILTINS = frozenset("getopts hash kill let read mapfile readarray type wait".split())
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


def _service(command: Command) -> tuple[object, ...] | None:
    """Return what tells one container of Compose from another; None for any other command."""
    if command.container is None or command.container.engine != "compose":
        return None
    return str(command.origin), command.words, command.container.image


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
    listed: Listed = lambda folder, pattern: None,
) -> Reading:
    """Return the processes that a script called ``name`` starts in ``environment``. Never raises.

    The commands say what bash does, where the notes say that its author hardly meant it.
    arguments: what the script is given, None where that is not known. beside:
    gives the text of a file that it sources or runs, where that lies here. host_words: what
    ``nproc`` and its like write. listed: the files that lie here and match a pattern.
    """
    variables = environment_words(environment)
    is_job = "#SBATCH" in text[:65536]
    if is_job:
        given = slurm_variables(text)
        variables = {**{n: Word(v, Origin(name)) for n, v in given.items()}, **variables}
    shell = Shell(Variables(variables), ExpansionBudget())
    shell.name, shell.host_words, shell.listed = name, host_words, listed
    if is_job and IN_JOB not in variables:
        shell.assign(IN_JOB, Word(f"${IN_JOB}", Origin(name), (IN_JOB,)), exported=True)
        shell.set_limit(of_job(Origin(name)))
    reader = _Script(name, shell, 0, beside)
    if arguments is not None:
        origin = Origin("command line")
        reader.shell.parameters = tuple(Word(text, origin) for text in arguments)
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
    shell = Shell(Variables(around), ExpansionBudget())
    shell.host_words = host_words
    _Script("script", shell)  # what $(...) writes

    def here(word: Word) -> Word:
        if not word.unresolved or not re.search(r"[$`]", word.text):
            return word
        found = shell.value(heredoc_pieces(Piece("text", word.text)), word.origin)
        others = tuple(name for name in word.unresolved if name[:1] in "<{")  # no variables
        return found._replace(unresolved=(*found.unresolved, *others), doubts=word.doubts)

    def of_command(one: Command) -> Command:
        if one.container is not None or one.place is not None:
            return one
        own = {name: here(word) for name, word in one.environment.items()}
        return one._replace(words=tuple(map(here, one.words)), environment={**around, **own})

    return reading._replace(commands=tuple(map(of_command, reading.commands)))


def heredoc_files(text: str, environment: Mapping[str, str | Word] | None = None) -> dict[str, str]:
    """Return the files that a script writes with ``cat > FILE <<EOF`` or tee: names to texts."""
    reader = _Script(
        "script", Shell(Variables(environment_words(environment or {})), ExpansionBudget())
    )
    reader.read(text, 1)
    return {path: word.text for path, word in reader.files.items()}


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
        shell = Shell(Variables(stripped.environment), budget)
        shell.parameters = stripped.arguments
        shell.budget.spend(_nested_cost(stripped.script.text, depth))
        reader = _Script(origin.source, shell, depth + 1, beside)
        reader.input, reader.doubts = given, stripped.script.doubts
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
        shell = Shell(Variables(stripped.environment), budget)
        shell.name, shell.parameters = script[0].text, script[1:]
        reader = _Script(shell.name, shell, depth + 1, beside)
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
        return None if text is None or not budget.spend(NESTED_COSTS * len(text)) else text

    return near


def _nested_cost(text: str, depth: int) -> int:
    """Return what the text of a shell within a shell costs: such texts can be made to multiply."""
    return NESTED_COSTS * len(text) if depth else 0


def _deeper(command: Command) -> bool:
    """Tell whether a shell stands in front: its commands have lines of their own."""
    return any(
        wrapper[0].rpartition("/")[2] in SHELLS and len(wrapper) > 1 for wrapper in command.wrappers
    )


class _Script(ShellFlow):
    """Knows what the simple commands of a script mean: programs, functions, the shell's own."""

    def __init__(
        self, source: str, shell: Shell, depth: int = 0, beside: Beside = lambda name: None
    ) -> None:
        super().__init__(source, shell)
        self.depth = depth
        self.beside = beside
        self.called: set[str] = set()
        self.services: Counter[tuple[object, ...]] = Counter()  # containers that Compose started
        self.locals: list[dict[tuple[str, str], object]] = []  # what each function hides
        # Of each container that docker run named: what it was given, and its variables.
        self.containers: dict[str, tuple[ContainerSettings, Mapping[str, Word]]] = {}
        # What alias says; a script takes it for nothing until shopt -s expand_aliases.
        self.aliases: dict[str, ShellFunction] = {}
        self.expands = False
        self.captures = False  # this is the text of $(...)
        self.input: Word | None = None  # what the whole script reads from standard input
        shell.output = self.output

    def reading(self) -> Reading:
        for name, origin in self.conditions.assumed.items():
            said = f"{name} is not set: where the script asks whether it is, it is taken as empty"
            self.note("taken-as-empty", said, origin)
        return Reading(tuple(self.commands), tuple(dict.fromkeys(self.notes)), self.files)

    def lies(self, name: str) -> bool:
        return name in self.files or self.lying(name) is not None

    def lying(self, name: str) -> str | None:
        """Return the text of a file that lies where the script is when it names it."""
        path = path_from(self.shell, name)
        return None if path is None else self.beside(path)

    def near(self, name: str) -> str | None:
        """Return the text of a file that the script wrote, or that lies where it looks."""
        word = self.files.get(name)
        if word is None:
            return self.lying(name)
        return None if word.unresolved else word.text

    def read(self, text: str, first_line: int | None) -> None:
        """Read a whole text, and then the functions that nothing calls, where it starts nothing."""
        parsed = self.parsed(text, self.source, first_line)
        if self.input is not None:
            self.feed = Feed(self.input, len(self.doubts))
        drive(self.run(parsed, 0, len(parsed.tokens)))
        started = (" ".join(word.text for word in command.words) for command in self.commands)
        if self.stop == "exit" or any(map(STARTED.search, started)):
            return
        for name, function in list(self.functions.items()):
            if name in self.called:
                continue
            self.stop = ""
            said = f"nothing here calls the function {name}: read as if it were called"
            note = SourceNote("condition", said, function.text.origin(0)._replace(line=None))
            line = function.text.tokens[min(function.start, len(function.text.tokens) - 1)].line
            note = note._replace(origin=function.text.origin(line))
            self.shell.give_parameters(None)
            self.called.add(name)
            drive(self.doubting(note, self.run(*function[:3])))

    # Simple commands

    def simple(self, text: ShellText, position: int, end: int) -> Steps:
        """Read a simple command from here to its end."""
        tokens, line = text.tokens, text.tokens[position].line
        settings: list[Token] = []
        words: list[Word] = []
        writes: list[str] = []
        body: Piece | None = None
        given = redirected = None
        declares = appends = False
        while position < end:
            token = tokens[position]
            origin = text.origin(token.line)
            if token.word is not None:
                if token.word.assignment is not None and (not words or declares):
                    settings.append(token)
                elif token.elements is None:
                    # A program is called by its name.
                    words += self.shell.expand(token.word, origin, files=bool(words))
                    declares = bool(words) and words[0].text in DECLARATIONS
            elif token.operator in REDIRECTIONS:
                target = tokens[position + 1].word if position + 1 < end else None
                if target is not None:
                    position += 1
                    body = tokens[position].heredoc or body
                    if token.operator in WRITES:
                        appends = appends or token.operator == ">>"
                        writes += [word.text for word in self.shell.expand(target, origin)[:1]]
                    elif token.operator == "<<<":
                        given = self.shell.value(target.pieces, origin)
                        given = given._replace(text=given.text + "\n")
                    elif token.operator == "<":
                        place = self.shell.expand(target, origin)[:1]
                        redirected = place[0] if place else redirected
            position += 1
        origin = text.origin(line)
        if words and words[0].text == "find" and any(w.text[:5] == "-exec" for w in words):
            does = next(i for i, word in enumerate(words) if word.text[:5] == "-exec")
            if starts_server(words[does + 1 :]):
                said = "find -exec: how often it starts its program is not known"
                self.note("script-not-read", said, origin)
        if words and words[0].text.rpartition("/")[2] in _ALLOCATE:
            names = [word.text.rpartition("/")[2] for word in words[1:]]
            if any(name in SHELLS or name.endswith(".sh") for name in names):
                said = f"{brief(words[0].text)}: what it starts in its job is not read; give that"
                self.note("script-not-read", said, origin)
        for word in words:
            if word.text.startswith(("<(", ">(")) and word.unresolved:
                inside = [word._replace(text=each) for each in word.text[2:-1].split()]
                if starts_server(inside):
                    said = f"{brief(word.text)}: what it starts is not read"
                    self.note("script-not-read", said, origin)
        self.shell.touched += writes
        if words and words[0].text.rpartition("/")[2] in _MAKE_FILES:
            self.shell.touched += [word.text for word in words[1:]]
        if body is not None or writes or (words and words[0].text in ("tee", "sed")):
            self.written(body, words, writes, appends, origin)
        if self.said is not None:
            self.say(words, body, writes, origin)
        if given is None and any(w.text.rpartition("/")[2] in _READERS for w in words):
            if body is not None:  # its text begins below the line of its command
                below = (
                    origin
                    if origin.line is None
                    else origin._replace(line=tokens[position - 1].line + 1)
                )
                given = self.shell.value(heredoc_pieces(body), below)
            elif redirected is not None:
                given = self.content(redirected)
            elif self.piped is not None or self.feed is None:
                given = self.piped
            elif words[0].text == "read":
                given = self.feed.line(len(self.doubts))
            else:
                given = self.feed.left(len(self.doubts))
        own = bool(words) and body is None and redirected is None
        own = own and (given is None or words[0].text != "read")
        if own and self.feed is not None and self.piped is None and not self.aside:
            self.read_rest(self.feed, words, origin)
        ended = yield self.finish(text, words, settings, origin, given)
        return ended

    def read_rest(self, feed: Feed, words: Sequence[Word], origin: Origin) -> None:
        """Take what a command such as ssh reads of the text that the loop around reads, too."""
        program = reads_all([word.text for word in words])
        if not program or not (feed.rest.text or feed.rest.unresolved):
            return
        mended = "ssh -n" if program == "ssh" else f"{program} ... < /dev/null"
        said = (
            f"{program} reads the rest of the list that the loop around goes over: how often it "
            f"goes is not known; write {mended}"
        )
        self.note("loop-not-counted", said, origin)

    def content(self, place: Word) -> Word:
        """Return what a file holds; a text that is not known is empty and unresolved."""
        text = (
            "" if place.text == "/dev/null" else None if place.unresolved else self.near(place.text)
        )
        if text is None or not self.shell.budget.spend(len(text)):
            return place._replace(text="", unresolved=(f"what {brief(place.text)} holds",))
        return Word(text, Origin(place.text, 1))

    def finish(
        self,
        text: ShellText,
        words: list[Word],
        settings: list[Token],
        origin: Origin,
        given: Word | None,
    ) -> Steps:
        """Take a command's assignments and words in."""
        program = words[0].text if words else ""
        if not words or program in DECLARATIONS:
            if self.locals and program in ("local", "declare", "typeset"):
                self.hide(words, settings)
            declare(self.shell, words, settings, origin)
            for word in words[1:]:
                if word.unresolved and not word.text.partition("=")[0].isidentifier():
                    self.may_set(f"{program} of what {brief(word.text)} gives", origin)
            return TRUE
        called = self.functions.get(program)
        mark = self.shell.mark()
        for token in settings:
            if called or token.elements is not None:
                take(self.shell, token, text.origin(token.line), True if called else None)
        if called is not None:
            given_to_it = self.shell.before(mark)
            ended = yield self.call(program, called, words, origin)
            for (kind, name), value in given_to_it.items():
                self.shell.change(kind, name, value, ())
            return ended
        if _ends_others([word.text for word in words]):
            self.kills += 1
        if program in BUILTINS:
            ended = yield self.builtin(text, words, settings, origin, given)
            return ended
        if self.captures and program in TALKS:
            return TRUE
        if "prlimit" in (texts := [word.text for word in words])[:3] and OWN_SHELL & set(texts):
            setter = changed_user(words[: texts.index("prlimit")] or words)
            for limit in prlimit(words):
                self.shell.set_limit(limit._replace(must=False, setter=setter))
            return TRUE
        environment = self.environment(text, settings)
        plain = is_ordinary(program) and not is_described(words)
        plain = plain or self.runs_again(words)
        if plain and not words[0].unresolved and not self.is_script(words):
            self.start(Command(tuple(words), environment, (), origin))
        else:
            reading = read_words(
                words,
                environment,
                depth=self.depth,
                budget=self.shell.budget,
                beside=self.near,
                given=given,
            )
            aside = bool(_DETACHED & {word.text for word in words})
            self.name_container(words, environment)
            for command in map(self.in_container, self.not_yet(reading.commands)):
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

    def runs_again(self, words: Sequence[Word]) -> bool:
        """Return whether ``docker start`` starts containers that this script made."""
        program, *texts = [word.text for word in words]
        verb = next((at for at, text in enumerate(texts) if text in ("start", "restart")), None)
        if program.rpartition("/")[2] not in _ENGINES or verb is None or verb > 2:
            return False
        named = [text for text in texts[verb + 1 :] if text[:1] != "-"]
        return all(name in self.containers for name in named)

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

    def not_yet(self, commands: Sequence[Command]) -> Iterator[Command]:
        """Leave out the containers of Compose that run already: a second up starts none anew."""
        there = Counter(self.services)
        for command in commands:
            service = _service(command)
            if service is not None and there[service]:
                there[service] -= 1
            else:
                self.services.update(() if service is None else (service,))
                yield command

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
            limits = (*itertools.chain(*self.shell.limits.values()), *limits)
        turn = self.kills + command.turn
        command = command._replace(doubts=doubts, waited=waited, turn=turn, limits=limits)
        self.commands.append(command)
        if len(self.commands) > _MOST_PROGRAMS:
            raise SourceError(f"{self.source} starts more than {_MOST_PROGRAMS} programs: {ALONE}")

    def call(
        self, name: str, function: ShellFunction, words: Sequence[Word], origin: Origin
    ) -> Steps:
        """Go through a function with the arguments of a call."""
        cost = NESTED_COSTS * (function.end - function.start)
        deep = self.active.count(name) >= DEEPEST_CALLS
        self.called.add(name)
        if deep or not self.shell.budget.spend(cost):
            why = "calls itself" if deep else "is called more often than is followed"
            self.note("loop-not-counted", f"{name} {why}: not followed further", origin)
            return OPEN
        before = self.shell.parameters
        self.shell.give_parameters(tuple(words[1:]))
        self.active.append(name)
        self.locals.append({})
        outer, self.may_return = self.may_return, False
        steps = self.run(*function[:3])
        ended = yield self.subshell(steps) if function.apart else steps
        self.active.pop()
        for (kind, hidden), value in self.locals.pop().items():
            self.shell.change(kind, hidden, value, ())
        self.shell.give_parameters(before)
        if self.stop == "return":
            self.stop, ended = "", self.ended
        ended = OPEN if self.may_return else ended
        self.may_return = outer
        return ended

    def hide(self, words: Sequence[Word], settings: Sequence[Token]) -> None:
        """Keep what the names stood for that a function makes its own."""
        names = [t.word.assignment.name for t in settings if t.word and t.word.assignment]
        names += [word.text.partition("=")[0] for word in words[1:] if word.text[:1] != "-"]
        for name in names:
            for kind in ("variable", "keys", "array"):
                self.locals[-1].setdefault((kind, name), self.shell.current(kind, name))
            if all(
                t.word is None or t.word.assignment is None or t.word.assignment.name != name
                for t in settings
            ):
                self.shell.assign(name, None)
                self.shell.assign_keyed(name, None)

    def environment(self, text: ShellText, settings: list[Token]) -> Mapping[str, Word]:
        """Return what a process gets that has ``settings`` in front of it."""
        environment = self.shell.variables.environment()
        single = [token for token in settings if token.elements is None]
        if not single:
            return environment
        scope = Variables(environment, self.shell.variables)
        for token in single:
            if token.word is not None and (assignment := token.word.assignment) is not None:
                origin = text.origin(token.line)
                if len(settings) == 1:
                    alone = assigned(self.shell, assignment, origin)
                    return Layers(environment, {assignment.name: alone})
                scope.put(assignment.name, assigned(self.shell, assignment, origin, scope), True)
        return scope.environment()

    def builtin(
        self,
        text: ShellText,
        words: list[Word],
        settings: list[Token],
        origin: Origin,
        given: Word | None,
    ) -> Steps:
        program, *arguments = [word.text for word in words]
        if program in (".", "source"):
            ended = yield self.source_file(words[1:], origin)
            return ended
        if program == "eval":
            ended = yield self.eval(words[1:], text, origin)
            return ended
        if program in ("[", "test"):
            inner = words[1:-1] if program == "[" and arguments[-1:] == ["]"] else words[1:]
            return self.conditions.test(inner)
        if program in ("exit", "return", "break", "continue"):
            self.leave(program, arguments)
            return TRUE
        if program == "ulimit":
            said = f"ulimit {' '.join(arguments)}: sets a limit of the processes that follow"
            self.note("ulimit", said, origin)
            limits: list[SetLimit] = []
            for one in ulimit(words):  # it ends at the first that is refused
                limits.append(conditional(one, (*self.follows, *limits), self.otherwise))
                self.shell.set_limit(limits[-1])
            return TRUE._replace(limits=tuple(limits))
        elif program == "shift":
            self.shift(arguments)
        elif program == "shopt" and "expand_aliases" in arguments:
            self.expands = "-s" in arguments
            self.functions.update(self.aliases if self.expands else {})
        elif program == "shopt":
            if any("glob" in text for text in arguments):
                self.shell.set_option("globs", None)
            if any("nocase" in text for text in arguments):
                self.shell.set_option("case", "-s" not in arguments)
        elif program == "unset":
            for name in arguments:
                if "-f" in arguments or self.shell.variables.get(name) is None:
                    self.functions.pop(name, None)
            run_builtin(self.shell, words)
        elif program == "alias":
            self.name_texts(words[1:], text, origin)
        elif program in ("cd", "pushd", "popd"):
            enter(self.shell, words)
        elif program == "trap" and STARTED.search(" ".join(arguments[:1])):
            said = f"trap {brief(arguments[0])}: what it starts, and when, is not read"
            self.note("script-not-read", said, origin)
        elif program == "let":
            for word in words[1:]:
                self.shell.number(word.text, origin, assigns=True)
        elif (
            program == "read"
            and given is not None
            and (read := self.read_given(words, settings, given)) is not None
        ):
            return TRUE if read else FALSE
        elif program in _LINES and given is not None and take_lines(self.shell, words, given):
            return TRUE
        elif program == "getopts" and self.shell.parameters is None and len(words) == 3:
            return FALSE._replace(soft=True)  # as started without arguments
        elif program == "getopts" and (there := take_option(self.shell, words)) is not None:
            return TRUE if there else FALSE
        else:
            run_builtin(self.shell, words)
        if program == "false":
            return FALSE
        return PROGRAM if program in _OPEN_BUILTINS else TRUE

    def read_given(
        self, words: Sequence[Word], settings: Sequence[Token], given: Word
    ) -> bool | None:
        """Carry out ``IFS=, read -ra NAMES``; return whether a line was there, None: not known."""
        ends = self.shell.field_ends()
        for token in settings:
            assignment = token.word.assignment if token.word else None
            if assignment is None or assignment.name != "IFS":
                return None
            word = self.shell.value(assignment.value, given.origin)
            ends = None if word.unresolved else word.text
        return None if ends is None else take_line(self.shell, words, given, ends)

    def leave(self, program: str, arguments: list[str]) -> None:
        number = (
            int(arguments[0]) if arguments and re.fullmatch(r"[0-9]{1,3}", arguments[0]) else None
        )
        if program == "return":
            self.ended = OPEN if arguments and number is None else Truth(not number)
        self.failing = program == "exit" and bool(number)
        self.levels = max(1, number or 1)
        self.stop = program

    def name_texts(self, words: Sequence[Word], text: ShellText, origin: Origin) -> None:
        """Let each name of ``alias NAME=TEXT`` stand for its text, where the shell does so."""
        for word in words:
            name, equals, said = word.text.partition("=")
            if not equals or not self.shell.budget.spend(NESTED_COSTS * len(said)):
                continue
            front = "command " if said.split()[:1] == [name] else ""  # not itself again
            inner = self.parsed(f'{front}{said} "$@"', text.source, origin.line)
            self.aliases[name] = ShellFunction(inner, 0, len(inner.tokens))
            self.called.add(name)
        self.functions.update(self.aliases if self.expands else {})

    def shift(self, arguments: list[str]) -> None:
        """Take what shift leaves: unknown where it may take any number."""
        number = arguments[0] if arguments else "1"
        given = self.shell.parameters
        if given is None:
            return
        several = any(word.several for word in given)
        if not (number.isdecimal() and len(number) < 4) or several:
            self.shell.give_parameters(None)
        elif int(number) <= len(given):  # else shift fails, and leaves all
            self.shell.give_parameters(given[int(number) :])

    def eval(self, words: Sequence[Word], text: ShellText, origin: Origin) -> Steps:
        if self.depth + len(self.active) >= DEEPEST_SCRIPT:
            self.note("script-not-read", "eval within eval: the innermost is not read", origin)
            return OPEN
        said = " ".join(word.text for word in words)
        if any(word.unresolved for word in words) and said.startswith(("$(", "`")):
            self.may_set(f"eval of what {brief(said)} writes", origin, bool(_HOOK.match(said)))
            return PROGRAM
        if not self.shell.budget.spend(_nested_cost(said, self.depth + 1)):
            return OPEN
        inner = self.parsed(said, text.source, origin.line)
        self.active.append("eval")
        mark = self.shell.mark()
        ended = yield self.run(inner, 0, len(inner.tokens))
        self.active.pop()
        del mark
        return ended

    def source_file(self, words: Sequence[Word], origin: Origin) -> Steps:
        """Go through a file that lies beside the launch, in this shell."""
        name = words[0].text if words else ""
        known = bool(words) and (not words[0].unresolved or name in self.files)
        text = self.near(name) if known and not name.endswith(_PERSONAL) else None
        deep = len(self.active) >= DEEPEST_SCRIPT
        if text is None or deep or not self.shell.budget.spend(len(text)):
            self.may_set(name, origin, name.endswith(_SOURCED), "; name its settings here")
            return PROGRAM
        before = self.shell.parameters
        if len(words) > 1:
            self.shell.give_parameters(tuple(words[1:]))
        self.active.append("source")
        inner = self.parsed(text, name, 1)
        ended = yield self.run(inner, 0, len(inner.tokens))
        self.active.pop()
        if len(words) > 1:
            self.shell.give_parameters(before)
        if self.stop == "return":
            self.stop = ""
        return ended

    def may_set(self, what: str, origin: Origin, common: bool = False, advice: str = "") -> None:
        """Note that what is not read may set variables: those that a server needs are unknown.

        common: it is known to set paths and the like, and none of those.
        """
        said = f"{what} is not read: variables that it sets are unknown{advice}"
        self.note("source-environment" if common else "source-not-read", said, origin)
        for name, word in () if common else unread({}, origin).items():
            if self.shell.variables.get(name) is None:
                self.shell.assign(name, word, exported=True)

    # What $(...) writes

    def output(self, text: str, origin: Origin) -> Word | None:
        """Return what a command substitution writes, where that follows from the text alone."""
        known = self.shell.host_words(text)
        if known is None:
            known = env_file_settings(text, self.near)
        if known is not None:
            return Word(known, origin)
        if self.depth >= DEEPEST_SCRIPT or not self.shell.budget.spend(NESTED_COSTS * len(text)):
            return None
        shell = self.shell
        mark, kept = shell.mark(), shell.output
        inner = _Script(self.source, shell, self.depth + 1, self.beside)
        inner.files, inner.functions = self.files, dict(self.functions)
        inner.said, inner.captures = [], True
        parsed = inner.parsed(text, self.source, origin.line)
        ended = drive(inner.run(parsed, 0, len(parsed.tokens)))
        shell.back_to(mark)
        shell.output = kept
        for command in inner.commands:
            if starts_server(command.words):
                program = brief(command.words[0].text)
                said = f"$(...) starts {program}: it is not read; give that command alone"
                self.note("script-not-read", said, origin)
        if inner.said is None or inner.commands or ended.value is None or inner.doubted:
            return None
        return Word("".join(inner.said).rstrip("\n"), origin)

    @property
    def doubted(self) -> bool:
        """Tell whether a condition that is not known was passed on the way here."""
        return any(note.id in ("condition", "loop-not-counted") for note in self.notes)

    def say(
        self, words: Sequence[Word], body: Piece | None, writes: Sequence[str], origin: Origin
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
        folder = folder_of(self.shell)
        if program in ("readlink", "realpath") and folder is not None:
            arguments = [
                text if text.startswith(("-", "/")) else f"{folder}/{text}" for text in arguments
            ]
        found = written_out(program, arguments)
        if program == "pwd":
            found = None if folder is None else folder + "\n"
        elif program == "cat" and body is not None:
            value = self.shell.value(heredoc_pieces(body), origin)
            found = None if value.unresolved else value.text
        elif program == "cat" and len(arguments) == 1:
            text = self.near(arguments[0])
            found = text if text is not None and self.shell.budget.spend(len(text)) else None
        if found is None:
            self.said = None
        else:
            self.said.append(found)

    def written(
        self,
        body: Piece | None,
        words: list[Word],
        writes: list[str],
        appends: bool,
        origin: Origin,
    ) -> None:
        """Keep what a command writes to files, where its text stands in the script."""
        program = words[0].text.rpartition("/")[2] if words else ""
        plain = [word for word in words[1:] if not word.text.startswith("-")]
        if program == "tee":
            writes = [word.text for word in plain]
            appends = any(word.text in ("-a", "--append") for word in words)
        elif program == "sed":
            edits = any(word.text.startswith(("-i", "--in-place")) for word in words)
            if edits:
                writes = [word.text for word in plain[1:] if word.text in self.files]
        content = Word("", origin, (f"what {program} writes",))
        if body is not None and program in ("cat", "tee"):
            content = self.shell.value(heredoc_pieces(body), origin)
        elif program == "echo":
            flags = [word.text for word in words[1:2] if word.text in ("-e", "-n", "-en", "-ne")]
            said = words[1 + len(flags) :]
            names = tuple(name for word in said for name in word.unresolved)
            end = "" if any("n" in flag for flag in flags) else "\n"
            content = Word(" ".join(word.text for word in said) + end, origin, names)
        for target in (name for written in writes for name in names_of(self.shell, written)):
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
        launch.listed,
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
