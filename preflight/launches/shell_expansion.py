"""What written words become once variables are known: none, one, or several words each."""

from __future__ import annotations

import fnmatch
import glob
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from checks.base.needs import SetLimit
from checks.base.unknown import Inside, Unknown
from preflight.launches.shell_arithmetic import arithmetic, names_set
from preflight.launches.shell_patterns import (
    braced,
    expression,
    glob_of,
    is_glob,
    is_wild,
    pattern,
    replaced,
    without,
)
from preflight.launches.shell_words import (
    Piece,
    UnterminatedError,
    WordScanner,
    WrittenWord,
    written,
)
from preflight.launches.source import Origin, SourceNote, Word, both_inside
from preflight.launches.variables import State, Variables

# Characters that all expansions of one reading may add: ``A=$A$A`` in a row doubles each time.
LARGEST_EXPANSION = 2**20

# An element of an array costs as much as so many characters.
ELEMENT_COSTS = 32

# A pattern is followed through so many folders.
_MOST_FOLDERS = 32
_BLANKS = " \t\n"
_PARAMETER = re.compile(
    r"\$\{([#!]?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#])(?:\[([^\[\]]*)\])?(.*)\}", re.DOTALL
)
_OPERATOR = re.compile(r"##?|%%?|//|/#|/%|/|\^\^?|,,?|:?[-+=?]|:")
_ALL_OF_IT = re.compile(r"\$[@*]|\$\{[@*]|\$\{!?\w+\[@\]")
_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}


class ExpansionBudget:
    """Characters that expansions may still add, in a reading and all that it reads inside."""

    def __init__(self) -> None:
        self.left = LARGEST_EXPANSION

    def spend(self, characters: int) -> bool:
        self.left -= characters
        return self.left >= 0


