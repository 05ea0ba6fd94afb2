"""Goes through the tree of a script as a shell would: lists, pipelines, conditions, loops.

What nothing decides is gone through every way, and what follows from it is doubted. Nothing is
executed; what a simple command means is told by who uses this.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from preflight.launches.shell_arithmetic import names_set
from preflight.launches.shell_conditions import (
    FALSE,
    OPEN,
    TRUE,
    Conditions,
    Truth,
    either,
)
from preflight.launches.shell_expansion import expand, number, value
from preflight.launches.shell_state import (
    Changes,
    ShellState,
    doubts_of,
    plain,
)
from preflight.launches.shell_text import ShellText, WrittenWord
from preflight.launches.source import Command, Origin, SourceNote, Word, brief

if TYPE_CHECKING:
    from preflight.launches.shell_text import Node

# Turns of all loops of a script that are followed.
MOST_TURNS = 2000
# Commands within each other: of a script that somebody wrote, a few.
_DEEPEST = 60
# What a loop waits with: its turns that start nothing else count a tenth, as they take no more.
_WAITS = frozenset(
    "curl date echo false grep nc nvidia-smi pgrep printf ps sleep true wget".split()
)
# Programs that start nothing, whatever they name: they install, fetch, move or end it.
_PREPARES = frozenset(
    "apt apt-get cat chmod chown conda cp curl du find git grep hf huggingface-cli kill killall ln "
    "ls mkdir mv pgrep pip pip3 pkill rm rsync scp sed tail tee touch wget".split()
)
_INSTALLS = frozenset(("pip", "pip3"))  # behind ``uv`` and ``python3 -m``
# What marks a program that a launch is about.
STARTED = re.compile(r"sglang|mooncake|vllm|dynamo|lmcache|trtllm")
_NAME_OR_NUMBER = re.compile(r"[A-Za-z_]\w*|\$\d+")
_NAMES = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*|\d+)")
# How the address of a script reads that installs a tool or a package source.
_INSTALLER = re.compile(
    r"install|setup|bootstrap|get[-_.]|rustup|//(?:astral|sh|get|bun|pixi|deno)\.|/uv/|gpg|\.key\b"
)
# Whatever it is, it sets these names: ``A=``, ``export A``, ``read A``.
_SETS = re.compile(r"\b([A-Za-z_]\w*)(?:\[[^\]\n]*\])?\+?=|\b(?:export|read)\s+([A-Za-z_]\w*)")
_REDIRECTIONS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
# The kinds of nodes that are redirections within one that announces a heredoc.
_HEREDOC_PARTS = ("heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor")


class ShellFunction(NamedTuple):
    """A function's body, in the text that defines it."""

    text: ShellText
    body: Node


class Redirection(NamedTuple):
    """Where a command reads or writes. target: the file, None for a heredoc or here-string.

    extra: words of the command that stand behind it.
    """

    operator: str
    node: Node
    target: WrittenWord | None = None
    extra: tuple[Node, ...] = ()


class Part(NamedTuple):
    """One command of a list or pipeline. operator: in front of it, "" for the first."""

    operator: str
    node: Node | None
    redirections: tuple[Redirection, ...] = ()


# A condition of an ``if``, None for else, and what it leads to.
Arm = tuple["Sequence[Node] | None", "Sequence[Node]"]


