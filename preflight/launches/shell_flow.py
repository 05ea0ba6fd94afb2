"""Goes through the tree of a script as a shell would: lists, pipelines, conditions, loops.

If nothing decides a condition, each way is gone through, and what follows is doubted. Nothing is
executed; subclasses tell what a simple command means.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from checks.framework.regex import regex
from preflight.launches.container import ContainerSettings
from preflight.launches.launch_files import Beside, HostWords
from preflight.launches.shell_conditions import OPEN, TRUE, Conditions, Truth
from preflight.launches.shell_expansion import expand, value
from preflight.launches.shell_state import Changes, ShellState, comparable, doubts_of, merge_values
from preflight.launches.shell_text import Node, ShellText, WrittenWord
from preflight.launches.source import Command, Origin, SourceNote, Word, brief
from preflight.launches.variables import unknown_needed

_REDIRECTIONS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
# The kinds of nodes that are redirections within one that announces a heredoc.
_HEREDOC_PARTS = ("heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor")
# What the tree has for a command of its own.
STATEMENTS = frozenset(
    "case_statement command compound_statement c_style_for_statement declaration_command "
    "for_statement function_definition if_statement list negated_command pipeline "
    "redirected_statement subshell test_command unset_command variable_assignment "
    "variable_assignments while_statement".split()
)
_ASSIGNS = frozenset("declaration_command variable_assignment variable_assignments".split())
WRITES = (">", ">|", ">>", "&>", "&>>")
# Commands within each other: of a script that somebody wrote, a few.
_DEEPEST = 60
# Programs that start nothing, whatever they name: they install, fetch, move or end it.
_PREPARES = frozenset(
    "apt apt-get cat chmod chown conda cp curl du find git grep hf huggingface-cli kill killall ln "
    "ls mkdir mv pgrep pip pip3 pkill rm rsync scp sed tail tee touch wget".split()
)
_INSTALLS = frozenset(("pip", "pip3"))  # behind ``uv`` and ``python3 -m``
# What marks a program that a launch is about.
STARTED = regex(r"sglang|mooncake|vllm|dynamo|lmcache|trtllm")
_NAME_OR_NUMBER = regex(r"[A-Za-z_]\w*|\$\d+")
_NAMES = regex(r"\$\{?[#!]?([A-Za-z_]\w*|\d+)")
# How the address of a script reads that installs a tool or a package source.
_INSTALLER = regex(
    r"install|setup|bootstrap|get[-_.]|rustup|//(?:astral|sh|get|bun|pixi|deno)\.|/uv/|gpg|\.key\b"
)
# Whatever it is, it sets these names: ``A=``, ``export A``, ``read A``.
_SETS = regex(r"\b([A-Za-z_]\w*)(?:\[[^\]\n]*\])?\+?=|\b(?:export|read)\s+([A-Za-z_]\w*)")
# A condition of an ``if``, None for else, and what it leads to.
Arm = tuple["Sequence[Node] | None", "Sequence[Node]"]


class ShellFunction(NamedTuple):
    """A function's body, in the text that defines it."""

    text: ShellText
    body: Node


class Redirection(NamedTuple):
    """Where a command reads or writes.

    Attributes:
        operator: Such as ``>``, ``<<`` or ``2>``.
        target: The file, None for a heredoc or here-string.
        extra: Words of the command behind ``target``.
    """

    operator: str
    tree: Node
    target: WrittenWord | None = None
    extra: tuple[Node, ...] = ()


class Part(NamedTuple):
    """One command of a list or pipeline.

    Attributes:
        operator: Such as ``&&``, in front; "" for the first.
    """

    operator: str
    tree: Node
    redirections: tuple[Redirection, ...] = ()