class Shell:
    """What a shell holds while its script goes on: variables, arrays, and what it exports.

    Every change is kept with what was there before: a subshell, or a branch that nothing decides,
    is taken back by its mark.
    """

    def __init__(self, variables: Variables, budget: ExpansionBudget) -> None:
        self.variables = variables
        self.starts_in = variables.get("PWD")
        self.budget = budget
        self.arrays: dict[str, tuple[Word, ...]] = {}
        self.keys: dict[str, tuple[str, ...]] = {}  # of the arrays that declare -A made
        # $1, $2, ...: a function's or those that set gave; None for those of the script itself.
        self.parameters: tuple[Word, ...] | None = None
        self.limits: dict[str, tuple[SetLimit, ...]] = {}  # by name, in the order of ulimit
        self.name = ""  # $0
        self.option = (0, 0)  # where getopts is among several letters: its OPTIND, and the letter
        # set -a, set -e; whether it looks for files (None: in a way of its own), and case counts.
        # "integer A": declare -i made it arithmetic.
        self.options: dict[str, bool | None] = {
            "allexport": False,
            "errexit": False,
            "globs": True,
            "case": True,
        }
        self.touched: list[str] = []  # words of programs that may make files or take them away
        # What $(...) writes, where that is known; the reader of the script puts its own in here.
        self.output: Callable[[str, Origin], Word | None] = lambda text, origin: None
        self.host_words: Callable[[str], str | None] = lambda command: None
        # The files that a pattern matches in a folder below the one where the script starts, or is;
        # None for what does not lie here.
        self.listed: Callable[[str, str], Sequence[str] | None] = lambda folder, pattern: None
        self._changes: list[tuple[str, str, object]] = []  # kind, name, what it was

    def assign(self, name: str, word: Word | None, exported: bool | None = None) -> None:
        if self.options["allexport"] and word is not None:
            exported = True
        self._changes.append(("variable", name, self.variables.state_now(name)))
        self.variables.put(name, word, exported)

    def set_option(self, name: str, value: bool | None) -> None:
        self._changes.append(("option", name, self.options.get(name)))
        self.options[name] = value

    def assign_array(self, name: str, words: tuple[Word, ...] | None) -> None:
        self._changes.append(("array", name, self.arrays.get(name)))
        self._put_array(name, words)

    def assign_keyed(self, name: str, elements: Mapping[str, Word] | None) -> None:
        """Set an array that declare -A makes, its elements in the order in which they came."""
        newest_first = list(elements or {})[::-1]
        order = sorted(newest_first, key=_bucket)
        self._changes.append(("keys", name, self.keys.get(name)))
        self._put_keys(name, None if elements is None else tuple(order))
        words = None if elements is None else tuple(elements[key] for key in order)
        self.assign_array(name, words)

    def lose_array(self, name: str, origin: Origin) -> None:
        """Keep of an array that neither its elements are known nor their number."""
        self.assign_keyed(name, None)
        self.assign_array(name, (Word(f"${{{name}[@]}}", origin, (f"${name}",), several=True),))

    def key(self, text: str, origin: Origin) -> str | None:
        """Return what stands in the brackets behind an array that declare -A made.

        None where that is not known, or empty, which bash refuses.
        """
        pieces = _operand(text, False)
        word = None if pieces is None else self.value(pieces, origin)
        return None if word is None or word.unresolved else word.text or None

    def give_parameters(self, words: tuple[Word, ...] | None) -> None:
        self._changes.append(("parameters", "", self.parameters))
        self.parameters = words

    def _put_array(self, name: str, words: object) -> None:
        if isinstance(words, tuple):
            self.arrays[name] = words
        else:
            self.arrays.pop(name, None)

    def _put_keys(self, name: str, keys: object) -> None:
        if isinstance(keys, tuple):
            self.keys[name] = keys
        else:
            self.keys.pop(name, None)

    def field_ends(self) -> str | None:
        """Return the characters that end a word of an expansion; None where they are not known."""
        word = self.variables.get("IFS")
        return _BLANKS if word is None else None if word.unresolved else word.text

    def mark(self) -> int:
        """Return a mark to come back to."""
        return len(self._changes)

    def back_to(self, mark: int) -> None:
        """Take back every change since ``mark``."""
        while len(self._changes) > mark:
            kind, name, before = self._changes.pop()
            if kind == "variable":
                self.variables.restore(name, before)  # type: ignore[arg-type]
            elif kind == "array":
                self._put_array(name, before)
            elif kind == "keys":
                self._put_keys(name, before)
            elif kind == "limit":
                self.limits[name] = before  # type: ignore[assignment]
            elif kind == "option":
                self.options[name] = before  # type: ignore[assignment]
            else:
                self.parameters = before  # type: ignore[assignment]

    def changed(self, mark: int) -> dict[tuple[str, str], object]:
        """Return what was changed since ``mark``, by kind and name, as it is now."""
        return {(kind, name): self.current(kind, name) for kind, name, _ in self._changes[mark:]}

    def before(self, mark: int) -> dict[tuple[str, str], object]:
        """Return what was changed since ``mark``, by kind and name, as it was then."""
        found: dict[tuple[str, str], object] = {}
        for kind, name, value in self._changes[mark:]:
            found.setdefault((kind, name), value)
        return found

    def current(self, kind: str, name: str) -> object:
        if kind == "variable":
            return self.variables.state_now(name)
        if kind == "limit":
            return self.limits.get(name, ())
        if kind == "keys":
            return self.keys.get(name)
        if kind == "option":
            return self.options.get(name)
        return self.arrays.get(name) if kind == "array" else self.parameters

    def set_limit(self, limit: SetLimit) -> None:
        now = (*self.limits.get(limit.name, ()), limit)
        self.change("limit", limit.name, now, ())

    def must(self, limits: Sequence[SetLimit]) -> None:
        """Mark limits without which a script ends: one of these that is refused ends it."""
        for one in limits:
            now = self.limits.get(one.name, ())
            now = tuple(each._replace(must=each.must or each is one) for each in now)
            self.change("limit", one.name, now, ())

    def change(self, kind: str, name: str, value: object, doubts: tuple[SourceNote, ...]) -> None:
        """Keep a change of a branch that may not run; its words carry the reason."""
        self._changes.append((kind, name, self.current(kind, name)))
        if kind == "variable":
            state: State | None = value  # type: ignore[assignment]
            if state is not None and state[0] is not None:
                state = (doubted(state[0], doubts), state[1])
            self.variables.restore(name, state)
        elif kind == "array":
            before = self.arrays.get(name, ())
            words = tuple(
                word if word in before[place : place + 1] else doubted(word, doubts)
                for place, word in enumerate(value if isinstance(value, tuple) else ())
            )
            self._put_array(name, words if isinstance(value, tuple) else None)
        elif kind == "keys":
            self._put_keys(name, value)
        elif kind == "option":
            self.options[name] = value  # type: ignore[assignment]
        elif kind == "limit":
            held: tuple[SetLimit, ...] = value  # type: ignore[assignment]
            why = Unknown(doubts[-1].text) if doubts else None
            if why is not None:  # that of another way may be the last one
                other = SetLimit(name, why, why, str(doubts[-1].origin))
                held = (*self.limits.get(name, ()), other)
            self.limits[name] = held
        else:
            self.parameters = None if doubts else value  # type: ignore[assignment]

    def parameter(self, number: int) -> Word | None:
        """Return the value of ``$1``: a word without text where there is none.

        None for a parameter of the script itself, which is not known.
        """
        if not number:
            return Word(self.name, Origin("shell")) if self.name else None
        for index, word in enumerate((self.parameters or ())[:number], start=1):
            if word.several:
                own = word.unresolved[0] in ("$@", "$*")
                return None if own else Word(f"${number}", word.origin, word.unresolved)
            if index == number:
                return word
        return None if self.parameters is None else Word("", Origin("shell"))

    def expand(self, word: WrittenWord, origin: Origin, files: bool = True) -> list[Word]:
        """Return the words that a written word becomes. files: a pattern becomes names of files."""
        first = word.pieces[0] if len(word.pieces) == 1 and not word.braces else None
        stays = first is not None and (first.quoted or not files or not is_glob(first.text))
        if first is not None and first.kind == "text" and stays:
            return [Word(first.text, origin)]  # most are so
        if word.braces:
            several = braced(word.pieces)
            if several is None or not self.budget.spend(ELEMENT_COSTS * len(several)):
                return [Word(written(word.pieces), origin, ("{...}",), several=True)]
        else:
            several = [list(word.pieces)]
        found: list[Word] = []
        for pieces in several:
            expansion = _Expansion(self, origin, split=True, files=files)
            expansion.add(pieces, inner=False)
            expansion.close()
            found += expansion.words
        return found

    def files_of(self, word: Word, parts: Sequence[tuple[str, bool]]) -> list[Word]:
        """Return the words that a word becomes where it is a pattern of file names.

        parts: its texts, and whether each is quoted. What may lie elsewhere, or comes about later,
        is not known.
        """
        looks, found = self.options["globs"], glob_of(parts)
        if looks is False or word.unresolved or found == glob.escape(word.text):
            return [word]
        open_ = word._replace(unresolved=(f"what {word.text} matches",), several=True)
        folder = path_from(self, "")
        usual = looks and self.variables.get("GLOBIGNORE") is None
        if not usual or found is None or found.count("/") > _MOST_FOLDERS:
            return [open_]
        names = None if folder is None else self.listed(folder, found)
        if names and self.budget.spend(ELEMENT_COSTS * len(names)):
            # What ran before may have made such a file, or removed it.
            return [open_] if self._touches(found) else [word._replace(text=n) for n in names]
        # A flag, or an address, is no file's name.
        plain = not is_wild(parts) or word.text.startswith("-") or "://" in word.text
        return [word] if not names and plain else [open_]

    def _touches(self, found: str) -> bool:
        """Return whether a program in front was told of a file that a pattern matches."""
        name = re.compile(fnmatch.translate(found.rpartition("/")[2]))
        paid = self.budget.spend(len(self.touched))
        return not paid or any(name.match(text.rpartition("/")[2]) for text in self.touched)

    def value(self, pieces: Sequence[Piece], origin: Origin) -> Word:
        """Return the word that stands behind an assignment's ``=``, or in a heredoc."""
        expansion = _Expansion(self, origin, split=False)
        expansion.add(pieces, inner=False)
        expansion.close()
        return expansion.words[0]

    def pattern(self, pieces: Sequence[Piece], origin: Origin) -> re.Pattern[str] | Word | None:
        """Return a pattern; the word where a name in it is not known, None for one not read."""
        parts = self._parts(pieces, origin)
        if isinstance(parts, Word):
            return parts
        return pattern(parts) if self.options["case"] else None

    def expression(self, pieces: Sequence[Piece], origin: Origin) -> re.Pattern[str] | Word | None:
        """Return the same of a regular expression, as ``=~`` reads it."""
        parts = self._parts(pieces, origin)
        if isinstance(parts, Word):
            return parts
        return expression(parts) if self.options["case"] else None

    def _parts(self, pieces: Sequence[Piece], origin: Origin) -> list[tuple[str, bool]] | Word:
        """Return texts and whether each is quoted; the word where a name in it is not known."""
        parts: list[tuple[str, bool]] = []
        for piece in pieces:
            if piece.kind == "text":
                parts.append((piece.text, piece.quoted))
                continue
            word = self.value([piece], origin)
            if word.unresolved:
                return word
            parts.append((word.text, piece.quoted))
        return parts

    def open_names(self, formula: str) -> tuple[str, ...]:
        """Return the variables of a formula whose values are not known.

        Those that the script itself sets are ``$NAME``: nothing in front of it gives them.
        """
        found: list[str] = []
        for name in re.findall(r"[A-Za-z_]\w*", formula):
            word = self.variables.get(name)
            if word is None and not self.variables.was_unset(name) and name not in self.arrays:
                found.append(name)
            elif word is not None:
                found += [each if each == name else f"${name}" for each in word.unresolved]
        return tuple(dict.fromkeys(found))

    def number(self, formula: str, origin: Origin, assigns: bool = False) -> int | None:
        """Return what ``$((...))`` comes to; None leaves what it sets not known either."""
        number = self._number(formula, origin, assigns)
        if number is None and assigns:
            self.lose_set(formula, origin)
        return number

    def lose_set(self, formula: str, origin: Origin) -> None:
        """Keep of what a formula sets that its value is not known."""
        for name, element in names_set(formula).items():
            if element:
                self.lose_array(name, origin)
            else:
                self.assign(name, Word(f"${name}", origin, (f"${name}",)))

    def _number(self, formula: str, origin: Origin, assigns: bool) -> int | None:
        if "$" in formula or "`" in formula:
            pieces = _pieces(formula)
            text = None if pieces is None else self.value(pieces, origin)
            if text is None or text.unresolved:
                return None
            formula = text.text

        def known(name: str) -> str | None:
            word = self.variables.get(name)
            if word is None:
                return "" if self.variables.was_unset(name) else None
            return None if word.unresolved else word.text

        def assign(name: str, value: int) -> None:
            self.assign(name, Word(str(value), origin))

        return arithmetic(formula, known, assign if assigns else None)


