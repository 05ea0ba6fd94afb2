"""What a shell holds while its script goes on: variables, arrays, limits, options, functions.

Every change is kept with the value before: a subshell, or a branch that nothing decides, is taken
back by its mark.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from checks.framework.needs import SetLimit
from checks.framework.unknown import Unknown
from preflight.launches.source import Origin, SourceNote, Word, brief
from preflight.launches.variables import State, Variables

# Characters that all expansions of one reading may add: ``A=$A$A`` in a row doubles each time.
LARGEST_EXPANSION = 2**20
# An element of an array, or a command that is read again, costs as much as so many characters.
ELEMENT_COSTS = 32
BLANKS = " \t\n"
# Of more conditions than this the first few are named.
_MOST_DOUBTS = 4
# What is not a setting of a launch: where the shell is, and how it looks for programs.
_OF_SHELL = frozenset("IFS OLDPWD PATH PWD LD_LIBRARY_PATH PYTHONPATH".split())
_MOST_VALUES = 6
NOTHING, _OR = "nothing", " or "

# A kind of value (variable, array, odd, limit, option, parameters), and its name.
Key = tuple[str, str]
Changes = dict[Key, object]


class ExpansionBudget:
    """Characters that expansions may still add, in a reading and all that it reads inside."""

    def __init__(self) -> None:
        self.left = LARGEST_EXPANSION

    def spend(self, characters: int) -> bool:
        """Take so many characters; return False if there are not so many left."""
        self.left -= characters
        return self.left >= 0


class ShellState:
    """The state of one shell.

    output: gives what ``$(...)`` writes, None if that is not known.
    """

    def __init__(self, variables: Variables, budget: ExpansionBudget, name: str = "") -> None:
        """Start a shell that has ``variables``; ``name`` is its $0."""
        self.variables = variables
        self.starts_in = variables.get("PWD")
        self.budget = budget
        self.name = name  # $0
        self.values: Changes = {}
        self.defaults = 0  # how often a default stood in for a variable that nothing sets
        self.asking = False  # a condition is read: ``${A:-}`` is as open there as ``$A``
        self.output: Callable[[str, Origin], Word | None] = lambda text, origin: None
        self._changes: list[tuple[Key, object]] = []

    # What is held

    def current(self, key: Key) -> object:
        """Return the value of a key now, or None."""
        return self.variables.state_now(key[1]) if key[0] == "variable" else self.values.get(key)

    def change(self, key: Key, value: object) -> None:
        """Set the value of a key (None: take it away), and remember the value before."""
        self._changes.append((key, self.current(key)))
        self._put(key, value)

    def _put(self, key: Key, value: object) -> None:
        """Set or take away the value of a key, without keeping the one before."""
        if key[0] == "variable":
            self.variables.restore(key[1], value)  # type: ignore[arg-type]
        elif value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def mark(self) -> int:
        """Return a mark to come back to."""
        return len(self._changes)

    def back_to(self, mark: int) -> None:
        """Take back every change since ``mark``."""
        while len(self._changes) > mark:
            self._put(*self._changes.pop())

    def changed(self, mark: int) -> Changes:
        """Return the keys that were changed since ``mark``, each with its value now."""
        return {key: self.current(key) for key, _ in self._changes[mark:]}

    def values_before(self, mark: int) -> Changes:
        """Return the keys that were changed since ``mark``, each with its value at the mark."""
        values: Changes = {}
        for key, value in self._changes[mark:]:
            values.setdefault(key, value)
        return values

    def change_in_doubt(self, key: Key, value: object, doubts: tuple[SourceNote, ...]) -> None:
        """Set a key to the value that several branches leave, when it is not known which one runs.

        Args:
            doubts: Why the value is uncertain, put on each changed word; () if the branches agree.
                With doubts a limit is followed by an unknown one, and parameters become unknown.
        """
        if key[0] == "limit" and doubts:  # the limit of another way may be the last one
            why = Unknown(doubts[-1].text)
            other = SetLimit(key[1], why, why, str(doubts[-1].origin))
            value = (*(self.values.get(key) or ()), other)  # type: ignore[misc]
        elif key[0] == "parameters" and doubts:
            value = None
        elif key[0] == "variable" and value is not None:
            state: State = value  # type: ignore[assignment]
            value = (state[0] and with_doubts(state[0], doubts), state[1])
        elif key[0] == "array" and isinstance(value, tuple):
            old = self.array(key[1]) or ()
            value = tuple(
                word if word in old[place : place + 1] else with_doubts(word, doubts)
                for place, word in enumerate(value)
            )
        self.change(key, value)

    # Variables, arrays, parameters

    def assign(self, name: str, word: Word | None, exported: bool | None = None) -> None:
        """Set a variable, or with None take it away.

        Args:
            exported: None for no change of that.
        """
        if self.option("allexport") and word is not None:
            exported = True
        self._changes.append((("variable", name), self.variables.state_now(name)))
        self.variables.put(name, word, exported)

    def array(self, name: str) -> tuple[Word, ...] | None:
        return self.values.get(("array", name))  # type: ignore[return-value]

    def assign_array(self, name: str, elements: tuple[Word, ...] | None) -> None:
        self.change(("array", name), elements)

    def lose(self, name: str, origin: Origin, array: bool = False) -> None:
        """Make the value of a name unknown.

        Args:
            array: The name is an array, even if not set so far.
        """
        if array or self.array(name) is not None:
            lost = Word(f"${{{name}[@]}}", origin, (f"${name}",), several=True)
            self.assign_array(name, (lost,))
            if self.variables.get(name) is not None:
                self.assign(name, None)
        else:
            self.assign(name, Word(f"${name}", origin, (f"${name}",)))

    @property
    def parameters(self) -> tuple[Word, ...] | None:
        """Return ``$1``, ``$2`` and so on; None if they are the script's own, and not known."""
        return self.values.get(("parameters", ""))  # type: ignore[return-value]

    def give_parameters(self, argv: tuple[Word, ...] | None) -> None:
        self.change(("parameters", ""), argv)

    def parameter(self, number: int) -> Word | None:
        """Return the parameter ``$number``; for 0 the script's name.

        Behind a word that may be several, an unresolved word. If there are fewer parameters, a word
        without text whose origin is "shell".

        Returns:
            None if the script's own are not known.
        """
        if not number:
            return Word(self.name, Origin("shell")) if self.name else None
        for index, word in enumerate((self.parameters or ())[:number], start=1):
            if word.several:
                of_script = word.unresolved[0] in ("$@", "$*")
                return None if of_script else Word(f"${number}", word.origin, word.unresolved)
            if index == number:
                return word
        return None if self.parameters is None else Word("", Origin("shell"))

    # Options, limits, folders

    def option(self, name: str) -> bool:
        """Tell whether an option is on: allexport, errexit, noglob."""
        return self.values.get(("option", name)) is True

    def limits(self) -> tuple[SetLimit, ...]:
        """Return the limits that the script has set so far; those of one name stand in order."""
        each = [value for (value_kind, _), value in self.values.items() if value_kind == "limit"]
        return tuple(limit for limits in each for limit in limits)  # type: ignore[attr-defined]

    def set_limit(self, limit: SetLimit) -> None:
        before: tuple[SetLimit, ...] = self.values.get(("limit", limit.name)) or ()  # type: ignore[assignment]
        self.change(("limit", limit.name), (*before, limit))

    def field_ends(self) -> str | None:
        """Return the characters that end a word of an expansion; None if they are not known."""
        word = self.variables.get("IFS")
        return BLANKS if word is None else None if word.unresolved else word.text

    def folder(self) -> str | None:
        """Return the folder that the shell is in, None if it is not known."""
        word = self.variables.get("PWD")
        known = word is not None and not word.unresolved and word.text.startswith("/")
        return word.text if word is not None and known else None

    def path(self, name: str) -> str | None:
        """Return ``name``, a path in the shell's folder now, as a path from the folder in which the
        script starts.

        None behind a cd to a folder that is not known.
        """
        now = self.variables.get("PWD")
        if now is None or now == self.starts_in or name.startswith(("/", "~")):
            return name
        return None if now.unresolved else posixpath.join(now.text, name)

    def names_of(self, path: str) -> tuple[str, ...]:
        """Return a file's names: ``path`` as it is written, and its other form, absolute or
        relative, if the shell's folder is known.
        """
        folder = self.folder()
        if folder is None:
            return (path,)
        inside = path.removeprefix(f"{folder}/")
        other = inside if path.startswith("/") else posixpath.normpath(f"{folder}/{path}")
        return tuple(dict.fromkeys((path, other)))

    def enter(self, argv: Sequence[Word]) -> None:
        """Carry out cd, pushd or popd: set PWD and OLDPWD.

        Behind popd, and pushd without a folder, PWD is unknown.
        """
        before = self.variables.get("PWD")
        plain = [word for word in argv[1:] if word.text not in ("-L", "-P", "-e", "-@", "--")]
        to = plain[-1] if plain else self.variables.get("HOME")
        if to is not None and to.text == "-":
            to = self.variables.get("OLDPWD")
        turns = argv[0].text == "popd" or (argv[0].text == "pushd" and not plain)
        if to is None or turns or to.text.startswith(("+", "-")):
            command = " ".join(word.text for word in argv)
            to = Word("$PWD", argv[0].origin, (f"the folder after {command}",))
        elif not to.unresolved and not to.text.startswith("/"):
            base = before or Word("$PWD", to.origin, ("PWD",))
            doubts = (*base.doubts, *to.doubts)
            to = Word(f"{base.text}/{to.text}", to.origin, base.unresolved, doubts)
        if not to.unresolved:
            to = to._replace(text=posixpath.normpath(to.text))
        self.assign("OLDPWD", before)
        self.assign("PWD", to)


