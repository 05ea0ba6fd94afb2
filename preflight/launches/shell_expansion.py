"""What written words become once variables are known: no word, one, or several.

What only running the script could tell stays in the word as written, and the word names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from checks.framework.regex import regex
from checks.framework.unknown import Inside
from preflight.launches.shell_arithmetic import arithmetic, names_set
from preflight.launches.shell_state import BLANKS, ELEMENT_COSTS, ShellState, first_doubts
from preflight.launches.shell_text import Piece, Pieces, WrittenWord, value_pieces, written
from preflight.launches.source import Origin, SourceNote, Word, join_inside

_ALL_OF_IT = regex(r"\$[@*]|\$\{[@*]|\$\{!?\w+\[@\]")
# What makes a word a pattern of file names; [...] alone is mostly meant as it stands.
_WILD = regex(r"[*?]")
_EXTENDED = regex(r"[?*+@!]\(|\[[:=.]")
_GLOB = regex(r"(\*)|(\?)|(\[[!^]?\]?[^\]]*\])|(.)", re.DOTALL)
_BRACES = regex(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_SEQUENCE = regex(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?\}", re.ASCII)
_MOST_WORDS = 1024  # of braces
# Longer texts are left as written: each place in them is tried.
_LONGEST_TEXT = 500
_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}


class _NotKnownError(Exception):
    """A part whose value is not known: it is kept as it is written."""


def expand(state: ShellState, word: WrittenWord, origin: Origin) -> list[Word]:
    """Expand a word of a command as bash does: braces, variables, ``$(...)``, splitting.

    Return no word, one or several; a part that is not known stays as written, and is unresolved.
    """
    pieces = word.pieces
    if len(pieces) == 1 and pieces[0].type == "text":
        text, quoted = pieces[0].text, pieces[0].quoted
        if quoted or not ("{" in text or _WILD.search(text)):
            return [Word(text, origin)]  # most are so
    several = [pieces]
    texts = [p.text if p.type == "text" and not p.quoted else "x" for p in pieces]
    if _BRACES.search("".join(texts)):  # bash makes several words of mlx5_{0,1}, {0..3}
        several = _braced(pieces) or []
        if not several or not state.budget.spend(ELEMENT_COSTS * len(several)):
            return [Word(written(pieces), origin, ("{...}",), several=True)]
    expanded: list[Word] = []
    for each in several:
        expansion = _Expansion(state, origin, split=True)
        expansion.add(each, inner=False)
        expansion.close()
        expanded += expansion.words
    return expanded


def value(state: ShellState, pieces: Pieces, origin: Origin) -> Word:
    """Return the one word that the pieces of an assignment's value, or of a heredoc, expand to."""
    if len(pieces) == 1 and pieces[0].type == "text":
        return Word(pieces[0].text, origin)
    expansion = _Expansion(state, origin, split=False)
    expansion.add(pieces, inner=False)
    expansion.close()
    return expansion.words[0]


def number(state: ShellState, formula: str, origin: Origin, assigns: bool = False) -> int | None:
    """Return the result of a formula, such as the one in ``$((...))``; None if it is not known.

    Args:
        assigns: Carry out ``i++`` and ``i = 3``; if the result is None, these variables become
            unknown. Otherwise the result of a formula that sets variables is None.
    """
    text: str | None = formula
    if "$" in formula or "`" in formula:
        pieces = value_pieces(formula)
        word = None if pieces is None else value(state, pieces, origin)
        text = None if word is None or word.unresolved else word.text

    def known(name: str) -> str | None:
        word = state.variables.get(name)
        if word is None:
            return "" if state.variables.was_unset(name) else None
        state.defaults += word.by_default
        return None if word.unresolved else word.text

    def assign(name: str, result: int) -> None:
        state.assign(name, Word(str(result), origin))

    result = None if text is None else arithmetic(text, known, assign if assigns else None)
    if result is None and assigns:
        for name, element in names_set(formula).items():
            state.lose(name, origin, element)
    return result


