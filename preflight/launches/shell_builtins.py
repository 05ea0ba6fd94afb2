"""What assignments and the shell's own commands change: variables, arrays, what is exported."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from preflight.launches.shell_expansion import ELEMENT_COSTS, Shell, fields
from preflight.launches.shell_tokens import Token
from preflight.launches.shell_words import Assignment, WrittenWord, keyed
from preflight.launches.source import Origin, Word
from preflight.launches.variables import Variables

# Shell builtins that start no process, and sleep, which changes nothing.
BUILTINS = frozenset(
    "[ . : alias bg bind break caller cd compgen complete compopt continue declare dirs disown "
    "echo enable eval exit export false fc fg getopts hash help history jobs kill let local logout "
    "mapfile popd printf pushd pwd read readarray readonly return set shift shopt sleep source "
    "suspend test times trap true type typeset ulimit umask unalias unset wait".split()
)
# Programs that write a text which follows from their words.
TALKS = frozenset("basename cat dirname readlink realpath seq".split())
# Of a longer seq nobody starts a process each.
MOST_NUMBERS = 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def take(shell: Shell, token: Token, origin: Origin, exported: bool | None = None) -> None:
    """Take an assignment that stays: ``A=x``, ``A+=x``, ``A=(x y)``."""
    assignment = token.word.assignment if token.word else None
    if assignment is None:
        return
    if token.elements is None:
        if assignment.indexed or assignment.name in shell.arrays:
            take_element(shell, assignment, assigned(shell, assignment, origin), origin)
        else:
            shell.assign(assignment.name, assigned(shell, assignment, origin), exported)
        return
    if assignment.name in shell.keys or any(keyed(each.pieces) for each in token.elements):
        _take_keyed(shell, assignment, token.elements, origin)
        return
    words = []
    for element in token.elements:
        found = shell.expand(element, origin)
        if any(piece.kind != "text" and not piece.quoted for piece in element.pieces):
            # $(...) may be several elements, or none.
            every = f"${{{assignment.name}[@]}}"
            found = [word._replace(text=every) if word.unresolved else word for word in found]
        words += found
    alone = shell.variables.get(assignment.name)
    scalar = () if alone is None else (alone,)
    before = shell.arrays.get(assignment.name, scalar) if assignment.adds else ()
    fits = shell.budget.spend(ELEMENT_COSTS * len(before))
    shell.assign_array(assignment.name, (*before, *words) if fits else tuple(words))
    if shell.variables.get(assignment.name) is not None:
        shell.assign(assignment.name, None)


def _take_keyed(
    shell: Shell, assignment: Assignment, elements: Sequence[WrittenWord], origin: Origin
) -> None:
    """Take ``A=([k]=x [l]=y)``; the array is not known where a key is not."""
    name = assignment.name
    found = _elements(shell, name) if assignment.adds else {}
    for element in elements:
        pair = keyed(element.pieces)
        key = None if pair is None else shell.value(pair[0], origin)
        known = key is not None and key.text and not key.unresolved
        if pair is None or key is None or not known or not shell.budget.spend(ELEMENT_COSTS):
            shell.lose_array(name, origin)
            return
        found[key.text] = shell.value(pair[1], origin)
    places = [str(place) for place in range(len(found))]
    if name in shell.keys:
        shell.assign_keyed(name, found)
    elif set(places) == set(found):
        shell.assign_array(name, tuple(found[place] for place in places))
    else:
        shell.lose_array(name, origin)


def _elements(shell: Shell, name: str) -> dict[str, Word]:
    """Return the elements of an array by what stands in the brackets, the oldest first."""
    words = shell.arrays.get(name, ())
    keys = shell.keys.get(name) or [str(place) for place in range(len(words))]
    return dict(reversed(list(zip(keys, words, strict=True))))


def _take_key(shell: Shell, assignment: Assignment, word: Word, origin: Origin) -> None:
    """Carry out ``A[key]=x`` of an array that declare -A made."""
    name = assignment.name
    key = shell.key(assignment.place if assignment.indexed else "0", origin)
    found = _elements(shell, name)
    if key is None or not shell.budget.spend(ELEMENT_COSTS * len(found)):
        shell.lose_array(name, origin)
        return
    if assignment.adds and key in found:
        word = word._replace(text=found[key].text + word.text)
    shell.assign_keyed(name, {**found, key: word})


def take_element(shell: Shell, assignment: Assignment, word: Word, origin: Origin) -> None:
    """Carry out ``A[1]=x``, or ``A=x`` of an array, which sets its first element."""
    if assignment.name in shell.keys:
        _take_key(shell, assignment, word, origin)
        return
    elements = list(shell.arrays.get(assignment.name, ()))
    held = shell.variables.get(assignment.name)
    if not elements and held is not None:
        elements = [held]
    place = shell.number(assignment.place, origin) if assignment.indexed else 0
    if place is None or not -len(elements) <= place <= len(elements):
        shell.lose_array(assignment.name, origin)
        return
    if assignment.adds and place < len(elements):
        word = word._replace(text=elements[place].text + word.text)
    elements[place : place + 1 or None] = [word]
    shell.assign_array(assignment.name, tuple(elements))
    if held is not None:
        shell.assign(assignment.name, None)


def written_out(program: str, arguments: Sequence[str]) -> str | None:
    """Return what a program that everybody has writes, of its words alone; None: not known."""
    if program == "echo":
        flag = arguments[0] if arguments and arguments[0] in ("-n", "-e", "-ne", "-en") else ""
        text = " ".join(arguments[1:] if flag else arguments)
        if "\\" in text and "e" in flag:
            return None
        return text if "n" in flag else text + "\n"
    if program == "printf" and arguments[:1] != ["-v"]:
        return printed(arguments)
    plain = [text for text in arguments if text != "--"]
    options = arguments[:1] != ["--"] and any(text.startswith("-") for text in plain)
    if program in ("dirname", "basename") and plain and not options:
        stripped = plain[0].rstrip("/") or "/"
        folder, _, name = stripped.rpartition("/")
        if program == "dirname" and len(plain) == 1:
            return (folder.rstrip("/") or ("/" if "/" in stripped else ".")) + "\n"
        if program == "basename" and len(plain) <= 2:
            name = name or stripped
            suffix = plain[1] if len(plain) == 2 else ""
            return (name.removesuffix(suffix) if name != suffix else name) + "\n"
        return None
    if program in ("realpath", "readlink"):
        paths = [text for text in plain if not text.startswith("-")]
        known = len(paths) == 1 and paths[0].startswith("/")
        return posixpath.normpath(paths[0]) + "\n" if known else None
    if program == "seq" and all(re.fullmatch(r"-?\d{1,9}", text) for text in plain) and plain:
        numbers = [int(text) for text in plain]
        first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1])}.get(
            len(numbers), (numbers[0], numbers[min(1, len(numbers) - 1)], numbers[-1])
        )
        if not step or abs(last - first) // abs(step) > MOST_NUMBERS or len(numbers) > 3:
            return None
        found = range(first, last + (1 if step > 0 else -1), step)
        return "".join(f"{number}\n" for number in found)
    return None


def printed(arguments: Sequence[str]) -> str | None:
    """Return what printf writes of %s, %d and %%, \\n and \\t; None where its format has others."""
    pieces = re.findall(r"%[sd%]|\\[nt\\]|[^%\\]+|.", arguments[0], re.DOTALL) if arguments else []
    takes = [piece for piece in pieces if piece in ("%s", "%d")]
    if not pieces or any(piece in ("%", "\\") for piece in pieces):
        return None
    left, found = list(arguments[1:]), ""
    while True:
        for piece in pieces:
            if piece in ("%s", "%d"):
                value = left.pop(0) if left else "" if piece == "%s" else "0"
                if piece == "%d" and not re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", value):
                    return None
                found += value
            else:
                found += {"%%": "%", "\\n": "\n", "\\t": "\t", "\\\\": "\\"}.get(piece, piece)
        if not left or not takes:
            return found


def assigned(
    shell: Shell, assignment: Assignment, origin: Origin, variables: Variables | None = None
) -> Word:
    """Return what an assignment makes of its name; ``variables`` hide those of the shell."""
    name, indexed, adds, value, _ = assignment
    kept = shell.variables
    shell.variables = scope = variables or kept
    word = shell.value(value, origin)
    shell.variables = kept
    if shell.options.get(f"integer {name}") and not word.unresolved:
        held = scope.get(name) if adds else None
        formula = word.text if held is None else f"({held.text})+({word.text})"
        number = shell.number(formula or "0", origin)
        if number is None:
            return Word(f"${name}", origin, (f"${name}",))
        return word._replace(text=str(number))
    if indexed or (variables is None and name in shell.arrays):
        return word
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
        if "A" in options:
            _declare_keyed(shell, words, tokens)
        if "n" in options and words[0].text != "export":
            _refer(shell, tokens, origin)
            return
        if "i" in options:
            for name in _declared(words, tokens):
                shell.set_option(f"integer {name}", True)
        takes_away = "".join([word.text for word in words[1:] if word.text.startswith("+")])
        for name in _declared(words, tokens) if "i" in takes_away else ():
            shell.set_option(f"integer {name}", None)
        exporting = words[0].text == "export" or "x" in options
        exports = "n" not in options if exporting else False if "x" in takes_away else None
    # A builtin's words are all expanded before it runs: export A=1 B=$A gives B the old A.
    ready = _expanded(shell, tokens, origin) if words and len(tokens) > 1 else {}
    for index, token in enumerate(tokens):
        at = Origin(origin.source, token.line)
        if index in ready:
            shell.assign(*ready[index], exports)
        else:
            take(shell, token, at, exports)
    for word in words[1:]:
        name, equals, value = word.text.partition("=")
        if name.startswith(("-", "+")) or not name:
            continue
        if equals:
            shell.assign(name, word._replace(text=value), exports)
        elif exports is not None and (held := shell.variables.get(name)) is not None:
            shell.assign(name, held, exports)
        elif exports:
            shell.variables.export_later(name)


def _refer(shell: Shell, tokens: Sequence[Token], origin: Origin) -> None:
    """Lose what ``local -n REF=NAME`` ties together: each may be changed by way of the other."""
    for token in tokens:
        assignment = token.word.assignment if token.word else None
        if assignment is None:
            continue
        named = assigned(shell, assignment, origin)
        for name in (assignment.name, named.text):
            if _NAME.fullmatch(name):
                shell.lose_array(name, origin)
                shell.assign(name, Word(f"${name}", origin, (f"${name}",)))


def _declared(words: Sequence[Word], tokens: Sequence[Token]) -> list[str]:
    names = [t.word.assignment.name for t in tokens if t.word and t.word.assignment]
    return [*names, *(word.text for word in words[1:] if _NAME.fullmatch(word.text))]


def _declare_keyed(shell: Shell, words: Sequence[Word], tokens: Sequence[Token]) -> None:
    for name in _declared(words, tokens):
        if name not in shell.keys:
            shell.assign_keyed(name, {})


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


def folder_of(shell: Shell) -> str | None:
    """Return the folder that a shell is in, where it is known."""
    word = shell.variables.get("PWD")
    known = word is not None and not word.unresolved and word.text.startswith("/")
    return word.text if word is not None and known else None


def enter(shell: Shell, words: Sequence[Word]) -> None:
    """Set PWD and OLDPWD as cd, pushd and popd do."""
    before = shell.variables.get("PWD")
    left = shell.arrays.get("DIRSTACK", ())  # without the folder that the shell is in
    plain = [word for word in words[1:] if word.text not in ("-L", "-P", "-e", "-@", "--")]
    to = plain[-1] if plain else shell.variables.get("HOME")
    if to is not None and to.text == "-":
        to = shell.variables.get("OLDPWD")
    rotates = words[0].text == "pushd" and not plain
    if words[0].text == "popd" and not plain and left:
        to, left = left[0], left[1:]
    elif to is None or rotates or words[0].text == "popd" or to.text.startswith(("+", "-")):
        said = " ".join(word.text for word in words)
        to = Word("$PWD", words[0].origin, (f"the folder after {said}",))
    elif not to.unresolved and not to.text.startswith("/"):
        base = before or Word("$PWD", to.origin, ("PWD",))
        doubts = (*base.doubts, *to.doubts)
        to = Word(f"{base.text}/{to.text}", to.origin, base.unresolved, doubts)
    if not to.unresolved:
        to = to._replace(text=posixpath.normpath(to.text))
    if words[0].text == "pushd":
        left = (before or Word("$PWD", to.origin, ("PWD",)), *left)
    if words[0].text != "cd":
        shell.assign_array("DIRSTACK", left)
    shell.assign("OLDPWD", before)
    shell.assign("PWD", to)


def names_of(shell: Shell, path: str) -> tuple[str, ...]:
    """Return a path as it is written, and the other name that a shell's folder gives it."""
    folder = folder_of(shell)
    if folder is None:
        return (path,)
    if path.startswith("/"):
        inside = path.removeprefix(f"{folder}/")
        return (path,) if inside == path else (path, inside)
    return path, posixpath.normpath(f"{folder}/{path}")