def with_doubts(word: Word, doubts: tuple[SourceNote, ...]) -> Word:
    """Return the word, marked as dependent on the conditions that are not known."""
    return word._replace(doubts=first_doubts((*word.doubts, *doubts))) if doubts else word


def first_doubts(doubts: tuple[SourceNote, ...]) -> tuple[SourceNote, ...]:
    """Return some doubts, each once, but no more than a message can name."""
    return tuple(dict.fromkeys(doubts))[:_MOST_DOUBTS]


def comparable(value: object) -> object:
    """Return a value for a comparison: of each word its text and unresolved names alone."""
    if isinstance(value, Word):
        return value.text, value.unresolved
    return tuple(comparable(item) for item in value) if isinstance(value, tuple) else value


def doubts_of(value: object) -> tuple[SourceNote, ...]:
    """Return the doubts of all words of a value, or of several values."""
    if isinstance(value, Word):
        return value.doubts
    if isinstance(value, SetLimit) or not isinstance(value, tuple | list):
        return ()
    return tuple(dict.fromkeys(doubt for item in value for doubt in doubts_of(item)))


def merge_values(key: Key, values: Sequence[object], last: object) -> object:
    """Return one value of a key in place of all ``values``; ``last`` if they cannot be merged.

    A variable becomes an unknown word, named by all its values. An array of flags has the flags of
    all values, and an unknown value for a flag if they differ.
    """
    value_kind, name = key
    if value_kind == "variable" and name not in _OF_SHELL:
        choices = [value[0] if value else None for value in values]  # type: ignore[index]
        # One that is not quoted may be no word, a flag, a setting or several.
        texts = [word.text for word in choices if word is not None]
        loose = any(not text or re.search(r"\s|^-|^\w+=", text) for text in texts)
        word = None if loose else _merge_words(choices, f"${{{name}}}")
        return last if word is None else (word, last[1] if last else True)  # type: ignore[index]
    if value_kind == "array":
        flags = _merge_flags(values, name)
        return last if flags is None else flags
    return last


