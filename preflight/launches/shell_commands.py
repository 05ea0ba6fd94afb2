"""The commands of a script one by one: what each starts, and what it changes for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight.launches.command_wrappers import SHELLS, is_ordinary, strip_wrappers
from preflight.launches.shell_builtins import BUILTINS, INERT, assigned, declare, run_builtin, take
from preflight.launches.shell_expansion import Budget, Shell
from preflight.launches.shell_forms import Form, text_form
from preflight.launches.shell_grammar import DECLARATIONS, REDIRECTIONS, Token, plain_command
from preflight.launches.shell_heredoc import heredoc_parts
from preflight.launches.shell_words import Part
from preflight.launches.source import Command, Origin, Reading, SourceNote, Word
from preflight.launches.variables import Layers, Variables

# ``bash -c "bash -c '...'"`` and eval are read down to here.
DEEPEST_SCRIPT = 8
# A character of a text that a shell within a shell reads costs as much as so many of any other.
NESTED_COSTS = 16
# A function is read for so many different sets of arguments.
MOST_CALLS = 16

_LINE_END = Token(0, "\n")
_ENDS = frozenset({"\n", ";"})


class Commands:
    """Reads simple commands, and collects what they start; a subclass reads whole texts."""

    def __init__(self, source: str, shell: Shell, depth: int = 0) -> None:
        self.source = source
        self.shell = shell
        self.depth = depth
        self.lined = True
        self.last_line, self.last_origin = -1, Origin(source)
        self.commands: list[Command] = []
        self.notes: list[SourceNote] = []
        self.files: dict[str, str] = {}
        self.heredocs: dict[Part, Form] = {}
        # Functions, and those not read yet: their bodies' first token, and behind their last.
        self.functions: set[str] = set()
        self.unread: dict[str, tuple[int, int]] = {}
        self.bodies: dict[str, tuple[int, int]] = {}
        self.calls: dict[str, set[tuple[str, ...]]] = {}  # the arguments that each was read with
        self.branched = False
        self.parameters: tuple[Word, ...] = ()  # of the function that is called
        self.programs: set[str] = set()  # those met that are nothing but programs

    def reading(self) -> Reading:
        return Reading(tuple(self.commands), tuple(dict.fromkeys(self.notes)) if self.notes else ())

    def origin(self, line: int) -> Origin:
        if line != self.last_line:
            self.last_line = line
            place = (self.source, line if self.lined else None)
            self.last_origin = tuple.__new__(Origin, place)
        return self.last_origin

    def note(self, identifier: str, text: str, line: int) -> None:
        self.notes.append(SourceNote(identifier, text, self.origin(line)))

    def read(self, text: str, first_line: int | None) -> None:
        """Reads a whole text; ``first_line`` None where it has no lines, as on a command line."""
        raise NotImplementedError

    def plain(self, token: Token, setting: Token | None = None) -> str:
        """A command whose words all stand for themselves, with at most one assignment in front.

        Returns the function that it calls first.
        """
        line, _, _, _, _, texts = token
        program = texts[0]
        if program in INERT and program not in self.functions:
            return ""
        origin = self.last_origin if line == self.last_line else self.origin(line)
        if len(texts) == 1:
            words = [tuple.__new__(Word, (program, origin, ()))]
        else:
            words = [tuple.__new__(Word, (text, origin, ())) for text in texts]
        if program not in self.programs:
            if program in self.functions or program in BUILTINS or not is_ordinary(program):
                line = setting.line if setting else line
                return self.finish(words, [setting] if setting else [], line)
            self.programs.add(program)
        environment = self.shell.variables.environment()
        if setting:
            environment = self.environment([setting], environment)
            origin = self.origin(setting.line)
        fields = (tuple(words), environment, (), origin, None)
        self.commands.append(tuple.__new__(Command, fields))
        return ""

    def simple(self, tokens: list[Token], position: int, end: int) -> tuple[int, str]:
        """A simple command from here to its end."""
        token = tokens[position]
        following = tokens[position + 1] if position + 1 < end else _LINE_END
        if token.form and token.form.assignment and (following.words or following.operator):
            if following.words and token.elements is None:
                return position + 2, self.plain(following, token)
            if following.operator in _ENDS and not following.words:
                take(self.shell, token, self.origin(token.line))
                return position + 1, ""
        start, line = position, tokens[position].line
        settings: list[Token] = []
        words: list[Word] = []
        writes: list[str] = []
        body: Part | None = None
        declares = False
        while position < end:
            token = tokens[position]
            form = token.form
            if form is not None:
                if form.assignment is not None and (not words or declares):
                    settings.append(token)
                elif token.elements is None:
                    origin = self.origin(token.line)
                    if form.literal is None:
                        words += self.shell.expand(form, origin)
                    else:
                        words.append(tuple.__new__(Word, (form.literal, origin, ())))
                    declares = bool(words) and words[0].text in DECLARATIONS
            elif token.operator in REDIRECTIONS:
                if position + 1 < end and (target := tokens[position + 1].form):
                    position += 1
                    body = tokens[position].heredoc or body
                    if token.operator in (">", ">|", ">>"):
                        origin = self.origin(token.line)
                        writes += [word.text for word in self.shell.expand(target, origin)[:1]]
            else:
                if token.words:
                    origin = self.origin(token.line)
                    words += [tuple.__new__(Word, (text, origin, ())) for text in token.words]
                    position += 1
                break
            position += 1
        if body is not None:
            self.heredoc(body, words, writes, line)
        # An operator that begins no command, such as ((, is passed over.
        return max(position, start + 1), self.finish(words, settings, line)

    def finish(self, words: list[Word], settings: list[Token], line: int) -> str:
        """Takes a command's assignments and words in; returns the function it calls first."""
        program = words[0].text if words else ""
        if not words or program in DECLARATIONS:
            declare(self.shell, words, settings, self.origin(line))
            return ""
        called = program in self.functions
        if settings:
            for token in settings:
                if called or token.elements is not None:
                    take(self.shell, token, self.origin(token.line))
        if called:
            return program if self.is_new_call(words) else ""
        if program in BUILTINS:
            self.builtin(words, line)
            return ""
        environment = self.shell.variables.environment()
        if settings:
            environment = self.environment(settings, environment)
        if is_ordinary(program) and not words[0].unresolved:
            fields = (tuple(words), environment, (), self.origin(line), None)
            self.commands.append(tuple.__new__(Command, fields))
            return ""
        reading = command_reading(
            words, environment, type(self), depth=self.depth, budget=self.shell.budget
        )
        for command in reading.commands:
            # What stands in the text of bash -c has lines of its own.
            shown = command.origin.source != self.source or _deeper(command)
            self.commands.append(command if shown else command._replace(origin=self.origin(line)))
        self.notes += reading.notes
        return ""

    def is_new_call(self, words: Sequence[Word]) -> bool:
        """Whether a function is to be read for these arguments; they are its parameters then."""
        name = words[0].text
        start, end = self.bodies[name]
        seen = self.calls.setdefault(name, set())
        texts = tuple([word.text for word in words[1:]])
        cost = NESTED_COSTS * (end - start)
        afford = len(seen) < MOST_CALLS and self.shell.budget.left > 2 * cost
        if name not in self.unread and (texts in seen or not afford):
            return False
        self.shell.budget.spend(cost if seen else 0)
        seen.add(texts)
        self.parameters = tuple(words[1:])
        return True

    def environment(
        self, settings: list[Token], environment: Mapping[str, Word]
    ) -> Mapping[str, Word]:
        """What a process gets that has ``settings`` in front of it."""
        single = [token for token in settings if token.elements is None]
        if not single:
            return environment
        scope = Variables(environment, self.shell.variables)
        for token in single:
            if token.form is not None and (assignment := token.form.assignment) is not None:
                origin = self.origin(token.line)
                if len(settings) == 1:
                    return Layers(
                        environment, {assignment.name: assigned(self.shell, assignment, origin)}
                    )
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
        """What shift leaves; nothing is known of it where it may not run, or run more than once."""
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
        plain = plain_command(text)
        if plain and plain[0] not in self.functions and is_ordinary(plain[0]):
            self.plain(Token(line, "\n", words=plain))
            return
        shell = self.shell
        shell.budget.spend(_nested_cost(text, self.depth))
        open_subshells = len(shell.subshells)
        inner = type(self)(self.source, shell, self.depth + 1)
        inner.read(text, line if self.lined else None)
        del shell.subshells[open_subshells:]
        self.commands += inner.commands
        self.notes += inner.notes

    def heredoc(self, body: Part, words: list[Word], writes: list[str], line: int) -> None:
        program = words[0].text.rpartition("/")[2] if words else ""
        if program == "tee":
            writes = [word.text for word in words[1:] if not word.text.startswith("-")]
        if program in SHELLS:
            text = "the script that this shell reads from the heredoc is not read"
            self.note("script-not-read", text, line)
        if program in ("cat", "tee") and writes:
            form = self.heredocs.get(body)
            if form is None:
                form = self.heredocs[body] = text_form(heredoc_parts(body))
            text = self.shell.value(form, self.origin(line)).text
            for target in writes:
                self.files[target] = text