def pattern(state: ShellState, pieces: Pieces, origin: Origin) -> re.Pattern[str] | Word | None:
    """Return a pattern of the shell as a regular expression for a whole text.

    If a variable in it is not known, the unresolved word instead; None if the pattern is extended
    or too long.
    """
    parts: list[str] = []
    for piece in pieces:
        word = value(state, (piece,), origin)
        if word.unresolved:
            return word
        if not piece.quoted and _EXTENDED.search(word.text):
            return None
        parts.append(re.escape(word.text) if piece.quoted else _glob(word.text))
    whole = "".join(parts)
    return re.compile(whole + r"\Z", re.DOTALL) if len(whole) < 4 * _LONGEST_TEXT else None


def _glob(text: str) -> str:
    """Return a shell's pattern as a regular expression; a ``[`` without ``]`` is plain text."""
    parts = ""
    for star, mark, brackets, other in _GLOB.findall(text):
        inner = re.sub(r"[\\\[&~|]", r"\\\g<0>", brackets[1:-1])
        inner = f"^{inner[1:]}" if inner[:1] in ("!", "^") else inner
        parts += ".*" if star else "." if mark else f"[{inner}]" if brackets else re.escape(other)
    return parts


@lru_cache(maxsize=64)
def _ends_of_fields(ends: str) -> re.Pattern[str]:
    """Return the regular expression of all that ends a word if IFS is ``ends``."""
    blanks = "".join(each for each in ends if each in BLANKS)
    others = "".join(each for each in ends if each not in BLANKS)
    blank = f"[{re.escape(blanks)}]" if blanks else "(?!)"
    other = f"[{re.escape(others)}]" if others else "(?!)"
    return re.compile(f"{blank}*{other}{blank}*|{blank}+")


def fields(line: str, ends: str, most: int | None = None) -> list[str]:
    """Split a line as the shell's ``read`` does, at the letters of IFS (``ends``).

    Args:
        most: The exact number of fields, the last with all that is left, missing ones empty; None:
            all fields.
    """
    finder, blanks = _ends_of_fields(ends), "".join(each for each in ends if each in BLANKS)
    rest = line.strip(blanks)
    parts: list[str] = []
    while rest and (most is None or len(parts) < most - 1):
        end = finder.search(rest)
        parts.append(rest if end is None else rest[: end.start()])
        rest = "" if end is None else rest[end.end() :]
    if most is None:
        return parts
    single = finder.search(rest)  # what ends the only field that is left goes
    last = rest[: single.start()] if single is not None and single.end() == len(rest) else rest
    return [*parts, last, *[""] * (most - len(parts) - 1)][:most]