def take_option(shell: Shell, words: Sequence[Word]) -> bool | None:
    """Carry out ``getopts SPEC NAME``; return whether an option was there, None: not known."""
    given = tuple(words[3:]) or shell.parameters
    place = shell.variables.get("OPTIND")
    if len(words) < 3 or given is None or (place is not None and not place.text.isdecimal()):
        return None
    at = int(place.text) if place is not None else 1
    spec, name, origin = words[1].text, words[2].text, words[0].origin
    if any(word.unresolved for word in (*words, *given[: at + 1])):
        return None
    argument = given[at - 1].text if 0 < at <= len(given) else ""
    begun, shell.option = shell.option, (0, 0)
    letter = begun[1] if begun[0] == at else 1
    found, value, behind = "?", None, at
    if argument == "--" or argument[:1] != "-" or len(argument) < 2:
        there, behind = False, at + (argument == "--")
    else:
        there, found = True, argument[letter]
        ended = letter + 1 == len(argument)
        behind = at + ended
        shell.option = (0, 0) if ended else (at, letter + 1)
        takes = spec.find(found, 1 if spec[:1] == ":" else 0)
        if found == ":" or takes < 0:
            found, value = "?", found if spec[:1] == ":" else None
        elif spec[takes + 1 : takes + 2] == ":":
            shell.option = (0, 0)
            behind = at + 1 + ended
            if ended and at >= len(given):
                found, value = (":", found) if spec[:1] == ":" else ("?", None)
                behind = at + 1
            else:
                value = given[at].text if ended else argument[letter + 1 :]
    shell.assign(name, Word(found, origin))
    shell.assign("OPTARG", None if value is None else Word(value, origin))
    shell.assign("OPTIND", Word(str(behind), origin))
    return there