def parts_of(text: ShellText, tree: Node, operator: str = "") -> list[Part]:
    """Flatten a list, pipeline or redirected statement into its commands, in the order they run.

    A redirection around all commands goes to the last one. Another tree is one part.

    Args:
        operator: The sign in front of the first command.
    """
    if tree.type in ("list", "pipeline") and not tree.has_error:
        parts: list[Part] = []
        for child in tree.children:
            if child.is_named and child.type != "comment":
                parts += parts_of(text, child, operator)
                operator = ""
            elif child.type in ("&&", "||", "|", "|&"):
                operator = child.type
        return parts
    # The parser may give up within the redirections.
    broken = any(
        c.type == "ERROR" or (c.type in _REDIRECTIONS and c.has_error) for c in tree.children
    )
    if tree.type != "redirected_statement" or broken:
        return [Part(operator, tree)]
    outer: list[Redirection] = []
    behind: list[Part] = []
    body: Node | None = None
    for child in tree.children:
        if child.type in _REDIRECTIONS:
            here, more = _redirections(text, child)
            outer, behind = [*outer, *here], [*behind, *more]
        elif child.type != "comment":
            body = child
    inner = [Part(operator, tree)] if body is None else parts_of(text, body, operator)
    last = inner[-1]
    inner[-1] = last._replace(redirections=(*last.redirections, *outer))
    return [*inner, *behind]


def _redirections(text: ShellText, tree: Node) -> tuple[list[Redirection], list[Part]]:
    """Read one redirection: return its redirections, and the commands that the grammar puts inside
    the redirection, as in ``cat <<EOF | tee f``.

    Args:
        tree: A file_redirect, heredoc_redirect or here-string, not a whole command.
    """
    operators = [c.type for c in tree.children if not c.is_named]
    operator = operators[0] if operators else ""
    if tree.type == "file_redirect":
        number_of = next((c for c in tree.children if c.type == "file_descriptor"), None)
        if number_of is not None and text.text(number_of) not in ("0", "1"):
            operator = f"{text.text(number_of)}{operator}"  # errors, or a file of its own
        nodes = [child for child in tree.children if child.is_named and child != number_of]
        end = next((i for i in range(1, len(nodes)) if text.has_gap(*nodes[i - 1 : i + 1])), None)
        word = text.words(nodes[:end])[0] if nodes else None
        extra = tuple(nodes[end:]) if end is not None else ()
        return [Redirection(operator, tree, word, extra)], []
    if tree.type != "heredoc_redirect":
        return [Redirection(operator, tree)], []
    others = (*_HEREDOC_PARTS, *_REDIRECTIONS, "pipeline", "list", "command", "comment")
    joined = any(child.type in ("&&", "||") for child in tree.children)
    extra = () if joined else tuple(c for c in tree.children if c.is_named and c.type not in others)
    redirections, behind = [Redirection(operator, tree, None, extra)], []
    joint = ""
    for child in tree.children:
        if child.type in ("&&", "||", "|"):
            joint = child.type
        elif child.type == "file_redirect":
            redirections += _redirections(text, child)[0]
        elif child.is_named and joint:
            behind += parts_of(text, child, joint)
        elif child.type == "pipeline":
            behind += parts_of(text, child, "")
    return redirections, behind


def redirections_of(text: ShellText, tree: Node) -> list[Redirection]:
    """Return the redirections that a tree within a command stands for, such as here-strings."""
    return _redirections(text, tree)[0]


def is_command(tree: Node) -> bool:
    """Return whether a tree is a command: no comment, separator, bracket or keyword."""
    separates = tree.type in ("comment", ";", "&", ";;", ";&", ";;&", "\n", "{", "}", "(", ")")
    keyword = tree.type in ("do", "done", "then", "fi", "else")
    return not (separates or keyword)


def share_broken_line(tree: Node, behind: Node) -> bool:
    """Return whether a tree and the next, ``behind``, share a line, and one does not parse."""
    return "ERROR" in (tree.type, behind.type) and tree.end_point[0] == behind.start_point[0]


def arms_of(tree: Node) -> list[Arm]:
    """Return each condition of an ``if`` and what it leads to; the condition of else is None."""
    clauses = [c for c in tree.children if c.type in ("elif_clause", "else_clause")]
    children_of_if = [c for c in tree.children if c not in clauses]
    then = index_behind(tree, "then", children_of_if)
    arms: list[Arm] = [(children_of_if[1 : then - 1], children_of_if[then:])]
    for clause in clauses:
        children = clause.children
        if clause.type == "else_clause":
            arms.append((None, children[1:]))
        else:
            then = index_behind(clause, "then")
            arms.append((children[1 : then - 1], children[then:]))
    return arms