class _Expansion:
    """Collects the words that pieces become."""

    def __init__(self, state: ShellState, origin: Origin, split: bool) -> None:
        """Begin with no word.

        Args:
            split: Values without quotes are split at IFS; False for an assignment's value, which is
                one word.
        """
        self.state, self.origin, self.split = state, origin, split
        self.defaults_before = state.defaults
        self.words: list[Word] = []
        self.texts: list[str] = []
        self.unresolved: list[str] = []
        self.doubts: list[SourceNote] = []
        self.open = not split
        self.loose = False  # what is added now stands without quotes
        self.wild = self.several = False
        self.inside: Inside | None = None
        self.element: Origin | None = None  # where the element of an array stands that begins here

    def close(self) -> None:
        """End the word that is being collected, if there is one."""
        if self.open:
            text = "".join(self.texts)
            names = list(dict.fromkeys(self.unresolved))
            # A flag, or an address, is no name of a file.
            looks = self.split and self.wild and not self.state.option("noglob")
            if looks and not text.startswith("-") and "://" not in text:
                names.append(f"what {text} matches")
                self.several = True
            doubts = first_doubts(tuple(self.doubts)) if self.doubts else ()
            inside = self.inside if names else None
            at = self.element or self.origin
            default = self.state.defaults > self.defaults_before
            self.words.append(Word(text, at, tuple(names), doubts, self.several, inside, default))
        self.texts, self.unresolved, self.open, self.several = [], [], False, False
        self.wild, self.inside, self.element = False, None, None
        if self.split:
            self.doubts = []

    def add_text(self, text: str, unresolved: Sequence[str] = ()) -> None:
        """Add a text to the word that is being collected, without splitting.

        Args:
            unresolved: Names of the text's unknown parts.
        """
        self.texts.append(text)
        self.open = True
        if unresolved:
            self.unresolved += unresolved
            if self.split:
                several = self.loose or _ALL_OF_IT.search(text) is not None
                self.several = self.several or several
        elif self.loose and _WILD.search(text):
            self.wild = True

    def add_fields(self, text: str) -> None:
        """Add text from an unquoted expansion: characters of IFS in the text end words."""
        if self.split and not text:
            return
        ends = self.state.field_ends() if self.split else ""
        if ends is None:  # a variable that is not known says where words end
            self.add_text(text, ("IFS",))
            return
        place = 0
        for end in _ends_of_fields(ends).finditer(text) if ends else ():
            if end.start() > place:
                self.add_text(text[place : end.start()])
            # A blank ends a word that there is, anything else may end an empty one.
            self.open = self.open or bool(end.group().strip(BLANKS))
            self.close()
            place = end.end()
        if place < len(text) or not ends:
            self.add_text(text[place:])

    def add(self, pieces: Pieces, inner: bool) -> None:
        """Add pieces.

        Args:
            inner: They are an operand, as the ``x`` of ``${A:-x}``; text without quotes is then
                split at IFS.
        """
        outer = self.loose
        for piece in pieces:
            self.loose = not piece.quoted and (outer or not inner)
            if piece.type == "text":
                if inner and not piece.quoted:
                    self.add_fields(piece.text)
                elif piece.text or piece.quoted:
                    self.add_text(piece.text)
            elif piece.type == "parameter":
                try:
                    self.add_parameter(piece)
                except _NotKnownError:
                    self.add_text(*self.as_unknown(piece))
            elif piece.type == "arithmetic":
                text = piece.text
                formula = text[3:-2] if text.startswith("$((") else text[2:-1]  # or $[...]
                result = number(self.state, formula, self.origin, assigns=True)
                if result is None:
                    self.add_text(piece.text, self.open_names(piece.text) or (piece.name,))
                else:
                    self.add_text(str(result))
            elif piece.type == "output":
                text = re.sub(r"\\([$`\\])", r"\1", piece.text[1:-1])  # of `...`
                text = piece.text[2:-1] if piece.text.startswith("$(") else text
                word = self.state.output(text, self.origin)
                if word is None or word.unresolved:
                    self.add_text(piece.text, (piece.name,))
                else:
                    self.add_value(piece, word)
            else:
                self.add_text(piece.text, (piece.name,))
        self.loose = outer

    def open_names(self, formula: str) -> tuple[str, ...]:
        """Return the names of a formula's unknown variables.

        A variable that the script sets, to a value that is not known, is named ``$NAME``, any other
        ``NAME``.
        """
        names: list[str] = []
        variables = self.state.variables
        for name in re.findall(r"[A-Za-z_]\w*", formula):
            word = variables.get(name)
            if word is not None:
                names += [each if each == name else f"${name}" for each in word.unresolved]
            elif not variables.was_unset(name) and self.state.array(name) is None:
                names.append(name)
        return tuple(dict.fromkeys(names))

    def as_unknown(self, piece: Piece) -> tuple[str, tuple[str, ...]]:
        """Return the text and the unresolved names to use for a parameter whose value is not known.

        The text is as written, but an element has its index worked out (``${A[2]}``). The name is
        that of the variable for a simple parameter, else the text, cut off at 40 characters.
        """
        if piece.place not in (None, "@", "*") and not piece.operator and not piece.mark:
            place = number(self.state, piece.place or "", self.origin)
            if place is not None:  # elements that nothing tells, told apart
                text = f"${{{piece.name}[{place}]}}"
                return text, (text,)
        simple = piece.place in (None, "@", "*") and piece.operator[-1:] in ("", *"-=?+")
        if simple and not piece.mark and piece.name.isidentifier():
            return piece.text, (piece.name,)
        return piece.text, (piece.text if len(piece.text) <= 40 else f"{piece.text[:37]}...",)

    # Parameters

    def add_parameter(self, piece: Piece) -> None:
        """Add the text of ``$A``, ``${A[1]:-x}`` and the like.

        Raises _NotKnownError if unknown.
        """
        state, operator = self.state, piece.operator
        if piece.operand is None or piece.replacement is None:
            raise _NotKnownError
        elements = self.elements(piece)
        every = piece.place in ("@", "*") or piece.name in ("@", "*")
        if piece.name == "#" and not piece.mark and elements is not None:
            if any(word.several for word in elements) or operator:
                raise _NotKnownError
            self.add_text(str(len(elements)))
            return
        action = operator[-1:] if operator[:1] != "," else ","
        if action in ("-", "=", "+") and not piece.mark:
            self.add_default(piece, elements, every)
            return
        if elements is None:
            raise _NotKnownError
        if piece.mark == "!" and every and not operator and piece.name not in ("@", "*"):
            if any(word.several for word in elements):
                raise _NotKnownError
            places = tuple(Word(str(place), self.origin) for place in range(len(elements)))
            self.add_list(piece, places)
            return
        if not every:
            elements = elements[:1]
        if piece.mark == "!" and not operator and elements:
            named = state.variables.get(elements[0].text)
            if named is None or elements[0].unresolved:
                raise _NotKnownError
            self.add_value(piece, named)
            return
        if piece.mark == "#" and not operator:
            if any(word.several or (word.unresolved and not every) for word in elements):
                raise _NotKnownError
            texts = [word.text for word in elements]
            self.add_text(str(len(texts) if every else sum(map(len, texts))))
            return
        if piece.mark:
            raise _NotKnownError
        if operator == ":":
            elements = self.cut(piece, elements, every)
        elif operator and action != "?":
            if any(word.unresolved for word in elements):
                raise _NotKnownError
            change = self.text_change(piece)
            elements = tuple(word._replace(text=change(word.text)) for word in elements)
        if every:
            self.add_list(piece, elements)
        elif elements:
            self.add_value(piece, elements[0])
        elif action == "?":
            raise _NotKnownError
        else:
            self.open = self.open or piece.quoted

    def elements(self, piece: Piece) -> tuple[Word, ...] | None:
        """Return the values of a parameter: a variable has one, an array or ``$@`` has all that
        ``piece`` asks for.

        Returns:
            () if the parameter is not set, None if it is not known.
        """
        state, name, key = self.state, piece.name, piece.place
        if name == "BASH_SOURCE" and key in (None, "0") and state.name:
            return (Word(state.name, self.origin),)
        if name in ("@", "*", "#"):
            return state.parameters
        if name == "!" and (background := state.values.get(("background", ""))) is not None:
            return (background,)  # type: ignore[return-value]
        if name.isdecimal():
            word = state.parameter(int(name))
            if word is None:
                word = state.variables.get(name)
            missing = word is not None and not word.text and word.origin.source == "shell"
            return None if word is None else () if missing else (word,)
        array = state.array(name)
        if array is None:
            word = state.variables.get(name)
            if word is None:
                return () if state.variables.was_unset(name) else None
            array = (word,)
        elif key is None and array and array[0].several:
            return None
        if key in (None, "@", "*"):
            return array
        place = number(state, key or "", self.origin)
        if place is None or not -len(array) <= place or any(word.several for word in array):
            return None
        return array[place : place + 1 or None] if place < len(array) else ()

    def add_default(self, piece: Piece, elements: tuple[Word, ...] | None, every: bool) -> None:
        """Add ``${A:-x}``, ``${A:=x}`` or ``${A:+x}``; an unknown A is taken as not set.

        Raises _NotKnownError for an unknown array, and for ``${A:-}`` in a condition.

        Args:
            elements: Of A, None if not known.
            every: All elements are asked for.
        """
        state, colon = self.state, piece.operator.startswith(":")
        in_condition = state.asking and piece.operator[-1] == "-" and not piece.rest
        # The script's own arguments are not given; of an array something known sets it.
        of_script = piece.name.isdecimal() or piece.name in ("@", "*")
        is_array = not of_script and state.array(piece.name) is not None
        if elements is None and (is_array or (in_condition and piece.name.isidentifier())):
            raise _NotKnownError
        some = elements or ()
        state.defaults += elements is None
        missing = not some or (colon and not any(word.text or word.unresolved for word in some))
        operand = piece.operand or ()
        if piece.operator[-1] == "+":
            if elements and any(word.several for word in some):
                raise _NotKnownError
            self.add(() if missing else operand, inner=not piece.quoted)
            self.open = self.open or piece.quoted
        elif not missing and every:
            self.add_list(piece, some)
        elif not missing:
            self.add_value(piece, some[0])
        elif piece.operator[-1] == "=":
            if piece.place is not None or not piece.name.isidentifier():
                raise _NotKnownError
            word = value(state, operand, self.origin)
            state.assign(piece.name, word)
            self.add_value(piece, word)
        else:
            self.add(operand, inner=not piece.quoted)
            self.open = self.open or piece.quoted

    def cut(self, piece: Piece, elements: tuple[Word, ...], every: bool) -> tuple[Word, ...]:
        """Return the elements of ``${A:1:2}``: a part of a text, or, with ``every``, of an array.

        Raises _NotKnownError if the text or a place is not known.
        """
        first, colon, length = piece.rest.partition(":")
        start = number(self.state, first or "0", self.origin)
        size = number(self.state, length, self.origin) if colon else None
        if start is None or (colon and size is None) or any(w.several for w in elements):
            raise _NotKnownError
        if not every and any(word.unresolved for word in elements):
            raise _NotKnownError
        if piece.name in ("@", "*"):  # their place 0 is $0
            name = self.state.name
            elements = (Word(name or "$0", self.origin, () if name else ("$0",)), *elements)
        whole = elements if every else elements[0].text if elements else ""
        if -len(whole) > start or (size is not None and size < 0):
            raise _NotKnownError
        start = start if start >= 0 else len(whole) + start
        part = whole[start:] if size is None else whole[start : start + size]
        if isinstance(part, str):
            return tuple(word._replace(text=part) for word in elements)
        return part

    def text_change(self, piece: Piece) -> Callable[[str], str]:
        """Return the function that the operator of ``piece`` applies to a text.

        Raises _NotKnownError if the operator is not supported, or if its pattern is not known.
        """
        operator = piece.operator
        if operator in _CASES and not piece.rest:
            return _CASES[operator]
        if operator in _CASES or operator[0] not in "#%/":
            raise _NotKnownError
        compiled = pattern(self.state, piece.operand or (), self.origin)
        by = value(self.state, piece.replacement or (), self.origin)
        matched = operator[0] == "/" and "&" in by.text  # bash 5.2 puts what matched in its place
        if not isinstance(compiled, re.Pattern) or by.unresolved or matched:
            raise _NotKnownError
        change = _replaced if operator[0] == "/" else _without
        return lambda text: change(text, operator, compiled, by.text)

    def add_value(self, piece: Piece, word: Word) -> None:
        """Add the value of a parameter, split if it is known and not quoted.

        If the budget is spent, the parameter stays as written.
        """
        self.doubts += word.doubts
        self.state.defaults += word.by_default
        if not self.state.budget.spend(len(word.text) + len(word.unresolved)):
            self.add_text(*self.as_unknown(piece))
            return
        self.several = self.several or (word.several and self.split)
        # What is not known keeps its blanks: ``$(nproc --all)`` is one word until somebody runs it.
        if piece.quoted or word.unresolved:
            self.add_text(word.text, word.unresolved)
            self.inside = join_inside(self.inside, word.inside)
        else:
            self.add_fields(word.text)

    def add_list(self, piece: Piece, elements: tuple[Word, ...]) -> None:
        """Add the elements of an array or ``$@``: each as a word, or all as one word joined by
        blanks if values are not split, as in an assignment.

        A ``*`` that is quoted or not split joins them by the first character of IFS; the word is
        unresolved if IFS is unknown. An unquoted list that is split is first joined in that way if
        that character is no blank. Raises _NotKnownError if the budget is spent.
        """
        # Each use of a long array is paid for before it is walked through.
        if not self.state.budget.spend(ELEMENT_COSTS * len(elements)):
            raise _NotKnownError
        ends = self.state.field_ends()
        star = "*" in (piece.place, piece.name) and (piece.quoted or not self.split)
        odd = self.split and not piece.quoted and (ends or "")[:1].strip(BLANKS)
        if star or odd:
            if ends is None:
                self.add_text(piece.text, ("IFS",))
                return
            text = ends[:1].join(word.text for word in elements)
            names = tuple(name for word in elements for name in word.unresolved)
            doubts = tuple(doubt for word in elements for doubt in word.doubts)
            self.add_value(piece, Word(text, self.origin, names, doubts))
            return
        for index, word in enumerate(elements):
            if index and self.split:
                self.close()
            elif index:
                self.add_text(" ")
            if not self.texts and word.origin.source == self.origin.source and piece.name != "@":
                self.element = word.origin
            self.add_value(piece, word)