def take_line(shell: Shell, words: Sequence[Word], given: Word, ends: str) -> bool | None:
    """Carry out ``read -r A B``; return whether a whole line was there, None: not known.

    given: what is left to read. ends: the characters that end a field.
    """
    flags, names, whole = "", [], False
    left = list(words[1:])
    while left:
        word = left.pop(0)
        if word.text == "-d" and left:
            whole = not left.pop(0).text
            flags += "" if whole else "d"
        elif word.text == "-p" and left:
            left.pop(0)
        elif word.text.startswith("-"):
            flags += word.text[1:]
        else:
            names.append(word.text)
    line, end, _ = (given.text, "", "") if whole else given.text.partition("\n")
    if given.unresolved or set(flags) - set("ra") or ("\\" in line and "r" not in flags):
        return None
    if not names:
        shell.assign("REPLY", given._replace(text=line))
    elif "a" in flags:
        shell.assign_array(names[0], tuple(given._replace(text=f) for f in fields(line, ends)))
    else:
        for name, text in zip(names, fields(line, ends, len(names)), strict=True):
            shell.assign(name, given._replace(text=text))
    return bool(end)


def take_lines(shell: Shell, words: Sequence[Word], given: Word) -> bool:
    """Carry out ``mapfile -t NAME``; return whether that is known."""
    flags = [word.text for word in words[1:] if word.text.startswith("-")]
    names = [word.text for word in words[1:] if not word.text.startswith("-")]
    known = len(names) < 2 and set(flags) <= {"-t"} and not given.unresolved
    if known:
        lines = given.text.split("\n")
        lines = lines[:-1] if not lines[-1] else lines
        lines = lines if flags else [f"{line}\n" for line in lines]
        name = names[0] if names else "MAPFILE"
        shell.assign_array(name, tuple(given._replace(text=line) for line in lines))
        shell.assign(name, None)
    return known