def _merge_words(choices: Sequence[Word | None], written: str, front: str = "") -> Word | None:
    """Return an unknown word with the text ``written`` that covers all ``choices``, and is named
    ``a or b``.

    A choice of None is no word.

    Args:
        front: A ``--flag=`` in front of each.

    Returns:
        None if a choice is not known, or if they are too many.
    """
    first = next((word for word in choices if word is not None), None)
    texts: list[str] = []
    for word in choices:
        text = "" if word is None else word.text.removeprefix(front)
        if word is None:
            texts.append(NOTHING)
        elif not word.unresolved:
            texts.append(brief(text) or "''")
        elif text == written and len(word.unresolved) == 1:
            texts += word.unresolved[0].split(_OR)
        else:
            return None
    several = sorted(dict.fromkeys(texts), key=lambda each: each == NOTHING)
    if first is None or len(several) > _MOST_VALUES:
        return None
    name = _OR.join(several)
    doubts = doubts_of(tuple(choices))
    return first._replace(text=f"{front}{written}", unresolved=(name,), doubts=first_doubts(doubts))


def _merge_flags(values: Sequence[object], name: str) -> tuple[Word, ...] | None:
    """Merge an array of flags over several branches: it has the flags of all, and an unknown value
    for a flag if they differ.

    Args:
        name: Of the array.

    Returns:
        None if such values cannot be merged, or if a value is no list of flags.
    """
    groups = [_words_by_flag(value or ()) for value in values]  # type: ignore[arg-type]
    known = [each for each in groups if each is not None]
    if len(known) < len(groups):
        return None
    together: list[Word] = []
    for flag in dict.fromkeys(flag for each in known for flag in each):
        each_way = [each.get(flag, []) for each in known]
        most = max(each_way, key=len)
        if all(comparable(tuple(each)) == comparable(tuple(each_way[0])) for each in each_way):
            together += most
            continue
        attached = "=" in most[0].text
        place = 0 if attached else 1
        choices = [each[place] if len(each) > place else None for each in each_way]
        word = _merge_words(choices, f"${{{name}[{flag}]}}", f"{flag}=" if attached else "")
        if len(most) > place + 1 or (word is None and most[place:]):
            return None
        together += [*most[:place], *filter(None, [word])]
    return tuple(together)


def _words_by_flag(array: Sequence[Word]) -> dict[str, list[Word]] | None:
    """Return flag -> the words of that flag: ``--flag`` itself and the words behind it.

    Returns:
        None if the array does not begin with a flag, if a flag comes twice, or if a word may be
        several.
    """
    groups: dict[str, list[Word]] = {}
    flag = ""
    for word in array:
        if word.text.startswith("-") and not word.unresolved:
            flag = word.flag
            if flag in groups:
                return None
            groups[flag] = []
        if not flag or word.several:
            return None
        groups[flag].append(word)
    return groups