def command_reading(
    words: Sequence[Word],
    environment: Mapping[str, Word],
    reader_of: type[Commands],
    *,
    inside: bool = False,
    depth: int = 0,
    budget: Budget | None = None,
) -> Reading:
    """One command's words: wrappers taken off, and the text of ``bash -c`` read. Never raises.

    reader_of: what reads the text. inside: the words are those of a container. depth, budget: of
    the script that holds them.
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
        plain = plain_command(stripped.script.text)
        if plain and is_ordinary(plain[0]) and plain[0] not in BUILTINS:
            inside_shell = tuple([Word(word, origin) for word in plain])
            command = Command(
                inside_shell, stripped.environment, stripped.wrappers, origin, stripped.container
            )
            return Reading((command,), stripped.notes)
        shell = Shell(Variables(stripped.environment), budget or Budget())
        shell.parameters = stripped.arguments
        shell.budget.spend(_nested_cost(stripped.script.text, depth))
        reader = reader_of(origin.source, shell, depth + 1)
        reader.read(stripped.script.text, origin.line)
        inner = reader.reading()
        commands = tuple(
            [
                Command(
                    command.words,
                    command.environment,
                    (*stripped.wrappers, *command.wrappers),
                    command.origin,
                    command.container or stripped.container,
                )
                for command in inner.commands
            ]
        )
        return Reading(commands, (*notes, *inner.notes))
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
    """What the text of a shell within a shell costs: such texts can be made to multiply."""
    return NESTED_COSTS * len(text) if depth else 0


def _deeper(command: Command) -> bool:
    """True where a shell stands in front: its commands have lines of their own."""
    return any(
        wrapper[0].rpartition("/")[2] in SHELLS and len(wrapper) > 1 for wrapper in command.wrappers
    )