class ShellFlow(ABC):
    """Goes through a text command by command, and collects what they start."""

    def __init__(self, source: str, state: ShellState) -> None:
        self.source = source
        self.state = state
        self.commands: list[Command] = []
        self.notes: list[SourceNote] = []
        self.files: dict[str, Word] = {}
        self.functions: dict[str, ShellFunction] = {}
        self.active: list[str] = []  # the functions that are being read, outermost first
        self.doubts: tuple[SourceNote, ...] = ()  # of what is being read
        self.stop = ""  # exit, return, break or continue, on its way to where it ends
        self.may_return = False  # a way that nothing decides leaves the function before
        self.failing = False  # exit has a status that tells of an error
        self.tested = 0  # how many conditions around: set -e ends nothing in there
        self.levels = 0  # the loops that break and continue leave
        self.ended = TRUE  # what return says
        self.turns = 0  # of all loops
        self.waited = 0  # of those turns, by loops that only wait
        self.aside = 0  # how many of the lists around end with &
        self.kills = 0  # how often the script has ended all that it had started
        self.nested = 0
        self.conditions = Conditions(state, self.lies)
        self.said: list[str] | None = None  # what is written to standard output; None: not known
        self.piped: Word | None = None  # what the command in front of a | writes

    def note(self, identifier: str, text: str, origin: Origin) -> None:
        self.notes.append(SourceNote(identifier, text, origin))

    @abstractmethod
    def lies(self, name: str) -> bool:
        """Tell whether a file lies beside the launch, or is written by it."""

    @abstractmethod
    def simple(self, text: ShellText, node: Node, redirections: Sequence[Redirection]) -> Truth:
        """Read a simple command, a declaration or assignments."""

    def parsed(self, text: str, source: str, first_line: int | None) -> ShellText:
        """Return the tree of a text. first_line: None if it has none, as on a command line."""
        found = ShellText(text, source, first_line)
        self.notes += found.notes
        found.notes = self.notes  # what its words say of themselves comes later
        return found

    def not_read(self, text: ShellText, node: Node, why: str = "") -> Truth:
        """Name a part of the script that is not read: what it sets is unknown."""
        written, origin = text.text(node), text.origin(node)
        said = why or "this part of the script is not read: it does not parse"
        self.note("script-not-read", f"{brief(written)}: {said}", origin)
        if not why:  # what stands behind may be cut out of it
            self.doubts = (*self.doubts, self.notes[-1])
        names = {name for pair in _SETS.findall(written) for name in pair if name}
        for name in sorted(names):
            self.state.lose(name, origin)
        self.may_set(origin)
        return OPEN

    @abstractmethod
    def may_set(self, origin: Origin) -> None:
        """Make the variables unknown that a part which is not read may set."""

    # Lists, pipelines, commands

    def whole(self, text: ShellText) -> Truth:
        """Go through a whole text; of one that does not parse, up to where it breaks off."""
        nodes = text.root.children
        try:
            if text.root.type != "ERROR":
                return self.run(text, nodes)
        except RecursionError:
            self.doubts, self.nested = (), 0
            return self.not_read(text, text.root, "it is nested deeper than is followed")
        whole = [node.type in STATEMENTS or not _says(node) for node in nodes]
        end = whole.index(False) if False in whole else len(nodes)
        ended = self.run(text, nodes[:end])
        if self.stop or not nodes[end:]:
            return ended
        return self.not_read(text, nodes[end])

    def body(self, text: ShellText, node: Node) -> Truth:
        """Go through the commands within a node: a whole text, a block, a branch."""
        return self.run(text, node.children)

    def run(self, text: ShellText, nodes: Sequence[Node]) -> Truth:
        """Go through commands and what separates them."""
        ended = TRUE
        for index, node in enumerate(nodes):
            if self.stop:
                break
            if not _says(node):
                continue
            behind = nodes[index + 1] if index + 1 < len(nodes) else None
            before = nodes[index - 1] if index else None
            if (behind is not None and _breaks(node, behind)) or (
                before is not None and _breaks(before, node)
            ):
                ended = self.not_read(text, node)
            else:
                ended = self.and_or(text, node, behind is not None and behind.type == "&")
        return ended

    def and_or(self, text: ShellText, node: Node, background: bool) -> Truth:
        """Go through ``a && b || c``."""
        parts = list(_parts(text, node))
        mark = self.state.mark()
        ended, place = TRUE, 0
        self.aside += background
        while place < len(parts) and not self.stop:
            end = place + 1
            while end < len(parts) and parts[end].operator in ("|", "|&"):
                end += 1
            joint, last, steps = parts[place].operator, end == len(parts), parts[place:end]
            wanted = ended if joint != "||" else ended.negated()
            self.tested += not last
            if not place:
                ended = self.pipeline(text, steps)
            elif wanted.value or (wanted.value is None and joint == "&&" and wanted.ran):
                # A variable that nothing sets is expected to be set, and a program to do what it
                # is told, unless that ends the script: [ -z "$M" ] && exit, pgrep sglang && exit.
                before, count = self.state.mark(), len(self.commands)
                ended = self.pipeline(text, steps)
                left = self.stop and (wanted.soft or not wanted.value)
                left = left and not self.only_waits(text, parts[place].node)
                if left or self.gives_up():
                    asked = partial(self.undecided, text, parts[:end], wanted)
                    self.goes_on(before, count, asked, gives_up=not left)
                    ended = OPEN
            elif wanted.value is None:
                note = self.undecided(text, parts[:place], wanted)
                self.merge([self.branch(note, partial(self.pipeline, text, steps)), {}], note)
                ended = OPEN
            self.tested -= not last
            place = end
        self.aside -= background
        if background:
            self.stop = ""
            self.state.back_to(mark)
            return TRUE
        return ended

    def pipeline(self, text: ShellText, parts: Sequence[Part]) -> Truth:
        """Go through ``a | b``: each in a shell of its own, reading what the one before says."""
        node = parts[0].node
        negated = node is not None and node.type == "negated_command"
        if len(parts) == 1:
            ended = self.command(text, parts[0])
            return ended.negated() if negated else ended
        ended = TRUE
        # What an installer's script does, that is piped from the network into a shell, is its own.
        fetched = "" if node is None else text.text(node)
        downloads = fetched.startswith(("curl", "wget")) and _INSTALLER.search(fetched) is not None
        outer, captured = self.piped, self.said
        for index, part in enumerate(parts):
            mark = self.state.mark()
            self.said = []
            ended = self.command(text, part)
            self.state.back_to(mark)
            self.stop = ""
            origin = text.origin(part.node or parts[0].node)
            if self.said is not None:
                self.piped = Word("".join(self.said), origin)
            elif index + 1 < len(parts):
                unknown = Word("", origin, ("what the command in front of the | writes",))
                self.piped = None if downloads else unknown
        self.said = None if captured is None or self.said is None else [*captured, *self.said]
        self.piped = outer
        return ended.negated() if negated else ended

    def command(self, text: ShellText, part: Part) -> Truth:
        """Go through one command, simple or compound."""
        node = part.node
        if node is None:
            return TRUE
        if node.type == "negated_command":
            inner = [child for child in node.children if child.is_named]
            return self.command(text, part._replace(node=inner[-1])) if inner else OPEN
        if self.nested > _DEEPEST:
            return self.not_read(text, node, f"more than {_DEEPEST} commands within each other")
        broken = any(c.type == "ERROR" or c.is_missing for c in node.children)
        if broken or node.type not in STATEMENTS:
            return self.not_read(text, node)
        compound = getattr(self, f"on_{node.type}", None)
        if compound is None:
            return self.simple(text, node, part.redirections)
        for redirection in part.redirections:
            if redirection.operator in WRITES and redirection.target is not None:
                origin = text.origin(redirection.node)
                for word in expand(self.state, redirection.target, origin)[:1]:
                    self.files[word.text] = Word("", origin, ("what several commands write",))
        self.nested += 1
        outer, self.piped = self.piped, self.given(text, part.redirections, self.piped)
        ended: Truth = compound(text, node)
        self.piped = outer
        self.nested -= 1
        return ended

    @abstractmethod
    def given(
        self, text: ShellText, redirections: Sequence[Redirection], piped: Word | None
    ) -> Word | None:
        """Return what a command reads from standard input; None if nothing says it."""

    # What is not decided

    def doubting(self, note: SourceNote, steps: Callable[[], Truth]) -> Truth:
        """Go through a part of which nothing decides whether it runs."""
        before, self.doubts = self.doubts, (*self.doubts, note)
        ended = steps()
        self.doubts = before
        return ended

    def gives_up(self) -> bool:
        """Tell whether a script ends with an error before it started what it is about.

        It expects something of its caller that is not here: it is read as if it went on.
        """
        return self.stop == "exit" and self.failing and not self.started()

    def only_waits(self, text: ShellText, node: Node | None) -> bool:
        """Tell whether a loop that is left here does nothing of the launch behind this place."""
        loop = node
        while loop is not None and loop.type != "do_group":
            loop = loop.parent
        if self.stop != "break" or node is None or loop is None:
            return False
        behind = text.bytes[node.end_byte : loop.end_byte]
        return STARTED.search(behind.decode(errors="replace")) is None

    def goes_on(
        self,
        mark: int,
        count: int,
        asked: SourceNote | Callable[[], SourceNote],
        gives_up: bool = True,
    ) -> None:
        """Go on as if the script were not left; what it started of the launch is doubted.

        asked: the condition, or what makes its note if it is needed. gives_up: all that follows is
        doubted, too, if the script ends for want of something.
        """
        doubts = gives_up and self.gives_up()
        self.stop = ""
        self.state.back_to(mark)
        if doubts or any(map(_is_of_launch, self.commands[count:])):
            note = asked if isinstance(asked, SourceNote) else asked()
            self.doubts = (*self.doubts, note) if doubts else self.doubts
            self.commands[count:] = [
                one._replace(doubts=(*one.doubts, note)) for one in self.commands[count:]
            ]

    def started(self) -> bool:
        """Tell whether anything was started yet that a launch is about."""
        return any(map(_is_of_launch, self.commands))

    def branch(self, note: SourceNote, steps: Callable[[], Truth]) -> Changes | None:
        """Run one way that a script may go; return what it changes, and take that back.

        None if it leaves the script or function. Behind a loop that it leaves, the script goes on
        with that: ``ready=1; break``.
        """
        mark, kills = self.state.mark(), self.kills
        self.doubting(note, steps)
        changed = None if self.stop in ("exit", "return") else self.state.changed(mark)
        if self.stop:  # what it killed is gone only if nothing follows
            self.kills = kills
        self.may_return = self.may_return or self.stop == "return"
        self.state.back_to(mark)
        self.stop = ""
        return changed

    def merge(self, outcomes: Sequence[Changes | None], note: SourceNote) -> None:
        """Take what several ways change: what they differ in is doubted, the last one holds."""
        live = [outcome for outcome in outcomes if outcome is not None]
        if not live:
            self.stop, self.ended = "return" if self.active else "exit", OPEN
            if not self.active and not self.started():
                self.notes.append(note)  # else nothing says that it may start something
        for key in dict.fromkeys(key for outcome in live for key in outcome):
            before = self.state.current(key)
            values = [outcome.get(key, before) for outcome in live]
            same = all(plain(values[0]) == plain(value) for value in values)
            last = next(outcome[key] for outcome in reversed(live) if key in outcome)
            # Alike by different ways: it still hangs on what each way hangs on.
            doubts = doubts_of(values) if same else (*self.doubts, note)
            self.state.change_in_doubt(key, last, doubts)

    def undecided(
        self, text: ShellText, parts: Sequence[Part], truth: Truth, several: bool = False
    ) -> SourceNote:
        """Say which condition nothing decides, and for want of what."""
        written = [
            f"{part.operator} {text.text(part.node)}" for part in parts if part.node is not None
        ]
        node = next(part.node for part in parts if part.node is not None)
        return self.open_note(" ".join(written), text.origin(node), truth.ran, several)

    def open_note(
        self, shown: str, origin: Origin, ran: bool = False, several: bool = False
    ) -> SourceNote:
        """Keep a note on what nothing decides. several: it has an else, or another condition."""
        shown = " ".join(shown.split())
        names: list[str] = []
        for name in _NAMES.findall(shown):
            held = self.state.variables.get(name)
            own = (f"${name}" if name.isdecimal() else name,)
            # What it is made of may be what is not set: ``mode=$MODE``.
            roots = own if held is None else held.unresolved
            names += [root for root in roots if _NAME_OR_NUMBER.fullmatch(root)]
        why = (
            f"{', '.join(dict.fromkeys(names))} is not set"
            if names
            else "it is known only when the script runs"
        )
        if ran and not names:
            why = "that program is not run here"
        read = "read each way, the last one holds" if several else "read as if it were true"
        note = SourceNote("condition", f"nothing decides {brief(shown)}: {why}; {read}", origin)
        self.notes.append(note)
        return note

    # Compound commands

    def on_compound_statement(self, text: ShellText, node: Node) -> Truth:
        """``{ a; b; }``, or ``((...))``."""
        if node.children[0].type == "((":
            formula = text.text(node)[2:-2]
            result = number(self.state, formula, text.origin(node), assigns=True)
            return OPEN if result is None else Truth(bool(result))
        return self.body(text, node)

    def on_subshell(self, text: ShellText, node: Node) -> Truth:
        written = text.text(node)
        if written.startswith("((") and written.endswith("))"):  # behind !, bash reads a sum
            result = number(self.state, written[2:-2], text.origin(node), assigns=True)
            return Truth(bool(result)) if result is not None else self.not_read(text, node)
        mark = self.state.mark()
        functions = dict(self.functions)
        ended = self.body(text, node)
        self.state.back_to(mark)
        self.functions = functions
        if self.stop:
            self.stop = ""
            return OPEN
        return ended

    def on_test_command(self, text: ShellText, node: Node) -> Truth:
        if node.children[0].type == "((":
            return self.on_compound_statement(text, node)
        return self.conditions.command(text, node)

    def on_function_definition(self, text: ShellText, node: Node) -> Truth:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[text.text(name)] = ShellFunction(text, body)
        return TRUE

    def test(self, text: ShellText, nodes: Sequence[Node]) -> Truth:
        """Go through a condition."""
        self.tested += 1
        ended = self.run(text, nodes)
        self.tested -= 1
        return ended

    def on_if_statement(self, text: ShellText, node: Node) -> Truth:
        arms = _arms(node)
        skipped: list[Sequence[Node]] = []  # that a variable would lead to that nothing sets
        for index, (condition, body) in enumerate(arms):
            truth = TRUE if condition is None else self.test(text, condition).undoubted()
            if self.stop:
                return truth
            if truth.value is None:
                note = self.asked(text, condition, truth, index + 1 < len(arms))
                return self.ways(text, arms[index:], note, skipped)
            if truth.value is False:
                skipped += [body] if truth.soft else []
                continue
            mark, count = self.state.mark(), len(self.commands)
            ended = self.run(text, body)
            expected = self.stop in ("exit", "return") and (truth.soft or skipped)
            if not expected and not self.gives_up():
                return ended
            # Who asks so expects the variable to be set.
            rest = arms[index + 1 :]
            note = self.asked(text, condition or arms[0][0], truth, bool(rest))
            del self.commands[count:]
            self.goes_on(mark, count, note)
            return self.ways(text, rest, note, skipped, asks=True) if rest or skipped else OPEN
        return TRUE

    def asked(
        self, text: ShellText, condition: Sequence[Node] | None, truth: Truth, several: bool = False
    ) -> SourceNote:
        """Say which condition of an ``if`` or a loop nothing decides."""
        parts = [Part("", node) for node in condition or () if _says(node)]
        return self.undecided(text, parts, truth, several)

    def ways(
        self,
        text: ShellText,
        arms: Sequence[Arm],
        note: SourceNote,
        skipped: Sequence[Sequence[Node]],
        asks: bool = False,
    ) -> Truth:
        """Go through every branch of which nothing decides which one runs.

        skipped: branches that are read too if no arm decides. asks: the first condition is still
        to be looked at.
        """
        outcomes: list[Changes | None] = []
        for body in skipped if asks else ():
            outcomes.append(self.branch(note, partial(self.run, text, body)))
        for condition, body in arms:
            truth = OPEN
            if condition is not None and asks:
                truth = self.doubting(note, partial(self.test, text, condition)).undoubted()
                self.stop = ""
            if truth.value is not False:
                outcomes.append(self.branch(note, partial(self.run, text, body)))
            asks = True
            if condition is None or (truth.value and not truth.soft):
                break
        else:
            outcomes.append({})
        self.merge(outcomes, note)
        return OPEN

    def on_case_statement(self, text: ShellText, node: Node) -> Truth:
        head = node.child_by_field_name("value")
        items = [child for child in node.children if child.type == "case_item"]
        ends = [child.type for item in items for child in item.children[-1:]]
        if head is None or ";&" in ends or ";;&" in ends or any(i.has_error for i in items):
            return self.not_read(text, node)
        origin = text.origin(node)
        word = value(self.state, text.pieces(head), origin)
        outcomes: list[Changes | None] = []
        note: SourceNote | None = None
        for item in items:
            truth = self.arm(text, item, word, origin)
            body = item.children[_behind(item, ")") :]
            if truth.value is False:
                continue
            if note is None and truth.value and not truth.soft:
                mark, count = self.state.mark(), len(self.commands)
                ended = self.run(text, body)
                if not self.gives_up():
                    return ended
                # Who asks so expects another word: every other arm may be the one.
                note = self.open_note(f"case {text.text(head)}", origin, several=True)
                self.goes_on(mark, count, note)
                for other in (each for each in items if each != item):
                    body = other.children[_behind(other, ")") :]
                    outcomes.append(self.branch(note, partial(self.run, text, body)))
                break
            if note is None:
                note = self.open_note(f"case {text.text(head)}", origin, several=True)
            outcome = self.branch(note, partial(self.run, text, body))
            outcomes.append(outcome)
            # Who asks so, and ends if it is empty, expects the variable to be set.
            if truth.value is True and not (truth.soft and outcome is None):
                break
        else:
            outcomes.append({})
        if note is not None:
            self.merge(outcomes, note)
            return OPEN
        return TRUE

    def arm(self, text: ShellText, item: Node, word: Word, origin: Origin) -> Truth:
        """Tell whether one of the patterns of an arm takes a word."""
        truth = FALSE
        patterns: list[list[Node]] = [[]]
        for child in item.children[: _behind(item, ")")]:
            if child.type == "|":
                patterns.append([])
            elif child.is_named:
                patterns[-1].append(child)
        for nodes in patterns:
            for written in text.words(nodes):
                matched = self.conditions.matches(word, written.pieces, origin)
                truth = either(truth, matched.undoubted())
        return truth

    # Loops

    def on_while_statement(self, text: ShellText, node: Node) -> Truth:
        *condition, body = [child for child in node.children[1:] if child.type != "comment"]
        written = " ".join(text.text(child) for child in condition if child.is_named)
        constant = "$" not in written and "((" not in written and not written.startswith("read")
        while True:
            truth = self.test(text, condition).undoubted()
            if node.children[0].type == "until":
                truth = truth.negated()
            if self.stop or truth.value is False:
                return TRUE
            if truth.value is None:
                note = self.asked(text, condition, truth)._replace(id="loop-not-counted")
                if "read" in written.split()[:2]:
                    said = f"while {brief(written)}: how many times it runs is not known; read once"
                    note = self.notes[-1] = note._replace(text=said)
                self.merge([self.branch(note, partial(self.turn, text, body)), {}], note)
                return OPEN
            if not self.next_turn(text, body):
                return OPEN
            self.turn(text, body)
            if self.leaves() or constant:
                return TRUE  # while true: what it starts ends before it is started again

    def turn(self, text: ShellText, body: Node) -> Truth:
        """Go through a loop's body once."""
        before = len(self.commands)
        ended = self.body(text, body)
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

    def next_turn(self, text: ShellText, body: Node) -> bool:
        """Tell whether a loop is followed once more: they can be made to go on for ever."""
        self.turns += 1
        many_turns = self.turns - self.waited + self.waited // 10 > MOST_TURNS
        if not many_turns and self.state.budget.spend(body.end_byte - body.start_byte):
            return True
        many = f"the loops up to here make more than {MOST_TURNS} turns"
        why = many if many_turns else "the script is longer than is followed"
        said = f"{why}: the other turns of this loop are not read"
        self.note("loop-not-counted", said, text.origin(body))
        return False

    def on_for_statement(self, text: ShellText, node: Node) -> Truth:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None:
            return self.not_read(text, node)
        name, origin = text.text(variable), text.origin(node)
        if node.children[0].type != "for":
            return self.not_read(text, node, "select is not read")
        known = True
        values = node.children_by_field_name("value")
        words: list[Word] = []
        if values or any(child.type == "in" for child in node.children):
            for written in text.words(values):
                words += expand(self.state, written, origin)
        else:
            known = known and self.state.parameters is not None
            words = list(self.state.parameters or ())
        uncounted = any(
            word.several or any(doubt.id == "loop-not-counted" for doubt in word.doubts)
            for word in words
        )
        if not known or uncounted:
            head = " ".join(text.text(child) for child in (variable, *values))
            said = (
                f"for {brief(head)}: how many times it runs is not known; "
                f"read once, with {name} unknown"
            )
            note = SourceNote("loop-not-counted", said, origin)
            self.state.lose(name, origin)
            self.merge([self.branch(note, partial(self.turn, text, body)), {}], note)
            self.state.assign(name, Word(f"${name}", origin, (f"${name}",)))
            return OPEN
        for word in words:
            if not self.next_turn(text, body):
                break
            self.state.assign(name, word)
            self.turn(text, body)
            if self.leaves():
                break
        return TRUE

    def on_c_style_for_statement(self, text: ShellText, node: Node) -> Truth:
        """``for ((i = 0; i < 8; i++))``."""
        body, origin = node.child_by_field_name("body"), text.origin(node)
        head = re.match(r"for\s*\(\((.*?)\)\)\s*(?:;|do\b|\n|\{)", text.text(node), re.DOTALL)
        if body is None or head is None:
            return self.not_read(text, node)
        first, condition, step = (*head[1].split(";"), "", "")[:3]
        known = number(self.state, first or "0", origin, assigns=True) is not None
        while known:
            holds = number(self.state, condition or "1", origin, assigns=True)
            known = holds is not None
            if not holds or not self.next_turn(text, body):
                break
            self.turn(text, body)
            if self.leaves():
                break
            known = number(self.state, step or "0", origin, assigns=True) is not None
        if not known:
            said = f"for (({brief(head[1])})): how many times it runs is not known; read once"
            for name, element in names_set(f"{first}, {condition}, {step}").items():
                self.state.lose(name, origin, element)
            note = SourceNote("loop-not-counted", said, origin)
            self.merge([self.branch(note, partial(self.turn, text, body)), {}], note)
        return TRUE