def index_behind(tree: Node, tree_type: str, children: Sequence[Node] | None = None) -> int:
    """Return the index behind the first child of a type; 0 if no child has the type.

    Args:
        children: Those to search, None for all of the tree.
    """
    nodes = tree.children if children is None else children
    return next((i for i, child in enumerate(nodes) if child.type == tree_type), -1) + 1


class ShellFlow(ABC):
    """Goes through a text command by command, and collects what they start."""

    def __init__(
        self,
        source: str,
        state: ShellState,
        depth: int = 0,
        beside: Beside = lambda name: None,
        host_words: HostWords = lambda command: None,
    ) -> None:
        """Start a shell that reads ``source``, with ``depth`` shells around it.

        Args:
            beside: Gives the text of a file near the launch.
            host_words: Gives the output of ``nproc`` and the like on its host.
        """
        self.source = source
        self.state = state
        self.depth = depth  # of shells within each other
        self.beside = beside
        self.host_words = host_words
        self.called: set[str] = set()  # functions
        self.locals: list[Changes] = []  # per active function: the values that its locals hide
        # Of each container with a --name of docker run: its settings, and its variables.
        self.containers: dict[str, tuple[ContainerSettings, Mapping[str, Word]]] = {}
        self.captures = False  # this is the text of $(...)
        self.commands: list[Command] = []
        self.notes: list[SourceNote] = []
        self.files: dict[str, Word] = {}
        self.functions: dict[str, ShellFunction] = {}
        self.active: list[str] = []  # the functions that are being read, outermost first
        self.doubts: tuple[SourceNote, ...] = ()  # of what is being read
        self.stop = ""  # exit, return, break or continue, on its way to where it ends
        self.may_return = False  # a branch that may run has left the function
        self.failing = False  # the status of exit tells of an error
        self.tested = 0  # how many conditions stand around; set -e ends nothing in a condition
        self.levels = 0  # how many loops break or continue leaves
        self.ended = TRUE  # the truth that return gives
        self.turns = 0  # turns of all loops
        self.waited = 0  # those of these turns that only wait
        self.aside = 0  # how many of the lists around end with &
        self.kills = 0  # how often the script has ended all that it had started
        self.killed: set[str] = set()  # each $! that kill was certainly given
        self.nested = 0
        self.conditions = Conditions(state, self.has_file)
        # What is written to standard output; None: not known.
        self.output_parts: list[str] | None = None
        self.piped: Word | None = None  # what the command in front of a | writes
        state.output = self.output

    def note(self, identifier: str, text: str, origin: Origin) -> None:
        self.notes.append(SourceNote(identifier, text, origin))

    def text_beside(self, name: str) -> str | None:
        """Return the text of a file near the script, by the name that the script uses; None if the
        file, or the shell's folder, is not known.
        """
        path = self.state.path(name)
        return None if path is None else self.beside(path)

    def text_of_file(self, name: str) -> str | None:
        """Return the text of a file that the script wrote, or of one near the script; None if the
        text is not known.
        """
        word = self.files.get(name)
        if word is None:
            return self.text_beside(name)
        return None if word.unresolved else word.text

    def has_file(self, name: str) -> bool:
        return name in self.files or self.text_beside(name) is not None

    @abstractmethod
    def simple(self, text: ShellText, tree: Node, redirections: Sequence[Redirection]) -> Truth:
        """Read a simple command, a declaration or assignments; return whether it succeeds."""

    def parse(self, text: str, source: str, first_line: int | None) -> ShellText:
        """Parse a text; keep notes on it.

        Args:
            first_line: None without lines, as on a command line.
        """
        tree = ShellText(text, source, first_line)
        self.notes += tree.notes
        tree.notes = self.notes  # what its words say of themselves comes later
        return tree

    def not_read(self, text: ShellText, tree: Node, why: str = "") -> Truth:
        """Note that a part of the script is not read, and return OPEN, as the result is not known.

        Variables that the part sets become unknown, and so do unset ones that a server needs.

        Args:
            why: The reason; "" if the part does not parse, which puts what follows in doubt.
        """
        written, origin = text.text(tree), text.origin(tree)
        reason = why or "this part of the script is not read: it does not parse"
        self.note("script-not-read", f"{brief(written)}: {reason}", origin)
        if not why:  # what stands behind may be cut out of it
            self.doubts = (*self.doubts, self.notes[-1])
        names = {name for pair in _SETS.findall(written) for name in pair if name}
        for name in sorted(names):
            self.state.lose(name, origin)
        self.lose_needed(origin)
        return OPEN

    def not_known(self, what: str, origin: Origin, common: bool = False, advice: str = "") -> None:
        """Note that ``what`` may set variables, and make those unknown that a server needs and
        nothing has set.

        Args:
            common: ``what`` sets no variable that a server needs.
            advice: Ends the note.
        """
        message = f"{what} is not read: variables that it sets are unknown{advice}"
        self.note("source-environment" if common else "source-not-read", message, origin)
        if not common:
            self.lose_needed(origin)

    def lose_needed(self, origin: Origin) -> None:
        """Make the variables unknown that a server needs and nothing has set."""
        for name, word in unknown_needed({}, origin).items():
            if self.state.variables.get(name) is None:
                self.state.assign(name, word, exported=True)

    @abstractmethod
    def output(self, text: str, origin: Origin) -> Word | None:
        """Return the output of a command substitution, if it follows from the text alone."""

    # Lists, pipelines, commands

    def run_whole(self, text: ShellText) -> Truth:
        """Go through a whole text, up to the first part that does not parse.

        Return whether the last command succeeds.
        """
        nodes = text.root.children
        try:
            if text.root.type != "ERROR":
                return self.run(text, nodes)
        except RecursionError:
            self.doubts, self.nested = (), 0
            return self.not_read(text, text.root, "it is nested deeper than is followed")
        whole = [tree.type in STATEMENTS or not is_command(tree) for tree in nodes]
        end = whole.index(False) if False in whole else len(nodes)
        ended = self.run(text, nodes[:end])
        return ended if self.stop or not nodes[end:] else self.not_read(text, nodes[end])

    def run(self, text: ShellText, nodes: Sequence[Node]) -> Truth:
        """Go through the commands of a list, until one such as exit stops it.

        Return whether the last command succeeds.
        """
        ended = TRUE
        for index, tree in enumerate(nodes):
            if self.stop:
                break
            if not is_command(tree):
                continue
            behind = nodes[index + 1] if index + 1 < len(nodes) else None
            before = nodes[index - 1] if index else None
            aside = behind is not None and behind.type == "&"
            broken = behind is not None and share_broken_line(tree, behind)
            if broken or (before is not None and share_broken_line(before, tree)):
                ended = self.not_read(text, tree)
            else:
                ended = self.and_or(text, tree, aside or text.runs_in_background(tree))
        return ended

    def and_or(self, text: ShellText, tree: Node, background: bool) -> Truth:
        """Go through ``a && b || c``, and return whether the list succeeds.

        Args:
            background: An & ends the list, so its changes are lost behind it and ``$!`` is set.
        """
        parts = list(parts_of(text, tree))
        mark, first = self.state.mark(), len(self.commands)
        ended, place, defaults = TRUE, 0, self.state.defaults
        self.aside += background
        while place < len(parts) and not self.stop:
            end = place + 1
            while end < len(parts) and parts[end].operator in ("|", "|&"):
                end += 1
            joint, last, steps = parts[place].operator, end == len(parts), parts[place:end]
            wanted = ended if joint != "||" else ended.negated()
            self.tested += not last
            nodes = [step.tree for step in steps]
            if not place or self.sets_default(text, nodes, wanted):
                ended = self.pipeline(text, steps)
            elif wanted.value or (wanted.value is None and joint == "&&" and wanted.by_program):
                # A variable that nothing sets is expected to be set, and a program to do what it
                # is told, unless that ends the script: [ -z "$M" ] && exit, pgrep sglang && exit.
                before, count = self.state.mark(), len(self.commands)
                by_default = self.state.defaults > defaults
                ended = self.pipeline(text, steps)
                left = self.stop and (wanted.soft or not (wanted.value or wanted.expected))
                left = left and not self.only_waits(text, parts[place].tree)
                gave_up = not left and self.gives_up()
                gave_up |= by_default and self.ends_by_default(text, tree, count)
                if left or gave_up:
                    note_later = partial(self.undecided_note, text, parts[:end], wanted)
                    self.go_on_after_end(before, count, note_later, gave_up)
                    ended = OPEN
            elif wanted.value is None:
                note = self.undecided_note(text, parts[:place], wanted)
                run = partial(self.pipeline, text, steps)
                self.merge([self.branch(note, run, bool(wanted.asks)), {}], note)
                ended = OPEN
            self.tested -= not last
            place = end
        self.aside -= background
        if background:
            self.stop = ""
            self.state.back_to(mark)
            # $! with the number of what it is; of several there is no telling which of them.
            of_one = f"$!{first}" if len(self.commands) == first + 1 else "$!"
            word = Word(of_one, text.origin(tree), ("$!",))
            self.state.change(("background", ""), word)
            return TRUE
        return ended

    def pipeline(self, text: ShellText, parts: Sequence[Part]) -> Truth:
        """Go through ``a | b``: each in a subshell, with the output before as input.

        A single command stays in this shell. Return whether the last one succeeds.
        """
        tree = parts[0].tree
        negated = tree.type == "negated_command"
        if len(parts) == 1:
            ended = self.command(text, parts[0])
            return ended.negated() if negated else ended
        ended = TRUE
        # What an installer's script does, that is piped from the network into a shell, is its own.
        fetched = text.text(tree)
        downloads = fetched.startswith(("curl", "wget")) and _INSTALLER.search(fetched) is not None
        outer, captured = self.piped, self.output_parts
        for index, part in enumerate(parts):
            mark = self.state.mark()
            self.output_parts = []
            ended = self.command(text, part)
            self.state.back_to(mark)
            self.stop = ""
            bodies = (c for r in part.redirections for c in r.tree.children)  # of cat <<EOF
            body = next((child for child in bodies if child.type == "heredoc_body"), part.tree)
            origin = text.origin(body)
            if self.output_parts is not None:
                self.piped = Word("".join(self.output_parts), origin)
            elif index + 1 < len(parts):
                unknown = Word("", origin, ("what the command in front of the | writes",))
                self.piped = None if downloads else unknown
        known = captured is not None and self.output_parts is not None
        self.output_parts = [*(captured or ()), *(self.output_parts or ())] if known else None
        self.piped = outer
        return ended.negated() if negated else ended

    def command(self, text: ShellText, part: Part) -> Truth:
        """Go through one command, simple or compound; return whether it succeeds.

        One that does not parse, or is nested too deep, is noted.
        """
        tree = part.tree
        if tree.type == "negated_command":
            inner = [child for child in tree.children if child.is_named]
            return self.command(text, part._replace(tree=inner[-1])) if inner else OPEN
        if self.nested > _DEEPEST:
            return self.not_read(text, tree, f"more than {_DEEPEST} commands within each other")
        broken = any(c.type == "ERROR" or c.is_missing for c in tree.children)
        if broken or tree.type not in STATEMENTS:
            return self.not_read(text, tree)
        compound = getattr(self, f"on_{tree.type}", None)
        if compound is None:
            return self.simple(text, tree, part.redirections)
        for redirection in part.redirections:
            if redirection.operator in WRITES and redirection.target is not None:
                origin = text.origin(redirection.tree)
                for word in expand(self.state, redirection.target, origin)[:1]:
                    self.files[word.text] = Word("", origin, ("what several commands write",))
        self.nested += 1
        outer, self.piped = self.piped, self.stdin(text, part.redirections, self.piped)
        ended: Truth = compound(text, tree)
        self.piped = outer
        self.nested -= 1
        return ended

    def stdin(
        self, text: ShellText, redirections: Sequence[Redirection], piped: Word | None
    ) -> Word | None:
        """Return the text of a command's standard input: of the last redirection of input, else
        ``piped``.

        Returns:
            None if nothing gives it.
        """
        for redirection in reversed(redirections):
            tree, origin = redirection.tree, text.origin(redirection.tree)
            if redirection.operator in ("<<", "<<-"):
                body = next((c for c in tree.children if c.type == "heredoc_body"), tree)
                return value(self.state, text.heredoc(tree), text.origin(body))
            if redirection.operator == "<<<":
                nodes = [child for child in tree.children if child.is_named]
                word = value(self.state, text.pieces(nodes[0]), origin) if nodes else None
                return None if word is None else word._replace(text=word.text + "\n")
            if redirection.operator == "<" and redirection.target is not None:
                place = expand(self.state, redirection.target, origin)[:1]
                return self.content(place[0]) if place else None
        return piped

    def content(self, path: Word) -> Word:
        """Return the text of a file as a word; empty and unresolved if it is not known."""
        if path.text == "/dev/null":
            text: str | None = ""
        else:
            text = None if path.unresolved else self.text_of_file(path.text)
        if text is None or not self.state.budget.spend(len(text)):
            return path._replace(text="", unresolved=(f"what {brief(path.text)} holds",))
        return Word(text, Origin(path.text, 1))

    # What is not decided

    def run_in_doubt(self, note: SourceNote, steps: Callable[[], Truth]) -> Truth:
        """Go through a part that may not run; ``note`` is a doubt of all that the part starts."""
        before, self.doubts = self.doubts, (*self.doubts, note)
        ended = steps()
        self.doubts = before
        return ended

    def gives_up(self) -> bool:
        """Return whether the script ends with an error before it starts its launch."""
        return self.stop == "exit" and self.failing and not self.has_started_launch()

    def ends_by_default(self, text: ShellText, tree: Node, count: int) -> bool:
        """Return whether the script ended at ``tree``, with nothing of its launch started since
        ``count`` commands, and more of the launch behind.

        The caller knows that a default decided that: who starts the script is expected to set the
        variable.
        """
        behind = text.bytes[tree.end_byte :].decode(errors="replace")
        more = text.source != self.source or STARTED.search(behind) is not None
        return self.stop == "exit" and more and not any(map(_is_of_launch, self.commands[count:]))

    def only_waits(self, text: ShellText, tree: Node) -> bool:
        """Return whether a ``break`` at ``tree`` leaves a loop that starts no launch behind it."""
        loop = tree
        while loop is not None and loop.type != "do_group":
            loop = loop.parent
        if self.stop != "break" or loop is None:
            return False
        behind = text.bytes[tree.end_byte : loop.end_byte].decode(errors="replace")
        return STARTED.search(behind) is None

    def go_on_after_end(
        self,
        mark: int,
        count: int,
        note: SourceNote | Callable[[], SourceNote],
        gave_up: bool,
    ) -> None:
        """Read on after a part that ended the script, as if it had not; undo its changes.

        Args:
            mark, count: The state, and the number of commands, before the part.
            note: The undecided question that led to the end. It becomes a doubt of the commands
                since ``count``, if one of them is of the launch. If the script gave up
                (``gave_up``), later commands get the doubt too.
        """
        self.stop = ""
        self.state.back_to(mark)
        later = self.commands[count:]
        if gave_up or any(map(_is_of_launch, later)):
            doubt = note if isinstance(note, SourceNote) else note()
            self.doubts = (*self.doubts, doubt) if gave_up else self.doubts
            self.commands[count:] = (c._replace(doubts=(*c.doubts, doubt)) for c in later)

    def has_started_launch(self) -> bool:
        """Return whether the script has started anything that a launch is about."""
        return any(map(_is_of_launch, self.commands))

    def sets_default(self, text: ShellText, nodes: Sequence[Node], truth: Truth) -> bool:
        """Return whether commands only set variables, among these the unset one that the condition
        in front, ``truth``, asks for: so ``${A:-x}`` does.
        """
        typed = [(text.text(tree), tree.type in _ASSIGNS) for tree in nodes if is_command(tree)]
        typed = [each for each in typed if not each[0].startswith(("echo ", "printf "))]
        named = re.compile(rf"(?:^|\s){re.escape(truth.asks)}=")
        only_sets = bool(truth.asks) and all(assigns for _, assigns in typed)
        return only_sets and any(named.search(written) for written, _ in typed)

    def branch(
        self, note: SourceNote, steps: Callable[[], Truth], unset: bool = False
    ) -> Changes | None:
        """Go through one branch, with ``note`` as a doubt of its commands; return its changes, and
        take them back.

        A branch that leaves a loop has changes that stay: ``ready=1; break``.

        Args:
            unset: The condition depends on a variable that nothing sets. If the script then gives
                up, ``note`` becomes a doubt on all that follows.

        Returns:
            None if the branch leaves the script or function.
        """
        mark, kills = self.state.mark(), self.kills
        self.run_in_doubt(note, steps)
        if unset and self.gives_up():
            self.doubts = (*self.doubts, note)
        changed = None if self.stop in ("exit", "return") else self.state.changed(mark)
        if self.stop:  # what it killed is gone only if nothing follows
            self.kills = kills
        self.may_return = self.may_return or self.stop == "return"
        self.state.back_to(mark)
        self.stop = ""
        return changed

    def merge(self, outcomes: Sequence[Changes | None], note: SourceNote) -> None:
        """Apply the changes of several branches, one of which is taken.

        A value that differs between them is doubted by ``note``, and names all choices if it can.

        A branch of None leaves the script or function; if all do, the script stops here.
        """
        live = [outcome for outcome in outcomes if outcome is not None]
        if not live:
            self.stop, self.ended = "return" if self.active else "exit", OPEN
            if not self.active and not self.has_started_launch():
                self.notes.append(note)  # else nothing says that it may start something
        for key in dict.fromkeys(key for outcome in live for key in outcome):
            before = self.state.current(key)
            values = [outcome.get(key, before) for outcome in live]
            same = all(comparable(values[0]) == comparable(value) for value in values)
            last = next(outcome[key] for outcome in reversed(live) if key in outcome)
            # Alike by different ways: it still hangs on what each way hangs on.
            doubts = doubts_of(values) if same else (*self.doubts, note)
            if not same and note.id == "condition":
                last = merge_values(key, values, last)
            self.state.change_in_doubt(key, last, doubts)

    def undecided_note(
        self, text: ShellText, parts: Sequence[Part], truth: Truth, several: bool = False
    ) -> SourceNote:
        """Keep and return a note on the condition ``parts`` whose outcome is not known.

        Args:
            truth: Of the condition.
            several: The condition has an else or another branch.
        """
        written = [f"{part.operator} {text.text(part.tree)}" for part in parts]
        origin = text.origin(parts[0].tree)
        return self.open_note(" ".join(written), origin, truth.by_program, several)

    def open_note(
        self, shown: str, origin: Origin, by_program: bool = False, several: bool = False
    ) -> SourceNote:
        """Keep and return a note on a condition whose outcome is not known, with the reason.

        Args:
            shown: The condition as written.
            by_program: A program decides.
            several: With else or elif.
        """
        shown = " ".join(shown.split())
        names: list[str] = []
        for name in _NAMES.findall(shown):
            word = self.state.variables.get(name)
            itself = (f"${name}" if name.isdecimal() else name,)
            # What it is made of may be what is not set: ``mode=$MODE``.
            roots = itself if word is None else word.unresolved
            names += [root for root in roots if _NAME_OR_NUMBER.fullmatch(root)]
        why = "it is known only when the script runs"
        why = "that program is not run here" if by_program else why
        why = f"{', '.join(dict.fromkeys(names))} is not set" if names else why
        read = "read each way" if several else "read both ways, with what it starts"
        note = SourceNote("condition", f"nothing decides {brief(shown)}: {why}; {read}", origin)
        self.notes.append(note)
        return note


def _is_of_launch(command: Command) -> bool:
    """Return whether a command starts something that a launch is about."""
    texts = [word.text for word in command.words]
    prepares = texts[:1] and texts[0].rpartition("/")[2] in _PREPARES
    installs = bool(_INSTALLS & {*texts[1:3]})
    return not prepares and not installs and STARTED.search(" ".join(texts)) is not None
