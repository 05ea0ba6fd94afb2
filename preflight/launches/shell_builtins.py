"""What assignments and the shell's own commands change: variables, arrays, what is exported."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.launches.shell_expansion import ELEMENT_COSTS, Shell
from preflight.launches.shell_tokens import Token
from preflight.launches.shell_words import Assignment
from preflight.launches.source import Origin, Word
from preflight.launches.variables import Variables

# Shell builtins that start no process, and sleep, which changes nothing.
BUILTINS = frozenset(
    "[ . : alias bg bind break caller cd compgen complete compopt continue declare dirs disown "
    "echo enable eval exit export false fc fg getopts hash help history jobs kill let local logout "
    "mapfile popd printf pushd pwd read readarray readonly return set shift shopt sleep source "
    "suspend test times trap true type typeset ulimit umask unalias unset wait".split()
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def take(shell: Shell, token: Token, origin: Origin, exported: bool | None = None) -> None:
    """Take an assignment that stays: ``A=x``, ``A+=x``, ``A=(x y)``."""
    assignment = token.word.assignment if token.word else None
    if assignment is None:
        return
    if token.elements is None:
        shell.assign(assignment.name, assigned(shell, assignment, origin), exported)
        return
    words = [word for element in token.elements for word in shell.expand(element, origin)]
    before = shell.arrays.get(assignment.name, ()) if assignment.adds else ()
    fits = shell.budget.spend(ELEMENT_COSTS * len(before))
    shell.arrays[assignment.name] = (*before, *words) if fits else tuple(words)


def assigned(
    shell: Shell, assignment: Assignment, origin: Origin, variables: Variables | None = None
) -> Word:
    """Return what an assignment makes of its name; ``variables`` hide those of the shell."""
    name, indexed, adds, value = assignment
    kept = shell.variables
    shell.variables = scope = variables or kept
    word = shell.value(value, origin)
    shell.variables = kept
    if indexed:
        return Word(f"${{{name}}}", origin, (name,))
    if adds and (before := scope.get(name)) is not None:
        fits = shell.budget.spend(len(before.text))
        text = before.text + word.text if fits else f"${name}"
        names = (*before.unresolved, *word.unresolved, *(() if fits else (name,)))
        return Word(text, origin, tuple(dict.fromkeys(names)))
    return word


def declare(shell: Shell, words: Sequence[Word], tokens: Sequence[Token], origin: Origin) -> None:
    """Take ``export A=1 B``, ``declare -x``, and their like; or assignments by themselves."""
    exports = None
    if words:
        options = "".join([word.text for word in words[1:] if word.text.startswith("-")])
        exporting = words[0].text == "export" or "x" in options
        exports = exporting and "n" not in options
    # A builtin's words are all expanded before it runs: export A=1 B=$A gives B the old A.
    ready = _expanded(shell, tokens, origin) if words and len(tokens) > 1 else {}
    for index, token in enumerate(tokens):
        at = Origin(origin.source, token.line)
        if index in ready:
            shell.assign(*ready[index], exports or None)
        else:
            take(shell, token, at, exports or None)
    for word in words[1:]:
        name, equals, value = word.text.partition("=")
        if name.startswith("-") or not name:
            continue
        if equals:
            shell.assign(name, word._replace(text=value), exports or None)
        elif words[0].text == "export" and (held := shell.variables.get(name)) is not None:
            shell.assign(name, held, exports)


def _expanded(shell: Shell, tokens: Sequence[Token], origin: Origin) -> dict[int, tuple[str, Word]]:
    """Return by place the plain assignments of ``tokens``, none of which sees another."""
    found: dict[int, tuple[str, Word]] = {}
    for index, token in enumerate(tokens):
        assignment = token.word.assignment if token.word else None
        if assignment is None or token.elements is not None:
            continue
        if not assignment.indexed and not assignment.adds:
            at = Origin(origin.source, token.line)
            found[index] = (assignment.name, assigned(shell, assignment, at))
    return found


def run_builtin(shell: Shell, words: Sequence[Word]) -> None:
    """Take what unset, set and read change; no other builtin changes what a process gets."""
    program, *arguments = [word.text for word in words]
    if program == "unset":
        for name in arguments:
            if not name.startswith("-"):
                shell.assign(name, None)
                shell.arrays.pop(name, None)
    elif program == "set" and "--" in arguments:
        shell.parameters = tuple(words[arguments.index("--") + 2 :])
    elif program == "set" and arguments:
        flags = arguments[0]
        if flags in ("-o", "+o") and arguments[1:2] == ["allexport"]:
            flags = flags[0] + "a"
        if "a" in flags and flags[0] in "-+" and "o" not in flags:
            shell.export_all = flags[0] == "-"
    elif program in ("read", "mapfile", "readarray", "getopts"):
        for name in arguments:
            if _NAME.fullmatch(name):
                shell.assign(name, Word(f"${name}", words[0].origin, (name,)))