# What the tree has for a command of its own.
STATEMENTS = frozenset(
    "case_statement command compound_statement c_style_for_statement declaration_command "
    "for_statement function_definition if_statement list negated_command pipeline "
    "redirected_statement subshell test_command unset_command variable_assignment "
    "variable_assignments while_statement".split()
)
WRITES = (">", ">|", ">>", "&>", "&>>")


def _parts(text: ShellText, node: Node, operator: str = "") -> list[Part]:
    """Return the commands of a list or pipeline in their order: the tree nests them otherwise."""
    if node.type in ("list", "pipeline") and not node.has_error:
        found: list[Part] = []
        for child in node.children:
            if child.is_named and child.type != "comment":
                found += _parts(text, child, operator)
                operator = ""
            elif child.type in ("&&", "||", "|", "|&"):
                operator = child.type
        return found
    if node.type != "redirected_statement" or _is_broken(node):
        return [Part(operator, node)]
    own: list[Redirection] = []
    behind: list[Part] = []
    body: Node | None = None
    for child in node.children:
        if child.type in _REDIRECTIONS:
            redirections, more = _redirections(text, child)
            own += redirections
            behind += more
        elif child.type != "comment":
            body = child
    inner = [Part(operator, None)] if body is None else _parts(text, body, operator)
    last = inner[-1]
    inner[-1] = last._replace(redirections=(*last.redirections, *own))
    if body is None:
        inner[-1] = inner[-1]._replace(node=node)
    return [*inner, *behind]