def may_be_several(text: str) -> bool:
    """Return whether a text that is not known may be several words, though quotes stand around."""
    return _ALL_OF_IT.search(text) is not None


@lru_cache(maxsize=64)
def _ends_of_fields(ends: str) -> re.Pattern[str]:
    """Return what ends a word where IFS is ``ends``: a run of blanks, with one of the others."""
    blanks = "".join(each for each in ends if each in _BLANKS)
    others = "".join(each for each in ends if each not in _BLANKS)
    blank = f"[{re.escape(blanks)}]" if blanks else "(?!)"
    other = f"[{re.escape(others)}]" if others else "(?!)"
    return re.compile(f"{blank}*{other}{blank}*|{blank}+")


def fields(line: str, ends: str, most: int | None = None) -> list[str]:
    """Return what ``read`` makes of a line: ``most`` fields, the last with all that is left.

    most: None for as many as there are. ends: the characters that end a field.
    """
    pattern, blanks = _ends_of_fields(ends), "".join(each for each in ends if each in _BLANKS)
    rest = line.strip(blanks)
    found: list[str] = []
    while rest and (most is None or len(found) < most - 1):
        end = pattern.search(rest)
        if end is None:
            found.append(rest)
            rest = ""
        else:
            found.append(rest[: end.start()])
            rest = rest[end.end() :]
    if most is None:
        return found
    single = pattern.search(rest)  # what ends the only field that is left goes
    last = rest[: single.start()] if single is not None and single.end() == len(rest) else rest
    return [*found, last, *[""] * (most - len(found) - 1)][:most]


