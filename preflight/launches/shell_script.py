"""What a shell script starts, read without running it.

Variables are followed as bash follows them; whatever only running it could tell (command
substitutions, variables nobody sets) stays in the words as written, and is named there. Branches,
loops and functions are read as if each of their commands ran once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight.launches.launch_kind import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_builtins import BUILTINS, assigned, declare, run_builtin, take
from preflight.launches.shell_expansion import Budget, Shell
from preflight.launches.shell_tokens import (
    CLOSES,
    CONDITIONS,
    DECLARATIONS,
    LEADS,
    REDIRECTIONS,
    Token,
    behind_in,
    behind_list,
    behind_name,
    behind_newlines,
    behind_pattern,
    block_ends,
    tokenize,
)
from preflight.launches.shell_words import Piece, heredoc_pieces, written
from preflight.launches.source import Command, Origin, Reading, SourceError, SourceNote, Word
from preflight.launches.variables import Layers, Variables, environment_words
from preflight.launches.wrappers import SHELLS, is_ordinary, strip_wrappers

# ``bash -c "bash -c '...'"`` and eval are read down to here.
DEEPEST_SCRIPT = 8
# A character of a text that a shell within a shell reads costs as much as so many of any other.
NESTED_COSTS = 16
# A function is read for so many different sets of arguments.
MOST_CALLS = 16
_KEYWORDS = LEADS | CLOSES | CONDITIONS | {"case", "for", "function", "select", "[["}
_CASE_ENDS = (";;", ";&", ";;&")
_WRITES = (">", ">|", ">>")


def read_script(
    text: str, name: str, environment: Mapping[str, str | Word], arguments: Sequence[str] = ()
) -> Reading:
    """Return the processes that a script called ``name`` starts in ``environment``. Never raises.

    The commands say what bash does, where the notes say that its author hardly meant it.
    arguments: what the script is given; without any, nobody knows whether it gets some.
    """
    reader = _Script(name, Shell(Variables(environment_words(environment)), Budget()))
    if arguments:
        origin = Origin("command line")
        reader.shell.parameters = tuple(Word(text, origin) for text in arguments)
    reader.read(text, 1)
    return reader.reading()


def heredoc_files(text: str, environment: Mapping[str, str | Word] | None = None) -> dict[str, str]:
    """Return the files that a script writes with ``cat > FILE <<EOF`` or tee: names to texts."""
    reader = _Script("script", Shell(Variables(environment_words(environment or {})), Budget()))
    reader.read(text, 1)
    return {path: word.text for path, word in reader.files.items()}


def read_words(
    words: Sequence[Word],
    environment: Mapping[str, Word],
    *,
    inside: bool = False,
    depth: int = 0,
    budget: Budget | None = None,
) -> Reading:
    """Read one command's words: wrappers taken off, and the text of ``bash -c`` read. Never raises.

    inside: the words are those of a container. depth, budget: of the script that holds them.
    """
    if not words:
        return Reading(())
    stripped = strip_wrappers(words, environment, inside)
    notes = list(stripped.notes)
    if stripped.script is not None:
        if depth >= DEEPEST_SCRIPT:
            text = f"more than {DEEPEST_SCRIPT} shells within each other: the innermost is not read"
            return Reading((), (*notes, SourceNote("script-not-read", text, words[0].origin)))
        origin = stripped.script.origin
        shell = Shell(Variables(stripped.environment), budget or Budget())
        shell.parameters = stripped.arguments
        shell.budget.spend(_nested_cost(stripped.script.text, depth))
        reader = _Script(origin.source, shell, depth + 1)
        reader.read(stripped.script.text, origin.line)
        inner = reader.reading()
        commands = tuple(
            command._replace(
                wrappers=(*stripped.wrappers, *command.wrappers),
                container=command.container or stripped.container,
            )
            for command in inner.commands
        )
        return Reading(commands, (*notes, *inner.notes), inner.files)
    if not stripped.words or (program := stripped.words[0].text) in BUILTINS or not program:
        return Reading((), tuple(notes))
    origin = stripped.words[0].origin
    if program.startswith("-"):
        text = f"{program} stands where a program should: the shell finds none of that name"
        return Reading((), (*notes, SourceNote("not-a-program", text, origin)))
    if program.rpartition("/")[2] in SHELLS:
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


def _nested_cost(text: str, depth: int) -> int:
    """Return what the text of a shell within a shell costs: such texts can be made to multiply."""
    return NESTED_COSTS * len(text) if depth else 0


def _deeper(command: Command) -> bool:
    """Tell whether a shell stands in front: its commands have lines of their own."""
    return any(
        wrapper[0].rpartition("/")[2] in SHELLS and len(wrapper) > 1 for wrapper in command.wrappers
    )


class _Script:
    """Reads a text command by command, and collects what they start."""

    def __init__(self, source: str, shell: Shell, depth: int = 0) -> None:
        self.source = source
        self.shell = shell
        self.depth = depth
        self.lined = True
        self.commands: list[Command] = []
        self.notes: list[SourceNote] = []
        self.files: dict[str, Word] = {}
        # Functions, and those not read yet: their bodies' first token, and behind their last.
        self.bodies: dict[str, tuple[int, int]] = {}
        self.unread: dict[str, tuple[int, int]] = {}
        self.calls: dict[str, set[tuple[str, ...]]] = {}  # the arguments that each was read with
        self.branched = False
        self.parameters: tuple[Word, ...] = ()  # of the function that is called

    def reading(self) -> Reading:
        return Reading(tuple(self.commands), tuple(dict.fromkeys(self.notes)), self.files)

    def origin(self, line: int) -> Origin:
        return Origin(self.source, line if self.lined else None)

    def note(self, identifier: str, text: str, line: int) -> None:
        self.notes.append(SourceNote(identifier, text, self.origin(line)))

    def read(self, text: str, first_line: int | None) -> None:
        """Read a whole text; ``first_line`` None where it has no lines, as on a command line."""
        self.lined = first_line is not None
        tokens, notes = tokenize(text, self.source, first_line or 1)
        if not self.lined:
            notes = [note._replace(origin=self.origin(0)) for note in notes]
        self.notes += notes
        ends = block_ends(tokens)
        shell = self.shell
        frames = [(0, len(tokens), shell.parameters)]
        while True:
            while frames:
                position, end, shell.parameters = frames.pop()
                called = ""
                while position < end and not called:
                    position, called = self.step(tokens, position, end, ends)
                if called:
                    self.unread.pop(called, None)
                    frames.append((position, end, shell.parameters))
                    frames.append((*self.bodies[called], self.parameters))
            if not self.unread:
                return
            # Nobody calls these here; whoever sources the script may.
            frames.append((*self.unread.pop(next(iter(self.unread))), None))

    def step(
        self, tokens: list[Token], position: int, end: int, ends: dict[int, int]
    ) -> tuple[int, str]:
        """Read one command or keyword; return where to go on, and a function to read first."""
        token = tokens[position]
        if operator := token.operator:
            if operator == "(":
                self.shell.enter()
            elif operator == ")":
                self.shell.leave()
            elif operator in _CASE_ENDS:
                return behind_pattern(tokens, position + 1, end), ""
            elif operator in REDIRECTIONS:
                return self.simple(tokens, position, end)
            return position + 1, ""
        bare = token.bare
        following = tokens[position + 1].operator if position + 1 < end else ""
        if bare not in _KEYWORDS and following[:1] != "(":
            return self.simple(tokens, position, end)
        if bare in LEADS or bare in CLOSES:
            return position + 1, ""
        if bare in CONDITIONS or bare in ("for", "select", "case"):
            text = f"{bare}: its commands are read as if each ran once, whatever the conditions"
            self.note("control-flow", text, token.line)
            self.branched = True
            if bare in ("while", "until"):
                self.shell.parameters = None  # what shifts them may run any number of times
            if bare == "case":
                return behind_in(tokens, position, end), ""
            if bare in CONDITIONS:
                return position + 1, ""
            return self.loop(tokens, position + 1, end), ""
        if bare == "[[":
            while position < end and tokens[position].bare != "]]":
                position += 1
            return position + 1, ""
        if body := behind_name(tokens, position, end):
            name = position + (bare == "function")
            return self.function(tokens, name, behind_newlines(tokens, body, end), ends), ""
        return self.simple(tokens, position, end)

    def loop(self, tokens: list[Token], position: int, end: int) -> int:
        """Read the head of a for loop: its variable is unknown inside, as it has several values."""
        if position < end and (name := tokens[position].bare):
            word = Word(f"${name}", self.origin(tokens[position].line), (name,))
            self.shell.assign(name, word)
        return behind_list(tokens, position, end)

    def function(self, tokens: list[Token], named: int, start: int, ends: dict[int, int]) -> int:
        """Keep a function whose body begins at ``start``, to be read when it is called."""
        word = tokens[named].word
        name = written(word.pieces) if word else ""
        if start not in ends:
            return start
        text = f"function {name}: its commands are read once for each set of arguments of its calls"
        self.note("control-flow", text, tokens[named].line)
        self.unread[name] = self.bodies[name] = (start + 1, ends[start])
        self.calls.pop(name, None)
        return ends[start] + 1

    def simple(self, tokens: list[Token], position: int, end: int) -> tuple[int, str]:
        """Read a simple command from here to its end."""
        start, line = position, tokens[position].line
        settings: list[Token] = []
        words: list[Word] = []
        writes: list[str] = []
        body: Piece | None = None
        declares = appends = False
        while position < end:
            token = tokens[position]
            origin = self.origin(token.line)
            if token.word is not None:
                if token.word.assignment is not None and (not words or declares):
                    settings.append(token)
                elif token.elements is None:
                    words += self.shell.expand(token.word, origin)
                    declares = bool(words) and words[0].text in DECLARATIONS
            elif token.operator in REDIRECTIONS:
                if position + 1 < end and (target := tokens[position + 1].word):
                    position += 1
                    body = tokens[position].heredoc or body
                    if token.operator in _WRITES:
                        appends = appends or token.operator == ">>"
                        writes += [word.text for word in self.shell.expand(target, origin)[:1]]
            else:
                break
            position += 1
        if body is not None or writes or (words and words[0].text in ("tee", "sed")):
            self.written(body, words, writes, appends, line)
        # An operator that begins no command, such as ((, is passed over.
        return max(position, start + 1), self.finish(words, settings, line)

    def finish(self, words: list[Word], settings: list[Token], line: int) -> str:
        """Take a command's assignments and words in; return the function it calls first."""
        program = words[0].text if words else ""
        if not words or program in DECLARATIONS:
            declare(self.shell, words, settings, self.origin(line))
            return ""
        called = program in self.bodies
        for token in settings:
            if called or token.elements is not None:
                take(self.shell, token, self.origin(token.line))
        if called:
            return program if self.is_new_call(words) else ""
        if program in BUILTINS:
            self.builtin(words, line)
            return ""
        environment = self.environment(settings)
        if is_ordinary(program) and not words[0].unresolved:
            self.commands.append(Command(tuple(words), environment, (), self.origin(line)))
            return ""
        reading = read_words(words, environment, depth=self.depth, budget=self.shell.budget)
        for command in reading.commands:
            # What stands in the text of bash -c has lines of its own.
            shown = command.origin.source != self.source or _deeper(command)
            self.commands.append(command if shown else command._replace(origin=self.origin(line)))
        self.notes += reading.notes
        self.files.update(reading.files)
        return ""

    def is_new_call(self, words: Sequence[Word]) -> bool:
        """Tell whether a function is to be read for these arguments: its parameters then."""
        name = words[0].text
        start, end = self.bodies[name]
        seen = self.calls.setdefault(name, set())
        texts = tuple(word.text for word in words[1:])
        cost = NESTED_COSTS * (end - start)
        afford = len(seen) < MOST_CALLS and self.shell.budget.left > 2 * cost
        if name not in self.unread and (texts in seen or not afford):
            return False
        self.shell.budget.spend(cost if seen else 0)
        seen.add(texts)
        self.parameters = tuple(words[1:])
        return True

    def environment(self, settings: list[Token]) -> Mapping[str, Word]:
        """Return what a process gets that has ``settings`` in front of it."""
        environment = self.shell.variables.environment()
        single = [token for token in settings if token.elements is None]
        if not single:
            return environment
        scope = Variables(environment, self.shell.variables)
        for token in single:
            if token.word is not None and (assignment := token.word.assignment) is not None:
                origin = self.origin(token.line)
                if len(settings) == 1:
                    alone = assigned(self.shell, assignment, origin)
                    return Layers(environment, {assignment.name: alone})
                scope.put(assignment.name, assigned(self.shell, assignment, origin, scope), True)
        return scope.environment()

    def builtin(self, words: list[Word], line: int) -> None:
        program, *arguments = [word.text for word in words]
        if program in (".", "source"):
            file = arguments[0] if arguments else ""
            text = f"{file} is not read: variables that it sets are unknown; name its settings here"
            self.note("source-not-read", text, line)
        elif program == "eval":
            self.eval(" ".join(arguments), line)
        elif program == "ulimit":
            text = f"ulimit {' '.join(arguments)}: sets a limit of the processes that follow"
            self.note("ulimit", text, line)
        elif program == "shift":
            self.shift(arguments)
        else:
            run_builtin(self.shell, words)

    def shift(self, arguments: list[str]) -> None:
        """Take what shift leaves: unknown where it may not run, or run more than once."""
        number = arguments[0] if arguments else "1"
        given = self.shell.parameters or ()
        known = not self.branched and number.isdecimal() and len(number) < 4
        plain = not any(word.unresolved and word.text.startswith("$") for word in given)
        if self.shell.parameters is None:
            return
        if not known or not plain:
            self.shell.parameters = None
        elif int(number) <= len(given):  # else shift fails, and leaves all
            self.shell.parameters = given[int(number) :]

    def eval(self, text: str, line: int) -> None:
        if self.depth >= DEEPEST_SCRIPT:
            self.note("script-not-read", "eval within eval: the innermost is not read", line)
            return
        shell = self.shell
        shell.budget.spend(_nested_cost(text, self.depth))
        open_subshells = len(shell.subshells)
        inner = _Script(self.source, shell, self.depth + 1)
        inner.read(text, line if self.lined else None)
        del shell.subshells[open_subshells:]
        self.commands += inner.commands
        self.notes += inner.notes
        self.files.update(inner.files)

    def written(
        self, body: Piece | None, words: list[Word], writes: list[str], appends: bool, line: int
    ) -> None:
        """Keep what a command writes to files, where its text stands in the script."""
        program = words[0].text.rpartition("/")[2] if words else ""
        plain = [word for word in words[1:] if not word.text.startswith("-")]
        if program == "tee":
            writes = [word.text for word in plain]
            appends = any(word.text in ("-a", "--append") for word in words)
        elif program == "sed":
            edits = any(word.text.startswith(("-i", "--in-place")) for word in words)
            writes = [word.text for word in plain[1:] if word.text in self.files] if edits else []
        if program in SHELLS and body is not None:
            text = "the script that this shell reads from the heredoc is not read"
            self.note("script-not-read", text, line)
        origin = self.origin(line)
        content = Word("", origin, (f"what {program} writes",))
        if body is not None and program in ("cat", "tee"):
            content = self.shell.value(heredoc_pieces(body), origin)
        elif program == "echo":
            flags = [word.text for word in words[1:2] if word.text in ("-e", "-n", "-en", "-ne")]
            said = words[1 + len(flags) :]
            names = tuple(name for word in said for name in word.unresolved)
            end = "" if any("n" in flag for flag in flags) else "\n"
            content = Word(" ".join(word.text for word in said) + end, origin, names)
        for target in writes:
            before = self.files.get(target) if appends else None
            if appends and before is None:
                content = Word("", origin, (f"what {target} held before",))
            elif before is not None:
                names = (*before.unresolved, *content.unresolved)
                content = Word(before.text + content.text, origin, names)
            self.files[target] = content


def _read(launch: LaunchText) -> Reading:
    variables, notes = with_env_files(launch)
    path, text = launch.path, launch.text
    if "\0" in text:
        raise SourceError(f"{path} is a binary file: give the script or manifest that runs it")
    reading = read_script(text, path, variables, launch.arguments)
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