# What is followed of what set switches: the letter, its long name, and what it is here.
_OPTIONS = (
    ("a", "allexport", "allexport", True),
    ("e", "errexit", "errexit", True),
    ("f", "noglob", "globs", False),
)


def _set_options(shell: Shell, arguments: Sequence[str]) -> None:
    """Carry out ``set -euo pipefail -f``."""
    long = 0  # how many long names are to come
    on = True
    for text in arguments:
        if text[:1] in ("-", "+") and len(text) > 1:
            on = text[0] == "-"
            long += text.count("o")
            given = set(text[1:])
        elif long:
            long -= 1
            given = {text}
        else:
            break  # what is left are parameters
        for letter, name, option, value in _OPTIONS:
            if letter in given or name in given:
                shell.set_option(option, value if on else not value)


def run_builtin(shell: Shell, words: Sequence[Word]) -> None:
    """Take what unset, set and read change; no other builtin changes what a process gets."""
    program, *arguments = [word.text for word in words]
    if program == "unset":
        for name in arguments if "-f" not in arguments else ():
            array, bracket, _ = name.partition("[")
            if bracket and array in shell.arrays:
                shell.lose_array(array, words[0].origin)
            elif not name.startswith("-"):
                shell.assign(name, None, exported=False)
                shell.assign_keyed(name, None)
    elif program == "set":
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        _set_options(shell, options)
        if "--" in arguments:
            shell.give_parameters(tuple(words[arguments.index("--") + 2 :]))
    elif program == "printf" and len(arguments) > 2 and arguments[0] == "-v":
        text = printed(arguments[2:]) if not any(word.unresolved for word in words) else None
        name = arguments[1]
        known = Word(text, words[0].origin) if text is not None else None
        shell.assign(name, known or Word(f"${name}", words[0].origin, (f"${name}",)))
    elif program in ("read", "mapfile", "readarray", "getopts"):
        flags = "".join(text for text in arguments if text.startswith("-"))
        lists = program in ("mapfile", "readarray") or (program == "read" and "a" in flags)
        for name in arguments:
            if not _NAME.fullmatch(name):
                continue
            if lists:
                shell.assign(name, None)
                shell.lose_array(name, words[0].origin)
                continue
            if name in shell.arrays:
                shell.assign_array(name, None)
            shell.assign(name, Word(f"${name}", words[0].origin, (f"${name}",)))
