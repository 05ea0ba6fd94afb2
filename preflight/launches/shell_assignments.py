"""Assignments of a script: variables, arrays, what is exported, and what a function hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checks.base.regex import regex
from preflight.launches.shell_blocks import ShellBlocks
from preflight.launches.shell_conditions import TRUE, Truth
from preflight.launches.shell_expansion import expand, number, value
from preflight.launches.shell_state import ELEMENT_COSTS
from preflight.launches.shell_text import Node, Pieces, ShellText
from preflight.launches.source import Origin, Word, brief
from preflight.launches.variables import Layers, Variables

_NAME = regex(r"[A-Za-z_][A-Za-z0-9_]*")


class Assignment(NamedTuple):
    """``NAME=value``, ``NAME+=value`` (adds), ``NAME[place]=value``; elements: of an array."""

    name: str
    place: str | None
    adds: bool
    pieces: Pieces
    elements: Sequence[Node] | None


class ShellAssignments(ShellBlocks):
    """Carries out assignments, and the commands that declare names."""

    def assignment(self, text: ShellText, node: Node) -> Assignment:
        """Return the parts of ``A=x``, ``A+=x``, ``A[1]=x`` or ``A=(x y)``."""
        target, behind = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None:  # of what does not parse
            return Assignment("", None, False, (), None)
        name, index = text.text(target), None
        if target.type == "subscript":
            name, _, index = name.removesuffix("]").partition("[")
        adds = any(child.type == "+=" for child in node.children)
        elements = behind.children[1:-1] if behind is not None and behind.type == "array" else None
        # What stands behind the grammar's value without a blank is part of it, too.
        nodes = [child for child in node.children[2:] if child.is_named]
        words = text.words(nodes) if elements is None else []
        pieces = tuple(piece for word in words for piece in word.pieces)
        return Assignment(name, index, adds, pieces, elements)

    def take(self, text: ShellText, node: Node, exported: bool | None = None) -> None:
        """Carry out an assignment of the shell itself, of a variable or an array."""
        state, origin = self.state, text.origin(node)
        name, index, adds, pieces, nodes = self.assignment(text, node)
        if not name:
            self.not_read(text, node)
            return
        before, word_before = state.array(name), state.variables.get(name)
        whole = () if word_before is None else (word_before,)
        keyed = state.values.get(("odd", name)) is not None
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
            old = (whole if before is None else before) if adds else ()
            fits = state.budget.spend(ELEMENT_COSTS * (len(old) + len(words)))
            state.assign_array(name, (*old, *words) if fits else tuple(words))
            if word_before is not None:
                state.assign(name, None)
            return
        word = value(state, pieces, origin)
        if keyed and before is None and index is None:
            state.lose(name, origin)
            return
        if index is None and before is None:
            state.assign(name, self.added(name, word) if adds else word, exported)
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

    def added(self, name: str, word: Word, variables: Variables | None = None) -> Word:
        """Return the word that ``NAME+=word`` gives a variable."""
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
            odd = state.values.get(("odd", name)) is not None
            if index is None and elements is None and state.array(name) is None and not odd:
                word = value(state, pieces, text.origin(setting))
                ready.append((name, self.added(name, word) if adds else word))
            else:
                self.take(text, setting, exports)
        for name, word in ready:
            state.assign(name, word, exports)
        for word in words[1:]:
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
        """Return the environment of a process behind the assignments ``settings``."""
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