def _bucket(key: str) -> int:
    """Return where bash 5 keeps a key: it walks through an array in this order."""
    found = 2166136261  # FNV-1, as hash_string() in bash's hashlib.c
    for byte in key.encode(errors="surrogateescape"):
        found = found * 16777619 % 2**32 ^ byte
    return found % 1024  # ASSOC_HASH_BUCKETS in its assoc.h


def doubted(word: Word, doubts: tuple[SourceNote, ...]) -> Word:
    """Return the word, marked as dependent on the conditions that are not known."""
    return word._replace(doubts=_few((*word.doubts, *doubts))) if doubts else word


def _few(doubts: tuple[SourceNote, ...]) -> tuple[SourceNote, ...]:
    return tuple(dict.fromkeys(doubts))[:_MOST_DOUBTS]


# Of more conditions than this the first few are named.
_MOST_DOUBTS = 4


@lru_cache(maxsize=1024)
def _pieces(text: str) -> tuple[Piece, ...] | None:
    """Return the pieces of a text as in double quotes, None where it never closes."""
    try:
        return tuple(WordScanner(text).parts("heredoc", 1))
    except UnterminatedError:
        return None


@lru_cache(maxsize=1024)
def _operand(text: str, quoted: bool) -> tuple[Piece, ...] | None:
    """Return the pieces of what stands behind an operator in ``${...}``."""
    scanner = WordScanner(text + "}")
    try:
        found = scanner.parts("}", 2)
    except UnterminatedError:
        return None
    return tuple(found) if scanner.position == len(text) else None


