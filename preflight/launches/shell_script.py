"""What a shell script starts, read without running it.

Variables are followed as bash follows them; whatever only running it could tell (command
substitutions, variables nobody sets) stays in the words as written, and is named there. Branches,
loops and functions are read as if each of their commands ran once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from preflight.launches.shell_blocks import (
    behind_in,
    behind_list,
    behind_name,
    behind_newlines,
    behind_pattern,
    block_ends,
)
from preflight.launches.shell_commands import Commands, command_reading
from preflight.launches.shell_expansion import Budget, Shell
from preflight.launches.shell_grammar import CLOSES, CONDITIONS, LEADS, REDIRECTIONS, Token
from preflight.launches.shell_tokens import tokenize
from preflight.launches.shell_words import written
from preflight.launches.source import Origin, Reading, Word
from preflight.launches.variables import Variables, environment_words

_KEYWORDS = LEADS | CLOSES | CONDITIONS | {"case", "for", "function", "select", "[["}
_SEPARATORS = frozenset({"\n", ";", "&", "&&", "|", "||", "|&"})


def read_script(
    text: str, name: str, environment: Mapping[str, str | Word], arguments: Sequence[str] = ()
) -> Reading:
    """The processes that a script called ``name`` starts in ``environment``. Never raises.

    The commands say what bash does, where the notes say that its author hardly meant it.
    arguments: what the script is given; without any, nobody knows whether it gets some.
    """
    reader = _Script(name, Shell(Variables(environment_words(environment)), Budget()))
    if arguments:
        origin = Origin("command line")
        reader.shell.parameters = tuple(Word(text, origin) for text in arguments)
    with _collector_paused():
        reader.read(text, 1)
    return reader.reading()


def heredoc_files(text: str, environment: Mapping[str, str | Word] | None = None) -> dict[str, str]:
    """The files that a script writes with ``cat > FILE <<EOF`` or tee: names to texts."""
    reader = _Script("script", Shell(Variables(environment_words(environment or {})), Budget()))
    with _collector_paused():
        reader.read(text, 1)
    return reader.files


def read_words(
    words: Sequence[Word], environment: Mapping[str, Word], *, inside: bool = False
) -> Reading:
    """One command's words: wrappers taken off, and the text of ``bash -c`` read. Never raises.

    inside: the words are those of a container.
    """
    return command_reading(words, environment, _Script, inside=inside)


class _Script(Commands):
    def read(self, text: str, first_line: int | None) -> None:
        self.lined = first_line is not None
        self.last_line = -1
        tokens, notes = tokenize(text, self.source, first_line or 1, self.shell.budget.forms)
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
                    token = tokens[position]
                    if token.words:
                        position += 1
                        called = self.plain(token)
                    elif token.operator in _SEPARATORS:
                        position += 1
                    else:
                        position, called = self.step(tokens, position, end, ends)
                if called:
                    if called in self.unread:
                        del self.unread[called]
                    frames.append((position, end, shell.parameters))
                    frames.append((*self.bodies[called], self.parameters))
            if not self.unread:
                return
            # Nobody calls these here; whoever sources the script may.
            frames.append((*self.unread.pop(next(iter(self.unread))), None))

    def step(
        self, tokens: list[Token], position: int, end: int, ends: dict[int, int]
    ) -> tuple[int, str]:
        """Reads one command or keyword; returns where to go on, and a function to read first."""
        token = tokens[position]
        if operator := token.operator:
            if operator == "(":
                self.shell.enter()
            elif operator == ")":
                self.shell.leave()
            elif operator in (";;", ";&", ";;&"):
                return behind_pattern(tokens, position + 1, end), ""
            elif operator in REDIRECTIONS:
                return self.simple(tokens, position, end)
            return position + 1, ""
        bare = token.form.bare if token.form else ""
        if bare not in _KEYWORDS:
            following = tokens[position + 1].operator if position + 1 < end else ""
            if following[:1] != "(":
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
        """The head of a for loop: its variable is unknown inside, as it takes several values."""
        if position < end and (name := tokens[position].bare):
            word = Word(f"${name}", self.origin(tokens[position].line), (name,))
            self.shell.assign(name, word)
        return behind_list(tokens, position, end)

    def function(self, tokens: list[Token], named: int, start: int, ends: dict[int, int]) -> int:
        """A function whose body begins at ``start``, to be read when it is called."""
        form = tokens[named].form
        name = written(form.parts) if form else ""
        if start not in ends:
            return start
        text = f"function {name}: its commands are read once for each set of arguments of its calls"
        self.note("control-flow", text, tokens[named].line)
        self.functions.add(name)
        self.programs.discard(name)
        self.unread[name] = self.bodies[name] = (start + 1, ends[start])
        self.calls.pop(name, None)
        return ends[start] + 1


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Reading makes records by the hundred thousand, all of which stay and none in circles.

    The garbage collector would go through them over and over, in up to half of the time.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            # Moves what was read to the oldest generation, rather than go through it as the newest.
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