def _without(text: str, operator: str, compiled: re.Pattern[str], by: str) -> str:
    """Remove a match from a text: at the beginning (``#``) or end (``%``), the longest if the sign
    is doubled.

    Raises _NotKnownError for a long text.

    Args:
        by: Not used.
    """
    if len(text) > _LONGEST_TEXT:
        raise _NotKnownError
    size = len(text)
    lengths = range(size + 1) if len(operator) == 1 else range(size, -1, -1)
    if operator[0] == "#":
        return next((text[n:] for n in lengths if compiled.match(text[:n])), text)
    return next((text[: size - n] for n in lengths if compiled.match(text[size - n :])), text)


def _replaced(text: str, operator: str, compiled: re.Pattern[str], by: str) -> str:
    """Replace the longest match of a pattern by ``by``: the first (``/``), all (``//``), at the
    beginning (``/#``) or the end (``/%``).

    Raises _NotKnownError for a long text or an empty match.
    """
    if len(text) > _LONGEST_TEXT:
        raise _NotKnownError
    if compiled.match(""):
        if compiled.pattern != r"\Z" or operator not in ("/#", "/%"):
            raise _NotKnownError
        return by + text if operator == "/#" else text + by
    inner = compiled.pattern.removesuffix(r"\Z")
    anchored = {"/#": rf"\A{inner}", "/%": rf"{inner}\Z"}.get(operator, inner)
    count = 0 if operator == "//" else 1
    return re.sub(anchored, lambda match: by, text, count=count, flags=re.DOTALL)


def _braced(pieces: Pieces) -> list[Pieces] | None:
    """Return the words that ``a{1..3}b`` makes, one sequence of numbers.

    Returns:
        None for other braces, for quoted parts, or for more than 1024 words.
    """
    texts = [piece.text for piece in pieces if piece.type == "text" and not piece.quoted]
    joined = "".join(texts)
    match = _SEQUENCE.search(joined)
    if match is None or joined.count("{") > 1 or len(texts) < len(pieces):
        return None
    first, last, step = match.groups()
    low, high, by = int(first), int(last), abs(int(step or 1)) or 1
    if abs(high - low) // by >= _MOST_WORDS:
        return None
    numbers = range(low, high + 1, by) if low <= high else range(low, high - 1, -by)
    padded = any(re.match(r"-?0\d", part) for part in (first, last))
    width = max(len(first), len(last)) if padded else 0
    front, behind = joined[: match.start()], joined[match.end() :]
    return [(Piece("text", f"{front}{each:0{width}d}{behind}"),) for each in numbers]