def path_from(shell: Shell, name: str) -> str | None:
    """Return a path as it is from the folder where the script starts.

    None where a cd to a folder that is not known stands in front of it.
    """
    now = shell.variables.get("PWD")
    if now is None or now == shell.starts_in or name.startswith(("/", "~")):
        return name
    if not now.unresolved:
        return posixpath.join(now.text, name)
    below = now.text.removeprefix("$PWD")
    known = now.unresolved == ("PWD",) and below != now.text
    return posixpath.join(below.lstrip("/"), name) if known else None


class _Expansion:
    def __init__(self, shell: Shell, origin: Origin, split: bool, files: bool = False) -> None:
        self.shell = shell
        self.origin = origin
        self.split = split
        self.files = files
        self.words: list[Word] = []
        self.pieces: list[str] = []
        self.unresolved: list[str] = []
        self.doubts: list[SourceNote] = []
        self.open = not split
        self.loose = False  # what is added now stands without quotes
        self.quoted: list[bool] = []  # of each piece
        self.several = False
        self.inside: Inside | None = None

    def close(self) -> None:
        if self.open:
            names = tuple(dict.fromkeys(self.unresolved)) if self.unresolved else ()
            doubts = _few(tuple(self.doubts)) if self.doubts else ()
            text = "".join(self.pieces)
            inside = self.inside if names else None
            word = Word(text, self.origin, names, doubts, self.several, inside)
            if self.files and is_glob(text):
                parts = [*zip(self.pieces, self.quoted, strict=True)]
                self.words += self.shell.files_of(word, parts)
            else:
                self.words.append(word)
        self.pieces, self.unresolved, self.open, self.several = [], [], False, False
        self.quoted = []
        self.inside = None
        if self.split:
            self.doubts = []

    def keep(self, text: str, unresolved: Sequence[str] = ()) -> None:
        self.pieces.append(text)
        self.quoted.append(not self.loose)
        self.unresolved += unresolved
        self.open = True
        if unresolved and self.split:
            self.several = self.several or self.loose or may_be_several(text)

    def fields(self, text: str) -> None:
        """Add text from an unquoted expansion: blanks in it end words."""
        if self.split and not text:
            return
        ends = self.shell.field_ends() if self.split else ""
        if not isinstance(ends, str):  # a variable that is not known says where words end
            self.keep(text, ("IFS",))
            return
        if not ends:
            self.keep(text)
            return
        place = 0
        for end in _ends_of_fields(ends).finditer(text):
            if end.start() > place:
                self.keep(text[place : end.start()])
            # A blank ends a word that there is, anything else may end an empty one.
            self.open = self.open or bool(end.group().strip(_BLANKS))
            self.close()
            place = end.end()
        if place < len(text):
            self.keep(text[place:])

    def add(self, pieces: Sequence[Piece], inner: bool) -> None:
        outer = self.loose
        for piece in pieces:
            self.loose = not piece.quoted and (outer or not inner)
            if piece.kind == "text":
                if inner and not piece.quoted:
                    self.fields(piece.text)
                elif piece.text or piece.quoted:
                    self.keep(piece.text)
            elif piece.kind == "variable":
                self.variable(piece)
            elif piece.kind == "array" and piece.name in self.shell.arrays:
                self.array(piece, self.shell.arrays[piece.name])
            elif piece.kind == "arithmetic":
                number = self.shell.number(piece.text[3:-2], self.origin, assigns=True)
                if number is None:
                    self.keep(piece.text, self.shell.open_names(piece.text) or (piece.name,))
                else:
                    self.keep(str(number))
            elif piece.text.startswith("${") and self.parameter(piece):
                pass
            elif piece.text.startswith(("$(", "`")):
                self.output(piece)
            elif piece.kind == "unknown" and self.shell.parameters is not None:
                self.special(piece)
            elif piece.text == "$0" and self.shell.name:
                self.keep(self.shell.name)
            else:
                text = self.with_number(piece.text)
                self.keep(text, (piece.name if text == piece.text else text,))
        self.loose = outer

    def with_number(self, text: str) -> str:
        """Return ``${nodes[$i]}`` as ``${nodes[0]}``: elements that nothing tells, told apart."""
        match = _PARAMETER.fullmatch(text)
        if match is None or match[1] or match[4] or not match[3] or match[3] in ("@", "*"):
            return text
        number = self.shell.number(match[3], self.origin)
        return text if number is None else f"${{{match[2]}[{number}]}}"

    def output(self, piece: Piece) -> None:
        """Expand ``$(...)`` where the text that it writes is known."""
        inner = piece.text[2:-1] if piece.text.startswith("$(") else piece.text[1:-1]
        word = self.shell.output(inner, self.origin)
        if word is None or word.unresolved:
            self.keep(piece.text, (piece.name,))
        else:
            self.value(piece, word)

    def parameter(self, piece: Piece) -> bool:
        """Expand ``${A%x}``, ``${#A}``, ``${A[0]}`` and the like; return False where not known."""
        match = _PARAMETER.fullmatch(piece.text)
        if match is None:
            return False
        mark, name, index, rest = match.groups()
        shell = self.shell
        if name == "BASH_SOURCE" and index in (None, "0") and shell.name:
            elements: tuple[Word, ...] | None = (Word(shell.name, self.origin),)
        elif name in ("@", "*"):
            elements, index = shell.parameters, name
        elif name.isdecimal():
            one = shell.parameter(int(name))
            elements = None if one is None else (one,)
        elif name in shell.arrays:
            elements = shell.arrays[name]
        else:
            word = shell.variables.get(name)
            empty = shell.variables.was_unset(name)
            elements = () if word is None and empty else None if word is None else (word,)
        if (mark == "#" and name == "#") or elements is None:
            return False
        every = index in ("@", "*")
        if any(w.several if every else w.unresolved and w.text[:1] == "$" for w in elements):
            return False
        keys = shell.keys.get(name)
        if mark == "!" and every and not rest and name in shell.arrays:
            named = keys if keys is not None else map(str, range(len(elements)))
            words = tuple(Word(key, self.origin) for key in named)
            self.array(piece._replace(operator=f"[{index}]"), words)
            return True
        if not every and keys is not None:
            key = shell.key("0" if index is None else index, self.origin)
            if key is None:
                return False
            elements = (elements[keys.index(key)],) if key in keys else ()
        elif not every and index is not None:
            number = shell.number(index, self.origin)
            if number is None or not -len(elements) <= number:
                return False
            elements = elements[number : number + 1 or None] if number < len(elements) else ()
        elif not every:
            elements = elements[:1]
        if mark == "#" and not rest:
            known = every or not any(word.unresolved for word in elements)
            size = len(elements) if every else sum(len(word.text) for word in elements)
            if known:
                self.keep(str(size))
            return known
        if mark == "!" or (mark and rest):
            return not rest and mark == "!" and not every and self.indirect(piece, elements)
        return self.changed(piece, elements, every, "*" if index == "*" else "@", rest)

    def indirect(self, piece: Piece, elements: tuple[Word, ...]) -> bool:
        """Expand ``${!NAME}``; return False where it is not known."""
        name = elements[0].text if elements else ""
        word = self.shell.variables.get(name)
        if word is None or elements[0].unresolved:
            return False
        self.value(piece, word)
        return True

    def changed(
        self, piece: Piece, elements: tuple[Word, ...], every: bool, how: str, rest: str
    ) -> bool:
        """Expand elements with the operator in ``rest``; return False where that is not known."""
        match = _OPERATOR.match(rest)
        operator = match.group() if match else ""
        operand = rest[len(operator) :]
        counts = every and operator == ":"  # takes elements, whatever is in them
        if rest and (not operator or any(w.unresolved and not counts for w in elements)):
            return False
        if operator == ":":
            if piece.name.strip("${}")[:1] in ("@", "*"):  # their place 0 is $0
                own = self.shell.name
                first = Word(own or "$0", self.origin, () if own else ("$0",))
                elements = (first, *elements)
            cut = self.cut(elements, every, operand)
            if cut is None:
                return False
            elements = cut
        elif operator[-1:] in ("-", "+", "=", "?"):
            missing = not elements or (operator[0] == ":" and not any(w.text for w in elements))
            if operator[-1] == "+" and missing:
                elements = ()
            elif missing != (operator[-1] == "-") and (missing or operator[-1] == "+"):
                return False
            elif missing or operator[-1] == "+":
                pieces = _operand(operand, piece.quoted)
                if pieces is None:
                    return False
                self.add(pieces, inner=not piece.quoted)
                self.open = self.open or piece.quoted
                return True
        elif operator:
            applied = self.applied(operator, operand)
            texts = [applied(word.text) if applied else None for word in elements]
            if None in texts:
                return False
            elements = tuple(
                word._replace(text=text or "") for word, text in zip(elements, texts, strict=True)
            )
        if every:
            self.array(piece._replace(operator=f"[{how}]"), elements)
        elif elements:
            self.value(piece, elements[0])
        else:
            self.open = self.open or piece.quoted
        return True

    def cut(self, elements: tuple[Word, ...], every: bool, operand: str) -> tuple[Word, ...] | None:
        """Return ``${A:1:2}``, of a text or of an array; None where it is not known."""
        first, colon, length = operand.partition(":")
        start = self.shell.number(first or "0", self.origin)
        size = self.shell.number(length, self.origin) if colon else None
        whole = elements if every else elements[0].text if elements else ""
        if start is None or (colon and size is None):
            return None
        if -len(whole) > start:  # in front of its beginning there is nothing
            return () if every else tuple(word._replace(text="") for word in elements)
        if size is not None and size < 0:
            if every or len(whole) + size < start:
                return None
            size = len(whole) + size - (start if start >= 0 else len(whole) + start)
        start = start if start >= 0 else len(whole) + start
        part = whole[start:] if size is None else whole[start : start + size]
        if isinstance(part, str):
            return tuple(word._replace(text=part) for word in elements)
        return part

    def applied(self, operator: str, operand: str) -> Callable[[str], str | None] | None:
        """Return what an operator makes of a text; None where that is not known."""
        if operator in _CASES:
            return None if operand else _CASES[operator]
        by = ""
        if operator[0] == "/":
            operand, _, by = _split(operand)
        pieces = _operand(operand, False)
        instead = _operand(by, False)
        if pieces is None or instead is None:
            return None
        found = self.shell.pattern(pieces, self.origin)
        if not isinstance(found, re.Pattern):
            return None
        if operator[0] != "/":
            return lambda text: without(text, operator, found)
        word = self.shell.value(instead, self.origin)
        return None if word.unresolved else lambda text: replaced(text, operator, found, word.text)

    def special(self, piece: Piece) -> None:
        """Expand ``$@`` and ``$1`` of a function; keep as written what is not known."""
        name, given = piece.name.strip("${}"), self.shell.parameters or ()
        if name in ("@", "*"):
            self.array(piece._replace(operator=f"[{name}]"), given)
        elif name.isdecimal() and name != "0" and (word := self.shell.parameter(int(name))):
            self.value(piece, word)
        elif name == "#" and not any(word.several for word in given):
            self.keep(str(len(given)))
        else:
            self.keep(piece.text, (piece.name,))

    def value(self, piece: Piece, word: Word) -> None:
        self.doubts += word.doubts
        if not self.shell.budget.spend(len(word.text) + len(word.unresolved)):
            self.keep(piece.text, (piece.name,))
            return
        self.several = self.several or (word.several and self.split)
        # What is not known keeps its blanks: ``$(nproc --all)`` is one word until somebody runs it.
        if piece.quoted or word.unresolved:
            self.keep(word.text, word.unresolved)
            self.inside = both_inside(self.inside, word.inside)
        else:
            self.fields(word.text)

    def variable(self, piece: Piece) -> None:
        variables = self.shell.variables
        word = variables.get(piece.name)
        if piece.name.isdecimal() and (piece.name == "0" or self.shell.parameters is not None):
            word = self.shell.parameter(int(piece.name))
        if word is not None and not piece.operator:
            self.value(piece, word)
            return
        if word is None and piece.name in self.shell.arrays:
            word = next(iter(self.shell.arrays[piece.name]), None)
        colon, action = piece.operator.startswith(":"), piece.operator[-1:]
        missing = word is None or (colon and not word.text and not word.unresolved)
        if action == "+":
            self.add([] if missing else piece.default, inner=not piece.quoted)
            self.open = self.open or piece.quoted
        elif missing and action in ("-", "="):
            if action == "=":
                inner = _Expansion(self.shell, self.origin, split=False)
                inner.add(piece.default, inner=False)
                inner.close()
                self.shell.assign(piece.name, inner.words[0])
                self.value(piece, inner.words[0])
            else:
                self.add(piece.default, inner=not piece.quoted)
                self.open = self.open or piece.quoted
        elif word is not None:
            self.value(piece, word)
        elif variables.was_unset(piece.name) and not action:
            self.open = self.open or piece.quoted
        else:
            self.keep(piece.text, (piece.name,))

    def array(self, piece: Piece, elements: tuple[Word, ...]) -> None:
        # Each use of a long array is paid for before it is walked through.
        if not self.shell.budget.spend(ELEMENT_COSTS * len(elements)):
            self.keep(piece.text, (piece.name,))
            return
        if piece.operator == "[*]" and (piece.quoted or not self.split):
            ends = self.shell.field_ends()
            if ends is None:
                self.keep(piece.text, ("IFS",))
                return
            text = ends[:1].join(word.text for word in elements)
            names = tuple(name for word in elements for name in word.unresolved)
            self.value(piece, Word(text, self.origin, names))
            return
        ends = self.shell.field_ends() or ""
        known = not any(word.unresolved for word in elements)
        if self.split and not piece.quoted and known and ends[:1].strip(_BLANKS):
            self.doubts += [doubt for word in elements for doubt in word.doubts]
            self.fields(ends[0].join(word.text for word in elements))  # an empty one stays
            return
        for index, word in enumerate(elements):
            if index and self.split:
                self.close()
            elif index:
                self.keep(" ")
            self.value(piece, word)


def _split(operand: str) -> tuple[str, str, str]:
    """Split ``pattern/by`` at the first slash that nothing quotes."""
    match = re.match(r"((?:[^/\\'\"]|\\.|'[^']*'|\"[^\"]*\")*)(/?)", operand, re.DOTALL)
    assert match is not None
    return match.group(1), match.group(2), operand[match.end() :]
