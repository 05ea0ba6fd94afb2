"""Goes through the commands of a script as a shell would: lists, pipelines, conditions, loops.

What nothing decides is gone through every way, and what follows from it is doubted. Nothing is
executed; what a simple command means is told by who uses this.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from functools import partial
from typing import NamedTuple

from checks.base.needs import SetLimit
from preflight.launches.shell_blocks import Block, Range, blocks, definitions
from preflight.launches.shell_conditions import (
    FALSE,
    OPEN,
    TRUE,
    Conditions,
    Truth,
    either,
)
from preflight.launches.shell_expansion import Shell
from preflight.launches.shell_tokens import (
    CLOSES,
    LEADS,
    REDIRECTIONS,
    Token,
    behind_newlines,
    tokenize,
)
from preflight.launches.shell_words import Piece, heredoc_pieces, written
from preflight.launches.source import Command, Origin, SourceNote, Word, brief

# A token that is read again costs as much as so many characters.
NESTED_COSTS = 16
# Turns of all loops of a script that are followed.
MOST_TURNS = 2000
# What a loop waits with: its turns that start nothing else count a tenth, as they take no more.
_WAITS = frozenset(
    "curl date echo false grep nc nvidia-smi pgrep printf ps sleep true wget".split()
)
WRITES = (">", ">|", ">>")
# Programs that start nothing, whatever they name: they install, fetch, move or end it.
_PREPARES = frozenset(
    "apt apt-get cat chmod chown conda cp curl du find git grep hf huggingface-cli kill killall ln "
    "ls mkdir mv pgrep pip pip3 pkill rm rsync scp sed tail tee touch wget".split()
)
_INSTALLS = frozenset(("pip", "pip3"))  # behind ``uv`` and ``python3 -m``
# What marks a program that a launch is about.
STARTED = re.compile(r"sglang|mooncake|vllm|dynamo|lmcache|trtllm")
_LIST_ENDS = (";", "\n", "&", ")", ";;", ";&", ";;&")
_PIPES = ("|", "|&")
_JOINTS = ("&&", "||", "|", "|&")
# Keywords that stand where no block begins: what is left of one that never closes.
_STRAY = (LEADS | CLOSES) - {"!"}
_NAME_OR_NUMBER = re.compile(r"[A-Za-z_]\w*|\$\d+")
# How the address of a script reads that installs a tool or a package source.
_INSTALLER = re.compile(
    r"install|setup|bootstrap|get[-_.]|rustup|//(?:astral|sh|get|bun|pixi|deno)\.|/uv/|gpg|\.key\b"
)


class ShellText(NamedTuple):
    """A text that a shell reads: the script, or what ``eval`` and ``source`` are given.

    lined: False where it has no lines of its own, as on a command line.
    """

    source: str
    lined: bool
    tokens: list[Token]
    blocks: dict[int, Block]
    functions: dict[int, int]

    def origin(self, line: int) -> Origin:
        return Origin(self.source, line if self.lined else None)


class ShellFunction(NamedTuple):
    """The body of a function. apart: it runs in a subshell, ``f() ( ... )``."""

    text: ShellText
    start: int
    end: int
    apart: bool = False


# A part of a script as it is gone through: it yields what it needs done first, and is handed how
# that ended. Nesting costs no stack of Python's own.
Steps = Generator["Steps", Truth, Truth]
# What a branch changes; None where it leaves the script, function or loop.
_Outcome = "dict[tuple[str, str], object] | None"


def drive(steps: Steps) -> Truth:
    stack = [steps]
    ended = TRUE
    begun = False
    while stack:
        try:
            inner = stack[-1].send(ended) if begun else next(stack[-1])
        except StopIteration as end:  # noqa: PERF203  how a generator ends
            stack.pop()
            ended, begun = end.value or TRUE, True
        else:
            stack.append(inner)
            begun = False
    return ended


class Feed:
    """A text that several commands read from, each a part of it.

    depth: the conditions around, when it began: what is read under more of them may not be.
    """

    def __init__(self, given: Word, depth: int) -> None:
        self.rest = given
        self.depth = depth

    def line(self, depth: int) -> Word:
        """Return the next line, with its end."""
        found = self.left(depth)
        line, end, rest = found.text.partition("\n")
        self.rest = found._replace(text=rest)
        return found if found.unresolved else found._replace(text=line + end)

    def left(self, depth: int) -> Word:
        """Return all that is left; a text that is not known where a part may have been read."""
        if depth > self.depth and not self.rest.unresolved:
            self.rest = self.rest._replace(text="", unresolved=("what is left to read",))
        return self.rest


class ShellFlow(ABC):
    """Goes through a text command by command, and collects what they start."""

    def __init__(self, source: str, shell: Shell) -> None:
        self.source = source
        self.shell = shell
        self.commands: list[Command] = []
        self.notes: list[SourceNote] = []
        self.files: dict[str, Word] = {}
        self.functions: dict[str, ShellFunction] = {}
        self.active: list[str] = []  # the functions that are being read, outermost first
        self.doubts: tuple[SourceNote, ...] = ()  # of what is being read
        self.stop = ""  # exit, return, break or continue, on its way to where it ends
        self.may_return = False  # whether a way that nothing decides leaves the function before
        self.failing = False  # exit has a status that tells of an error
        self.tested = 0  # how many conditions around: set -e ends nothing in there
        # This is done where the host refuses one of these limits, or where it takes them all.
        self.otherwise: tuple[SetLimit, ...] = ()
        self.follows: tuple[SetLimit, ...] = ()
        self.levels = 0  # the loops that break and continue leave
        self.ended = TRUE  # what return says
        self.turns = 0  # of all loops
        self.waited = 0  # of those turns, by loops that only wait
        self.aside = 0  # how many of the lists around end with &
        self.kills = 0  # how often the script has ended all that it had started
        self.conditions = Conditions(shell, self.lies)
        self.said: list[str] | None = None  # what is written to standard output; None: not known
        self.piped: Word | None = None  # what the command in front of a | writes
        self.feed: Feed | None = None  # what the compound command around reads

    def note(self, identifier: str, text: str, origin: Origin) -> None:
        self.notes.append(SourceNote(identifier, text, origin))

    @abstractmethod
    def lies(self, name: str) -> bool:
        """Tell whether a file lies beside the launch, or is written by it."""

    def parsed(self, text: str, source: str, first_line: int | None) -> ShellText:
        """Return a text as tokens, blocks and functions.

        first_line: None where it has none, as on a command line.
        """
        lined = first_line is not None
        tokens, notes = tokenize(text, source, first_line or 1)
        if not lined:
            notes = [note._replace(origin=Origin(source)) for note in notes]
        self.notes += notes
        found = blocks(tokens)
        return ShellText(source, lined, tokens, found, definitions(tokens, found))

    def doubting(self, note: SourceNote, steps: Steps) -> Steps:
        before, self.doubts = self.doubts, (*self.doubts, note)
        ended = yield steps
        self.doubts = before
        return ended

    @abstractmethod
    def simple(self, text: ShellText, position: int, end: int) -> Steps:
        """Read a simple command from here to its end."""

    # Lists, pipelines, commands

    def run(self, text: ShellText, position: int, end: int) -> Steps:
        """Go through the commands between two places."""
        ended = TRUE
        while position < end and not self.stop:
            operator = text.tokens[position].operator
            if operator and operator not in REDIRECTIONS and operator not in ("(", "(("):
                position += 1
                continue
            last = _until(text, position, end, _LIST_ENDS)
            ended = yield self.and_or(text, position, last)
            position = max(last, position + 1)
        return ended

    def and_or(self, text: ShellText, position: int, last: int) -> Steps:
        """Go through ``a && b || c``."""
        tokens = text.tokens
        background = last < len(tokens) and tokens[last].operator == "&"
        mark = self.shell.mark()
        ended, joint, first = TRUE, "", position
        self.aside += background
        while position < last:
            stop = _until(text, position, last, ("&&", "||"))
            wanted = ended if joint != "||" else ended.negated()
            steps = self.pipeline(text, position, stop)
            self.tested += stop < last
            if not joint:
                ended = yield steps
            elif joint == "||" and ended.limits:
                asked = partial(self.undecided_note, text, first, position - 1, ended)
                ended = yield self.refused(ended.limits, steps, asked)
            elif wanted.value and not wanted.soft:
                outer, self.follows = self.follows, (*self.follows, *ended.limits)
                ended = yield steps
                self.follows = outer
                if self.gives_up():
                    note = self.undecided_note(text, first, position - 1, ended)
                    self.doubts = (*self.doubts, note)
                    self.stop, ended = "", OPEN
            elif wanted.value:
                ended = yield self.guarded(steps)
            elif wanted.value is None and joint == "&&" and wanted.ran:
                # A program is taken to succeed where more follows from it, and to fail where that
                # leaves: pgrep sglang && exit 1.
                before, count = self.shell.mark(), len(self.commands)
                ended = yield steps
                if self.stop and not self.only_waits(tokens, stop):
                    asked = partial(self.undecided_note, text, first, position - 1, wanted)
                    self.stays(before, count, asked)
                    ended = OPEN
            elif wanted.value is None:
                note = self.undecided_note(text, first, position - 1, ended)
                ended = yield self.maybe(note, steps)
            self.tested -= stop < last
            if self.stop:
                break
            joint = tokens[stop].operator if stop < last else ""
            position = behind_newlines(tokens, stop + 1, last)
        self.aside -= background
        if background:
            self.stop = ""
            self.shell.back_to(mark)
            return TRUE
        if self.shell.options["errexit"] and not self.tested and ended.value:
            self.shell.must(ended.limits)
        return ended

    def refused(
        self, limits: tuple[SetLimit, ...], steps: Steps, asked: Callable[[], SourceNote]
    ) -> Steps:
        """Go through what follows ``ulimit ... ||``: its limits hold where that one is refused.

        What else it sets, and what it starts, nothing decides. asked: says so.
        """
        mark, starts, notes = self.shell.mark(), len(self.commands), len(self.notes)
        outer, self.otherwise = self.otherwise, limits
        ended = yield steps
        self.otherwise = outer
        changed = self.shell.changed(mark)
        self.shell.back_to(mark)
        started = self.commands[starts:]
        del self.commands[starts:]
        if not ended.limits:
            del self.notes[notes:]
        if self.stop == "exit":
            self.shell.must(limits)
        before = {key: self.shell.current(*key) for key in changed if key[0] != "limit"}
        others = {key: changed[key] for key in before if not _same(changed[key], before[key])}
        if others and not self.stop:
            # What was there before stays; what was not is what it is set to here.
            new = {key: value for key, value in others.items() if before[key] is None}
            old = {key: before[key] for key in others.keys() - new.keys()}
            self.merge([{**others, **dict.fromkeys(new)}, {**old, **new}], asked())
        self.commands += _doubted(started, asked)
        for (kind, name), value in changed.items():
            if kind == "limit":
                self.shell.change(kind, name, value, ())
        self.stop = ""
        return ended if ended.limits else TRUE

    def matters(self, text: ShellText, bodies: Sequence[Range]) -> Generator[Steps, Truth, bool]:
        """Return whether bodies start something, or set more than limits; take all of it back."""
        mark, starts, notes = self.shell.mark(), len(self.commands), len(self.notes)
        found = False
        for body in bodies:
            yield self.run(text, *body)
            changed = self.shell.changed(mark)
            self.shell.back_to(mark)
            found = found or any(map(_is_of_launch, self.commands[starts:]))
            found = found or any(
                kind != "limit" and not _same(value, self.shell.current(kind, name))
                for (kind, name), value in changed.items()
            )
            self.stop = ""
            del self.commands[starts:], self.notes[notes:]
        return found

    def only_waits(self, tokens: Sequence[Token], position: int) -> bool:
        """Return whether a loop that is left here does nothing of the launch behind this place."""
        if self.stop != "break":
            return False
        for token in tokens[position:]:
            if token.bare == "done":
                return True
            if STARTED.search(token.bare):
                return False
        return True

    def stays(self, mark: int, count: int, asked: Callable[[], SourceNote]) -> None:
        """Go on as if the script were not left; what was started before that is doubted."""
        self.stop = ""
        self.shell.back_to(mark)
        started = self.commands[count:]
        del self.commands[count:]
        self.commands += _doubted(started, asked) or started

    def gives_up(self) -> bool:
        """Tell whether a script ends with an error before it started what it is about.

        It expects something of its caller that is not here: it is read as if it went on.
        """
        return self.stop == "exit" and self.failing and not self.started()

    def started(self) -> bool:
        """Tell whether anything was started yet that a launch is about."""
        return any(map(_is_of_launch, self.commands))

    def guarded(self, steps: Steps) -> Steps:
        """Run the branch that an unset variable leads to, unless that branch ends the script."""
        mark = self.shell.mark()
        ended = yield steps
        if self.stop in ("exit", "return"):
            self.stop = ""
            self.shell.back_to(mark)
            return OPEN
        return ended

    def maybe(self, note: SourceNote, steps: Steps) -> Steps:
        """Run a branch that may not run in the shell, and mark what it changes as doubted."""
        outcome = yield from self.branch(note, steps)
        self.merge([outcome, {}], note)
        return OPEN

    def branch(
        self, note: SourceNote, steps: Steps
    ) -> Generator[Steps, Truth, dict[tuple[str, str], object] | None]:
        """Run one way that a script may go; return what it changes, and take that back.

        Behind a loop that it leaves, the script goes on with that: ``ready=1; break``.
        """
        mark, kills = self.shell.mark(), self.kills
        yield self.doubting(note, steps)
        changed = None if self.stop in ("exit", "return") else self.shell.changed(mark)
        if self.stop:  # what it killed is gone only where nothing follows
            self.kills = kills
        self.may_return = self.may_return or self.stop == "return"
        self.shell.back_to(mark)
        self.stop = ""
        return changed

    def merge(
        self, outcomes: Sequence[dict[tuple[str, str], object] | None], note: SourceNote
    ) -> None:
        """Take what several ways change: what they differ in is doubted, the last one holds."""
        live = [outcome for outcome in outcomes if outcome is not None]
        if not live:
            self.stop, self.ended = "return" if self.active else "exit", OPEN
            if not self.active and not self.started():
                self.notes.append(note)  # else nothing says that it may start something
        for kind, name in dict.fromkeys(key for outcome in live for key in outcome):
            before = self.shell.current(kind, name)
            values = [outcome.get((kind, name), before) for outcome in live]
            same = all(_same(values[0], value) for value in values)
            last = next(o[kind, name] for o in reversed(live) if (kind, name) in o)
            # Alike by different ways: it still hangs on what each way hangs on.
            doubts = _doubts(values) if same else (*self.doubts, note)
            self.shell.change(kind, name, last, doubts)

    def pipeline(self, text: ShellText, position: int, stop: int) -> Steps:
        tokens = text.tokens
        negated = False
        while position < stop and tokens[position].bare == "!":
            negated, position = not negated, position + 1
        ended = TRUE
        several = _until(text, position, stop, _PIPES) < stop
        # What an installer's script does, that is piped from the network into a shell, is its own.
        downloads = position < stop and tokens[position].bare in ("curl", "wget")
        if downloads:
            fetched = [written(token.word.pieces) for token in tokens[position:stop] if token.word]
            downloads = _INSTALLER.search(" ".join(fetched)) is not None
        while position < stop:
            here = _until(text, position, stop, _PIPES)
            mark = self.shell.mark()
            if several:
                self.said = []
            apart = tokens[position].bare == "coproc"  # nobody waits for it
            self.aside += apart
            ended = yield self.command(text, position, here)
            self.aside -= apart
            if several:
                self.shell.back_to(mark)
                self.stop = ""
                origin = text.origin(tokens[position].line)
                if self.said is not None:
                    self.piped = Word("".join(self.said), origin)
                else:
                    unknown = Word("", origin, ("what the command in front of the | writes",))
                    self.piped = None if downloads else unknown
                self.said = None
            position = behind_newlines(tokens, here + 1, stop)
        self.piped = None
        return ended.negated() if negated else ended

    def command(self, text: ShellText, position: int, stop: int) -> Steps:
        tokens = text.tokens
        while position < stop and position not in text.blocks and tokens[position].bare in _STRAY:
            position += 1
        if position >= stop:
            return TRUE
        token = tokens[position]
        origin = text.origin(token.line)
        block = text.blocks.get(position)
        if block is not None:
            self.redirected(text, block.end, stop)
            outer, piped = self.feed, self.piped
            self.feed = self.fed(text, block.end, stop)
            self.piped = None
            ended = yield self.compound(text, block, token.line)
            self.feed, self.piped = outer, piped
            return ended
        if token.operator == "((":
            number = self.shell.number(token.formula, origin, assigns=True)
            return OPEN if number is None else Truth(bool(number))
        if token.bare == "[[":
            close = next((i for i in range(position, stop) if tokens[i].bare == "]]"), stop)
            return self.conditions.double(tokens[position + 1 : close], origin)
        if position in text.functions:
            word = tokens[position + (token.bare == "function")].word
            name = written(word.pieces) if word is not None else ""
            body = text.blocks[text.functions[position]]
            self.functions[name] = ShellFunction(text, *body.parts[0], body.kind == "(")
            return TRUE
        ended = yield self.simple(text, position, stop)
        return ended

    def redirected(self, text: ShellText, position: int, stop: int) -> None:
        """Take the files that a compound command writes: what is in them is not known."""
        for index in range(position, stop - 1):
            target = text.tokens[index + 1].word
            if text.tokens[index].operator in WRITES and target is not None:
                origin = text.origin(text.tokens[index].line)
                for word in self.shell.expand(target, origin)[:1]:
                    self.files[word.text] = Word("", origin, ("what several commands write",))

    def fed(self, text: ShellText, position: int, stop: int) -> Feed | None:
        """Return what a compound command reads; None for what its shell reads itself."""
        given = None if self.piped is None else self.piped
        for index in range(position, stop - 1):
            target, operator = text.tokens[index + 1].word, text.tokens[index].operator
            if target is None or operator not in ("<", "<<", "<<-", "<<<"):
                continue
            origin = text.origin(text.tokens[index].line)
            body = text.tokens[index + 1].heredoc
            if body is not None:
                given = self.shell.value(heredoc_pieces(body), origin)
            elif operator == "<<<":
                given = self.shell.value(target.pieces, origin)
                given = given._replace(text=given.text + "\n")
            else:
                place = self.shell.expand(target, origin)[:1]
                given = self.content(place[0]) if place else None
        if given is None:
            return self.feed
        return Feed(given, len(self.doubts))

    @abstractmethod
    def content(self, place: Word) -> Word:
        """Return what a file holds; a text that is not known is empty and unresolved."""

    # Compound commands

    def compound(self, text: ShellText, block: Block, line: int) -> Steps:
        if block.kind == "if":
            return self.if_(text, block.parts)
        if block.kind in ("while", "until"):
            return self.while_(text, block, line)
        if block.kind in ("for", "select"):
            return self.for_(text, block, line)
        if block.kind == "case":
            return self.case(text, block.parts, line)
        steps = self.run(text, *block.parts[0])
        return self.subshell(steps) if block.kind == "(" else steps

    def subshell(self, steps: Steps) -> Steps:
        mark = self.shell.mark()
        ended = yield steps
        self.shell.back_to(mark)
        if self.stop:
            self.stop = ""
            return OPEN
        return ended

    def test(self, text: ShellText, position: int, end: int) -> Steps:
        """Go through a condition."""
        self.tested += 1
        ended = yield self.run(text, position, end)
        self.tested -= 1
        return ended

    def if_(self, text: ShellText, parts: Sequence[Range]) -> Steps:
        skipped: list[Range] = []  # that a variable would lead to that nothing sets
        index = 0
        while index < len(parts):
            truth, body = TRUE, parts[index]
            if index + 1 < len(parts):
                truth = _undoubted((yield self.test(text, *parts[index])))
                body = parts[index + 1]
            if self.stop:
                return truth
            asked = partial(self.undecided_note, text, *parts[index], truth)
            rest = [*parts[index + 3 :: 2], *(parts[-1:] if len(parts) % 2 else ())]
            if truth.limits and index + 2 < len(parts):
                # The else counts where the limit is not refused, or is.
                if not truth.value or (yield from self.matters(text, rest)):
                    truth = OPEN
            elif truth.limits and not truth.value:
                yield self.refused(truth.limits, self.run(text, *body), asked)
            if truth.value is None:
                more = index + 2 < len(parts)
                note = self.undecided_note(text, *parts[index], truth, more)
                ended = yield self.ways(text, parts, index, note, skipped)
                return ended
            if truth.value:
                mark, count = self.shell.mark(), len(self.commands)
                outer, self.follows = self.follows, (*self.follows, *truth.limits)
                ended = yield self.run(text, *body)
                self.follows = outer
                if truth.limits and len(parts) == index + 3 and not self.stop:
                    yield self.refused(truth.limits, self.run(text, *parts[index + 2]), asked)
                soft = truth.soft or bool(skipped)
                if self.stop not in ("exit", "return") if soft else not self.gives_up():
                    return ended
                if not soft:
                    note = self.undecided_note(text, *parts[index], truth)
                    self.doubts = (*self.doubts, note)
                # Who asks so expects the variable to be set.
                self.stop = ""
                self.shell.back_to(mark)
                del self.commands[count:]
                others = [*skipped]
                if index + 2 < len(parts) and index + 1 < len(parts):
                    note = self.undecided_note(text, *parts[index], truth)
                    ended = yield self.ways(text, parts, index + 2, note, others, True)
                elif others:
                    note = self.undecided_note(text, *parts[0], truth)
                    outcomes = []
                    for each in others:
                        outcome = yield from self.branch(note, self.run(text, *each))
                        outcomes.append(outcome)
                    self.merge(outcomes, note)
                return OPEN
            if truth.soft:
                skipped.append(body)
            index += 2
        return TRUE

    def ways(
        self,
        text: ShellText,
        parts: Sequence[Range],
        index: int,
        note: SourceNote,
        skipped: Sequence[Range] = (),
        asks: bool = False,
    ) -> Steps:
        """Go through every branch from ``index`` on, of which nothing decides which one runs.

        asks: the condition at ``index`` is still to be looked at.
        """
        outcomes = []
        while True:
            truth = OPEN
            body = parts[index] if index + 1 == len(parts) else parts[index + 1]
            if asks and index + 1 < len(parts):
                truth = _undoubted((yield self.doubting(note, self.run(text, *parts[index]))))
                self.stop = ""
            if truth.value is not False:
                outcome = yield from self.branch(note, self.run(text, *body))
                outcomes.append(outcome)
            asks, last, index = True, index + 1 == len(parts), index + 2
            if last or (truth.value and not truth.soft):
                break
            if index >= len(parts):
                outcomes.append({})
                break
        self.merge(outcomes, note)
        return OPEN

    def case(self, text: ShellText, parts: Sequence[Range], line: int) -> Steps:
        tokens, origin = text.tokens, text.origin(line)
        head = next((t.word for t in tokens[slice(*parts[0])] if t.word is not None), None)
        if head is None:
            return TRUE
        word = self.shell.value(head.pieces, origin)
        outcomes: list[dict[tuple[str, str], object] | None] = []
        note: SourceNote | None = None
        anyway = skipped = False  # ;& goes on to the next body
        for index in range(1, len(parts) - 1, 2):
            truth = TRUE if anyway else self.arm(text, parts[index], word, origin)
            body = parts[index + 1]
            anyway = False
            if truth.value is False:
                continue
            steps = self.run(text, *body)
            ends = tokens[body[1]].operator if body[1] < len(tokens) else ""
            if note is None and truth.value and not truth.soft:
                mark, count = self.shell.mark(), len(self.commands)
                ended = yield steps
                if self.gives_up():
                    # Who asks so expects another word: every other arm may be the one.
                    self.stop = ""
                    self.shell.back_to(mark)
                    del self.commands[count:]
                    shown = f"case {written(head.pieces)}"
                    note = self.open_note(shown, head.pieces, origin, several=True)
                    self.doubts = (*self.doubts, note)
                    for other in range(2, len(parts), 2):
                        if other != index + 1:
                            outcome = yield from self.branch(note, self.run(text, *parts[other]))
                            outcomes.append(outcome)
                    self.merge(outcomes, note)
                    return OPEN
                if ends == ";;" or not ends or self.stop:
                    return ended
                anyway = ends == ";&"
                continue
            if note is None:
                shown = f"case {written(head.pieces)}"
                note = self.open_note(shown, head.pieces, origin, several=True)
            outcome = yield from self.branch(note, steps)
            outcomes.append(outcome)
            # Who asks so, and ends where it is empty, expects the variable to be set.
            skipped = truth.value is True and not (truth.soft and outcome is None)
            if skipped:
                break
        if note is not None:
            self.merge(outcomes if skipped else [*outcomes, {}], note)
            return OPEN
        return TRUE

    def arm(self, text: ShellText, where: Range, word: Word, origin: Origin) -> Truth:
        """Tell whether one of the patterns of an arm takes a word."""
        found = FALSE
        for token in text.tokens[slice(*where)]:
            if token.word is not None:
                truth = _undoubted(self.conditions.matches(word, token.word.pieces, origin))
                found = either(found, truth)
        return found

    def while_(self, text: ShellText, block: Block, line: int) -> Steps:
        if len(block.parts) < 2:
            return TRUE
        condition, body = block.parts
        constant = not any(
            piece.kind != "text"
            for token in text.tokens[slice(*condition)]
            for piece in (token.word.pieces if token.word else ())
        )
        moves = any(
            token.formula or token.bare in ("getopts", "read")
            for token in text.tokens[slice(*condition)]
        )
        while True:
            truth = _undoubted((yield self.test(text, *condition)))
            if block.kind == "until":
                truth = truth.negated()
            if self.stop or truth.value is False:
                return TRUE
            if truth.value is None:
                note = self.undecided_note(text, *condition, truth)
                note = note._replace(id="loop-not-counted")
                ended = yield self.maybe(note, self.turn(text, body))
                return ended
            if not self.next_turn(text, body, line):
                return OPEN
            yield self.turn(text, body)
            if self.leaves() or (constant and not moves):
                return TRUE  # while true: what it starts ends before it is started again

    def turn(self, text: ShellText, body: Range) -> Steps:
        """Go through a loop's body once."""
        before = len(self.commands)
        ended = yield self.run(text, *body)
        started = [command.words[0].text for command in self.commands[before:] if command.words]
        self.waited += all(name.rpartition("/")[2] in _WAITS for name in started)
        if self.stop == "continue" and self.levels <= 1:
            self.stop = ""
        return ended

    def leaves(self) -> bool:
        """Tell whether a loop is left, after one of its turns."""
        if self.stop in ("break", "continue"):
            self.levels -= 1
            if self.levels <= 0:
                self.stop = ""
            return True
        return bool(self.stop)

    def next_turn(self, text: ShellText, body: Range, line: int) -> bool:
        """Tell whether a loop is followed once more: they can be made to go on for ever."""
        self.turns += 1
        many_turns = self.turns - self.waited + self.waited // 10 > MOST_TURNS
        cost = NESTED_COSTS * (body[1] - body[0] + 1)
        if not many_turns and self.shell.budget.spend(cost):
            return True
        if many_turns or self.shell.budget.left < 0:
            many = f"the loops up to here make more than {MOST_TURNS} turns"
            why = many if many_turns else "the script is longer than is followed"
            said = f"{why}: the other turns of this loop are not read"
            self.note("loop-not-counted", said, text.origin(line))
        return False

    def for_(self, text: ShellText, block: Block, line: int) -> Steps:
        head, body = (*block.parts, block.parts[0])[:2]
        tokens = text.tokens[slice(*head)]
        if len(block.parts) < 2 or not tokens:
            return TRUE
        if tokens[0].operator == "((":
            ended = yield self.counted(text, tokens[0].formula, body, line)
            return ended
        name, origin = tokens[0].bare, text.origin(line)
        words: list[Word] = []
        known = block.kind == "for"
        listed = any(token.bare == "in" for token in tokens[1:2])
        for token in tokens[2:] if listed else ():
            if token.word is None:
                continue
            words += self.shell.expand(token.word, origin)
        if not listed:
            words = list(self.shell.parameters or ())
            known = known and self.shell.parameters is not None
        uncounted = any(
            word.several or any(doubt.id == "loop-not-counted" for doubt in word.doubts)
            for word in words
        )
        if not known or uncounted:
            shown = " ".join(written(t.word.pieces) for t in tokens if t.word is not None)
            said = (
                f"{block.kind} {brief(shown)}: how many times it runs is not known; read once, "
                f"with {name} unknown"
            )
            note = SourceNote("loop-not-counted", said, origin)
            self.shell.assign(name, Word(f"${name}", origin, (f"${name}",)))
            ended = yield self.maybe(note, self.turn(text, body))
            self.shell.assign(name, Word(f"${name}", origin, (f"${name}",)))
            return ended
        for word in words:
            if not self.next_turn(text, body, line):
                break
            self.shell.assign(name, word)
            yield self.turn(text, body)
            if self.leaves():
                break
        return TRUE

    def counted(self, text: ShellText, formula: str, body: Range, line: int) -> Steps:
        """Run ``for ((i = 0; i < 8; i++))``."""
        origin = text.origin(line)
        first, condition, step = (*formula.split(";"), "", "")[:3]
        known = self.shell.number(first or "0", origin, assigns=True) is not None
        while known:
            holds = self.shell.number(condition or "1", origin, assigns=True)
            known = holds is not None
            if not holds or not self.next_turn(text, body, line):
                break
            yield self.turn(text, body)
            if self.leaves():
                break
            known = self.shell.number(step or "0", origin, assigns=True) is not None
        if not known:
            said = f"for (({brief(formula)})): how many times it runs is not known; read once"
            self.shell.lose_set(f"{first}, {condition}, {step}", origin)
            note = SourceNote("loop-not-counted", said, origin)
            yield self.maybe(note, self.turn(text, body))
        return TRUE

    def undecided_note(
        self, text: ShellText, start: int, end: int, truth: Truth, several: bool = False
    ) -> SourceNote:
        """Say which condition nothing decides, and for want of what.

        several: it has an else, or another condition behind it.
        """
        tokens = text.tokens[start:end]
        origin = text.origin(tokens[0].line if tokens else 0)
        pieces = [piece for token in tokens if token.word for piece in token.word.pieces]
        words = [
            written(token.word.pieces) if token.word is not None else token.operator
            for token in tokens
            if token.word is not None or token.operator not in ("\n", "((", ";")
        ]
        shown = " ".join(words) or " ".join(token.formula for token in tokens)
        return self.open_note(shown, pieces, origin, truth.ran, several)

    def open_note(
        self,
        shown: str,
        pieces: Sequence[Piece],
        origin: Origin,
        ran: bool = False,
        several: bool = False,
    ) -> SourceNote:
        names: list[str] = []
        for piece in pieces:
            if piece.kind == "variable" or piece.name[1:].isdecimal():
                held = self.shell.variables.get(piece.name)
                # What it is made of may be what is not set: ``mode=$MODE``.
                roots = [piece.name] if held is None else held.unresolved
                names += [root for root in roots if _NAME_OR_NUMBER.fullmatch(root)]
        why = (
            f"{', '.join(dict.fromkeys(names))} is not set"
            if names
            else "it is known only when the script runs"
        )
        if ran and not names:
            why = "that program is not run here"
        read = "read each way, the last one holds" if several else "read as if it were true"
        said = f"nothing decides {brief(shown)}: {why}; {read}"
        note = SourceNote("condition", said, origin)
        self.notes.append(note)
        return note