def _redirections(text: ShellText, node: Node) -> tuple[list[Redirection], list[Part]]:
    """Return what a redirection is, and the commands that the tree has within a heredoc's."""
    operators = [c.type for c in node.children if not c.is_named]
    operator = operators[0] if operators else ""
    if node.type == "file_redirect":
        number_of = next((c for c in node.children if c.type == "file_descriptor"), None)
        if number_of is not None and text.text(number_of) not in ("0", "1"):
            operator = f"{text.text(number_of)}{operator}"  # errors, or a file of its own
        targets = [child for child in node.children if child.is_named and child != number_of]
        end = next((i for i in range(1, len(targets)) if text.apart(*targets[i - 1 : i + 1])), None)
        word = text.words(targets[:end])[0] if targets else None
        extra = tuple(targets[end:]) if end is not None else ()
        return [Redirection(operator, node, word, extra)], []
    if node.type != "heredoc_redirect":
        return [Redirection(operator, node)], []
    others = (*_HEREDOC_PARTS, *_REDIRECTIONS, "pipeline", "list", "command", "comment")
    joined = any(child.type in ("&&", "||") for child in node.children)
    extra = () if joined else tuple(c for c in node.children if c.is_named and c.type not in others)
    found, behind = [Redirection(operator, node, None, extra)], []
    joint = ""
    for child in node.children:
        if child.type in ("&&", "||", "|"):
            joint = child.type
        elif child.type == "file_redirect":
            found += _redirections(text, child)[0]
        elif child.is_named and joint:
            behind += _parts(text, child, joint)
        elif child.type == "pipeline":
            behind += _parts(text, child, "")
    return found, behind


