"""The shell's own commands: source, eval, read, set, ulimit and their like."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checks.framework.regex import regex
from preflight.launches.set_limits import ulimit
from preflight.launches.shell_blocks import ShellBlocks
from preflight.launches.shell_conditions import FALSE, OPEN, PROGRAM, TRUE, Truth
from preflight.launches.shell_expansion import expand, fields, number, value
from preflight.launches.shell_flow import STARTED
from preflight.launches.shell_state import ELEMENT_COSTS
from preflight.launches.shell_text import Node, Pieces, ShellText
from preflight.launches.source import Origin, Word, brief
from preflight.launches.variables import Layers, Variables

# ``bash -c "bash -c '...'"`` and eval are read down to here.
DEEPEST_SCRIPT = 8
# Shell builtins that start no process, and sleep, which changes nothing.
BUILTINS = frozenset(
    "[ . : alias bg bind break caller cd compgen complete compopt continue declare dirs disown "
    "echo enable eval exit export false fc fg getopts hash help history jobs kill let local logout "
    "mapfile popd printf pushd pwd read readarray readonly return set shift shopt sleep source "
    "suspend test times trap true type typeset ulimit umask unalias unset wait".split()
)
# Builtins of which only a run tells how they end.
_OPEN_BUILTINS = frozenset("getopts hash kill let read mapfile readarray type wait".split())
# What sets up the shell of whoever reads this, not of whoever starts the launch.
_PERSONAL = (".bashrc", ".profile", "/profile", "/activate", "conda.sh")
# What ``eval "$(conda shell.bash hook)"`` and its like set up, which is no setting of a launch.
_HOOK = regex(r"[$`(]+.*\b(hook|init|shellenv|activate|ssh-agent|modulecmd)\b", re.DOTALL)
# Files that set up a shell or its tools, and no setting of a launch.
_SOURCED = (*_PERSONAL, "setvars.sh", "set_env.sh", "set_env.bash", "setenv.bash")  # Ascend's
# The text of a shell within a shell costs so many times its length: such texts can multiply.
NESTED_COSTS = 16
_NAME = regex(r"[A-Za-z_][A-Za-z0-9_]*")


def nested_cost(text: str, depth: int) -> int:
    """Return the cost of a text for a shell within a shell (depth > 0): such texts can multiply."""
    return NESTED_COSTS * len(text) if depth else 0


class Assignment(NamedTuple):
    """``NAME=value``, ``NAME+=value`` (adds) or ``NAME[place]=value``.

    Attributes:
        elements: The nodes of ``NAME=(a b)``, None for a single value.
    """

    name: str
    place: str | None
    adds: bool
    pieces: Pieces
    elements: Sequence[Node] | None


class SimpleCommand(NamedTuple):
    """A command with its words expanded; settings: the assignments in front, as written."""

    text: ShellText
    argv: list[Word]
    settings: Sequence[Node]
    origin: Origin


class ShellBuiltins(ShellBlocks):
    """Carries out assignments and the shell's own commands; if not followed, names get unknown."""

    def builtin(self, command: SimpleCommand, piped: Word | None) -> Truth:
        """Carry out one of the shell's own commands, and return whether it succeeds.

        Args:
            piped: Its standard input, None if not known.
        """
        (text, argv, _, origin), state = command, self.state
        program, *arguments = [word.text for word in argv]
        if program in (".", "source"):
            return self.source_file(argv[1:], origin)
        if program == "eval":
            return self.eval(argv[1:], text, origin)
        if program in ("[", "test"):
            inner = argv[1:-1] if program == "[" and arguments[-1:] == ["]"] else argv[1:]
            return self.conditions.test(inner)
        if program in ("exit", "return", "break", "continue"):
            self.leave(program, arguments)
        elif program == "ulimit":
            message = f"ulimit {' '.join(arguments)}: sets a limit of the processes that follow"
            self.note("ulimit", message, origin)
            must = state.option("errexit") and not self.tested
            for limit in ulimit(argv):
                state.set_limit(limit._replace(must=must))
            return PROGRAM if self.tested else TRUE
        elif program == "shift":
            self.shift(arguments)
        elif program in ("cd", "pushd", "popd"):
            state.enter(argv)
        elif program == "let":
            for word in argv[1:]:
                number(state, word.text, origin, assigns=True)
        elif program == "set":
            self.set_options(argv)
        elif program == "printf" and len(arguments) > 2 and arguments[0] == "-v":
            state.lose(arguments[1], origin)
        elif program == "read":
            return self.read_names(command, piped)
        elif program in ("mapfile", "readarray", "getopts"):
            names = [*arguments[1:], "OPTARG"] if program == "getopts" else arguments or ["MAPFILE"]
            for name in filter(_NAME.fullmatch, names):
                state.lose(name, origin, array=program != "getopts")
        elif program in ("alias", "shopt") and STARTED.search(" ".join(arguments)):
            message = f"{brief(' '.join(word.text for word in argv))}: what it changes is not read"
            self.note("script-not-read", message, origin)
        if program == "false":
            return FALSE
        return PROGRAM if program in _OPEN_BUILTINS else TRUE

    def read_names(self, command: SimpleCommand, piped: Word | None) -> Truth:
        """Carry out ``IFS=, read -ra NAMES <<< TEXT`` with a known text of one line; with any other
        text or option the names become unknown.

        Return whether it succeeds.
        """
        (text, argv, settings, _), state = command, self.state
        ends = state.field_ends()
        for setting in settings:
            name, _, _, pieces, _ = self.assignment(text, setting)
            word = value(state, pieces, argv[0].origin)
            ends = word.text if name == "IFS" and not word.unresolved else None
        flags = "".join(word.text[1:] for word in argv[1:] if word.text.startswith("-"))
        names = [word.text for word in argv[1:] if _NAME.fullmatch(word.text)]
        line, end, rest = ("", "", "") if piped is None else piped.text.partition("\n")
        known = piped is not None and not piped.unresolved and not rest and ends is not None
        known = known and not set(flags) - set("ra") and not ("\\" in line and "r" not in flags)
        for name in names or ["REPLY"]:
            state.lose(name, argv[0].origin, array="a" in flags)
        if not known or piped is None or ends is None or not names:
            return PROGRAM
        if "a" in flags:
            split = tuple(piped._replace(text=each) for each in fields(line, ends))
            state.assign_array(names[0], split)
        else:
            for name, each in zip(names, fields(line, ends, len(names)), strict=True):
                state.assign(name, piped._replace(text=each))
                state.assign_array(name, None)
        return TRUE if end else FALSE

    def set_options(self, argv: Sequence[Word]) -> None:
        """Carry out ``set -euo pipefail -f`` and ``set -- x y``: allexport, errexit and noglob, and
        the parameters.

        Other options are passed over.
        """
        long, on = 0, True
        for place, word in enumerate(argv[1:], start=1):
            text = word.text
            if text == "--":
                self.state.give_parameters(tuple(argv[place + 1 :]))
                return
            if text[:1] in ("-", "+") and len(text) > 1:
                on = text[0] == "-"
                long += text.count("o")
                options = set(text[1:])
            elif long:
                long -= 1
                options = {text}
            else:
                self.state.give_parameters(tuple(argv[place:]))
                return
            for letter, name in (("a", "allexport"), ("e", "errexit"), ("f", "noglob")):
                if letter in options or name in options:
                    self.state.change(("option", name), on)

    def leave(self, program: str, arguments: list[str]) -> None:
        """Carry out exit, return, break or continue (``program``): keep its name in ``stop``, and
        its status or levels.
        """
        known = arguments and re.fullmatch(r"[0-9]{1,3}", arguments[0])
        status = int(arguments[0]) if known else None
        if program == "return":
            self.ended = OPEN if arguments and status is None else Truth(not status)
        self.failing = program == "exit" and bool(status)
        self.levels = max(1, status or 1)
        self.stop = program

    def shift(self, arguments: list[str]) -> None:
        """Drop as many parameters as shift is told; all become unknown if that is not known."""
        count = arguments[0] if arguments else "1"
        parameters = self.state.parameters
        if parameters is None:
            return
        several = any(word.several for word in parameters)
        if not (count.isdecimal() and len(count) < 4) or several:
            self.state.give_parameters(None)
        elif int(count) <= len(parameters):  # else shift fails, and leaves all
            self.state.give_parameters(parameters[int(count) :])

    def eval(self, argv: Sequence[Word], text: ShellText, origin: Origin) -> Truth:
        """Read the text that eval is given as a part of this script.

        Note a text that is not known; unset variables that a server needs may then become unknown.
        """
        script = " ".join(word.text for word in argv)
        if self.depth + len(self.active) >= DEEPEST_SCRIPT:
            self.note("script-not-read", "eval within eval: the innermost is not read", origin)
            return OPEN
        is_open = any(word.unresolved for word in argv)
        if is_open and script.startswith(("$(", "`")):
            hooks = bool(_HOOK.match(script))
            self.not_known(f"eval of what {brief(script)} writes", origin, hooks)
            return PROGRAM
        if is_open and argv[0].text.startswith("$"):
            self.note("script-not-read", f"eval {brief(script)}: what it runs is not known", origin)
            self.lose_needed(origin)
            return PROGRAM
        if not self.state.budget.spend(nested_cost(script, self.depth + 1)):
            return OPEN
        return self.run_inner("eval", self.parse(script, text.source, origin.line))

    def run_inner(self, what: str, inner: ShellText) -> Truth:
        """Go through a text that this shell itself reads.

        Args:
            what: ``eval`` or ``source``.
        """
        self.active.append(what)
        ended = self.run_whole(inner)
        self.active.pop()
        return ended

    def source_file(self, argv: Sequence[Word], origin: Origin) -> Truth:
        """Carry out ``source FILE ARGUMENTS``, given as ``argv``: go through the file in this
        shell.

        A file that cannot be read is noted; unset variables that a server needs may become unknown.
        """
        name = argv[0].text if argv else ""
        known = bool(argv) and (not argv[0].unresolved or name in self.files)
        text = self.text_of_file(name) if known and not name.endswith(_PERSONAL) else None
        deep = len(self.active) >= DEEPEST_SCRIPT
        if text is None or deep or not self.state.budget.spend(len(text)):
            self.not_known(name, origin, name.endswith(_SOURCED), "; name its settings here")
            return PROGRAM
        before = self.state.parameters
        if len(argv) > 1:
            self.state.give_parameters(tuple(argv[1:]))
        ended = self.run_inner("source", self.parse(text, name, 1))
        if len(argv) > 1:
            self.state.give_parameters(before)
        if self.stop == "return":
            self.stop = ""
        return ended

    # Assignments

    def assignment(self, text: ShellText, tree: Node) -> Assignment:
        """Return the parts of ``A=x``, ``A+=x``, ``A[1]=x`` or ``A=(x y)``; an empty name if the
        tree does not parse.
        """
        target, behind = tree.child_by_field_name("name"), tree.child_by_field_name("value")
        if target is None:  # of what does not parse
            return Assignment("", None, False, (), None)
        name, index = text.text(target), None
        if target.type == "subscript":
            name, _, index = name.removesuffix("]").partition("[")
        adds = any(child.type == "+=" for child in tree.children)
        elements = behind.children[1:-1] if behind is not None and behind.type == "array" else None
        # What stands behind the grammar's value without a blank is part of it, too.
        nodes = [child for child in tree.children[2:] if child.is_named]
        argv = text.words(nodes) if elements is None else []
        pieces = tuple(piece for word in argv for piece in word.pieces)
        return Assignment(name, index, adds, pieces, elements)

    def run_assignment(self, text: ShellText, tree: Node, exported: bool | None = None) -> None:
        """Carry out an assignment to a variable, an array or an element.

        If the assignment is not supported, the name becomes unknown.

        Args:
            exported: None for no change of that.
        """
        state, origin = self.state, text.origin(tree)
        name, index, adds, pieces, nodes = self.assignment(text, tree)
        if not name:
            self.not_read(text, tree)
            return
        before, word_before = state.array(name), state.variables.get(name)
        whole = () if word_before is None else (word_before,)
        keyed = state.values.get(("odd", name)) is not None
        if nodes is not None:
            taken: list[Word] = []
            for element in text.words([child for child in nodes if child.type != "comment"]):
                if element.text.startswith("[") and "]=" in element.text:
                    keyed = True
                at = Origin(text.source, text.line(element.line))
                every = f"${{{name}[@]}}"
                loose = any(p.type != "text" and not p.quoted for p in element.pieces)
                taken += [
                    # $(...) may be several elements, or none.
                    word._replace(text=every) if loose and word.unresolved else word
                    for word in expand(state, element, at)
                ]
            if keyed:
                state.lose(name, origin, array=True)
                return
            old = (whole if before is None else before) if adds else ()
            fits = state.budget.spend(ELEMENT_COSTS * (len(old) + len(taken)))
            state.assign_array(name, (*old, *taken) if fits else tuple(taken))
            if word_before is not None:
                state.assign(name, None)
            return
        word = value(state, pieces, origin)
        if keyed and before is None and index is None:
            state.lose(name, origin)
            return
        if index is None and before is None:
            state.assign(name, self.appended_value(name, word) if adds else word, exported)
            return
        elements = [*(whole if before is None else before)]
        place = 0 if index is None else number(state, index, origin)
        unread = keyed or any(each.several for each in elements)
        if (
            unread
            or place is None
            or not -len(elements) <= place <= len(elements)
            or (adds and place < len(elements))
        ):
            state.lose(name, origin, array=True)
            return
        elements[place : place + 1 or None] = [word]
        state.assign_array(name, tuple(elements))
        if word_before is not None:
            state.assign(name, None)

    def appended_value(self, name: str, word: Word) -> Word:
        """Return the word that ``NAME+=word`` gives a variable."""
        before = self.state.variables.get(name)
        if before is None:
            return word
        fits = self.state.budget.spend(len(before.text))
        text = before.text + word.text if fits else f"${name}"
        names = (*before.unresolved, *word.unresolved, *(() if fits else (name,)))
        doubts = (*before.doubts, *word.doubts)
        return word._replace(text=text, unresolved=tuple(dict.fromkeys(names)), doubts=doubts)

    def declare(self, command: SimpleCommand) -> Truth:
        """Carry out ``export A=1 B``, ``declare -x``, ``local``, ``unset`` and their like."""
        (text, argv, settings, origin), state = command, self.state
        program, *arguments = [word.text for word in argv]
        options = "".join(each for each in arguments if each.startswith("-"))
        if program == "unset":
            self.unset(arguments, origin)
            return TRUE
        names = [self.assignment(text, each).name for each in settings]
        names += [each.partition("=")[0] for each in arguments if each[:1] not in "-+"]
        if self.locals and program in ("local", "declare", "typeset") and "g" not in options:
            for key in itertools.product(("variable", "array", "odd"), names):
                self.locals[-1].setdefault(key, state.current(key))
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
            odd = state.values.get(("odd", name)) is not None
            if index is None and elements is None and state.array(name) is None and not odd:
                word = value(state, pieces, text.origin(setting))
                ready.append((name, self.appended_value(name, word) if adds else word))
            else:
                self.run_assignment(text, setting, exports)
        for name, word in ready:
            state.assign(name, word, exports)
        for word in argv[1:]:
            name, equals, written = word.text.partition("=")
            if name[:1] in ("-", "+", ""):
                continue
            if word.unresolved and not _NAME.fullmatch(name):
                self.not_known(f"{program} of what {brief(word.text)} gives", origin)
            elif equals:
                state.assign(name, word._replace(text=written), exports)
            elif exports is not None and (word_now := state.variables.get(name)) is not None:
                state.assign(name, word_now, exports)
            elif exports:
                state.variables.export_later(name)
            elif self.locals and program != "readonly":
                state.assign(name, None)
                state.assign_array(name, None)
        return TRUE

    def unset(self, arguments: Sequence[str], origin: Origin) -> None:
        """Carry out ``unset A B``, ``unset -f NAME`` and ``unset A[1]``."""
        for name in (each for each in arguments if not each.startswith("-")):
            array, bracket, _ = name.partition("[")
            if "-f" in arguments or self.state.variables.get(name) is None:
                self.functions.pop(name, None)
            if bracket and "-f" not in arguments:
                self.state.lose(array, origin, array=True)
            elif "-f" not in arguments:
                self.state.assign(name, None, exported=False)
                self.state.assign_array(name, None)
                self.state.change(("odd", name), None)

    def environment(self, text: ShellText, settings: Sequence[Node]) -> Mapping[str, Word]:
        """Return the environment of a program with assignments in front, ``A=1 program``; the
        variables of the shell itself do not change.

        Args:
            settings: The assignments.
        """
        environment = self.state.variables.environment()
        if not settings:
            return environment
        kept = self.state.variables
        self.state.variables = scope = Variables(environment, kept)
        changes: dict[str, Word | None] = {}
        for setting in settings:
            name, index, adds, pieces, elements = self.assignment(text, setting)
            if index is not None or elements is not None:
                continue
            word = value(self.state, pieces, text.origin(setting))
            changes[name] = self.appended_value(name, word) if adds else word
            scope.put(name, changes[name], True)
        self.state.variables = kept
        return Layers(environment, changes)