def _until(text: ShellText, position: int, end: int, operators: Collection[str]) -> int:
    """Return the place of the next of some operators, outside of compound commands."""
    tokens = text.tokens
    tested = False
    while position < end:
        block = text.blocks.get(text.functions.get(position, position))
        if block is not None:
            position = max(block.end, position + 1)
            continue
        token = tokens[position]
        if tested or token.bare == "[[":
            tested = token.bare != "]]" and token.operator != ";"
        elif token.operator in operators:
            return position
        position += 1
        if token.operator in _JOINTS:
            position = behind_newlines(tokens, position, end)
    return end


def _is_of_launch(command: Command) -> bool:
    """Return whether a command starts something that a launch is about."""
    texts = [word.text for word in command.words]
    prepares = texts[:1] and texts[0].rpartition("/")[2] in _PREPARES
    installs = bool(_INSTALLS & {*texts[1:3]})
    return not prepares and not installs and STARTED.search(" ".join(texts)) is not None


def _doubted(started: Sequence[Command], asked: Callable[[], SourceNote]) -> list[Command]:
    """Return commands that may not run, each with the reason; none where no server is of them."""
    if not any(map(_is_of_launch, started)):
        return []
    note = asked()
    return [one._replace(doubts=(*one.doubts, note)) for one in started]


def _undoubted(truth: Truth) -> Truth:
    """Return a condition that is as open as the one it follows from, where nothing decides that."""
    return truth._replace(value=None) if truth.doubts else truth


def _same(one: object, other: object) -> bool:
    return _plain(one) == _plain(other)


def _doubts(value: object) -> tuple[SourceNote, ...]:
    """Return the doubts of all words of a variable, an array or several of them."""
    if isinstance(value, Word):
        return value.doubts
    if isinstance(value, SetLimit) or not isinstance(value, (tuple, list)):
        return ()
    return tuple(dict.fromkeys(doubt for item in value for doubt in _doubts(item)))


def _plain(value: object) -> object:
    """Return a variable, an array or parameters without the places where they stand."""
    if isinstance(value, Word):
        return value.text, value.unresolved
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value