def redirections_of(text: ShellText, node: Node) -> list[Redirection]:
    """Return what a redirection within a command is: here-strings stand there."""
    return _redirections(text, node)[0]


def _breaks(node: Node, behind: Node) -> bool:
    """Tell whether one of two nodes is what does not parse, on a line of the other."""
    return "ERROR" in (node.type, behind.type) and node.end_point[0] == behind.start_point[0]


def _says(node: Node) -> bool:
    """Tell whether a node is more than a comment, or what separates commands."""
    separates = node.type in ("comment", ";", "&", ";;", ";&", ";;&", "\n", "{", "}", "(", ")")
    keyword = node.type in ("do", "done", "then", "fi", "else")
    return not (separates or keyword)


def _is_broken(node: Node) -> bool:
    """Tell whether the parser gave up within the redirections of a command."""
    return any(
        child.type == "ERROR" or (child.type in _REDIRECTIONS and child.has_error)
        for child in node.children
    )


def _arms(node: Node) -> list[Arm]:
    """Return each condition of an ``if`` and what it leads to; the condition of else is None."""
    clauses = [c for c in node.children if c.type in ("elif_clause", "else_clause")]
    own = [c for c in node.children if c not in clauses]
    then = _behind(node, "then", own)
    found: list[Arm] = [(own[1 : then - 1], own[then:])]
    for clause in clauses:
        children = clause.children
        if clause.type == "else_clause":
            found.append((None, children[1:]))
        else:
            then = _behind(clause, "then")
            found.append((children[1 : then - 1], children[then:]))
    return found


def _behind(node: Node, kind: str, children: Sequence[Node] | None = None) -> int:
    """Return the place behind the first child of a kind."""
    nodes = node.children if children is None else children
    return next((i for i, child in enumerate(nodes) if child.type == kind), -1) + 1


def _is_of_launch(command: Command) -> bool:
    """Return whether a command starts something that a launch is about."""
    texts = [word.text for word in command.words]
    prepares = texts[:1] and texts[0].rpartition("/")[2] in _PREPARES
    installs = bool(_INSTALLS & {*texts[1:3]})
    return not prepares and not installs and STARTED.search(" ".join(texts)) is not None
