"""One word of a shell script: its pieces, as bash's quotes and dollars divide it, and heredocs.

Nothing is expanded here. Each character is looked at a bounded number of times: no text, however it
is made, takes more than linear time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from checks.capture.secrets import beginning

# ``${A:-${B:-...}}`` nested deeper than this is left as written.
DEEPEST = 20

Kind = Literal["text", "variable", "array", "arithmetic", "unknown"]


class Piece(NamedTuple):
    """A piece of a word.

    kind: ``text`` is what stands there once quotes are removed; the others keep in ``text`` what
    was written. name: the variable, or how an unknown piece is named to the user. operator and
    default: of ``${name:-default}``.
    """

    kind: Kind
    text: str
    quoted: bool = False
    name: str = ""
    operator: str = ""
    default: tuple[Piece, ...] = ()


_RUNS = {
    "": re.compile(r"""[^ \t\n\\'"$`;&|<>()]+"""),
    '"': re.compile(r"""[^\\"$`]+"""),
    "}": re.compile(r"""[^\\'"$`}]+"""),
    '"}': re.compile(r"""[^\\"$`}]+"""),
    "heredoc": re.compile(r"[^\\$`]+"),
}
# What a backslash quotes inside double quotes, and inside a heredoc; elsewhere, everything.
_ESCAPES = {'"': '$`"\\\n', '"}': '$`"\\\n}', "heredoc": "$`\\\n"}
_ANSI = re.compile(r"\$'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_ANSI_ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})"
    r"|([0-7]{1,3}))"
)
_ANSI_LETTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_BACKTICK = re.compile(r"`[^`\\]*(?:\\.[^`\\]*)*`", re.DOTALL)
_NAME = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_SPECIAL = re.compile(r"\$[0-9@*#?$!-]")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+)(\[[@*]\])?(:?[-=+?]|\})")
_NESTING = re.compile(
    r"""[\\'"`(){}#\n]|\$[({']"""
    r"""|(?<!<)<<(?P<tabs>-?)[ \t]*(?P<quote>['"\\]?)(?P<end>[A-Za-z_][\w.-]*)"""
    r"""|(?<![\w$./-])(?P<case>case)\s+(?:"[^"\n]*"|'[^'\n]*'|[^\s"';]+)\s+in\b"""
    r"""|(?<![\w$./-])esac\b"""
)


# What commands stand in, by what ends it.
_COMMANDS = ("", ")", "esac")

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?)=")
_INDEXED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[[^\]]*")
_BRACES = re.compile(r"[{},]|\.\.")
_HOME = re.compile(r"~(?:/|\Z)")
_EMPTY = Piece("text", "", True)
_LIST = re.compile(r"\$@|\$\{@|\$\{!?[A-Za-z_][A-Za-z0-9_]*\[@\]")


class UnterminatedError(Exception):
    """A quote or bracket that never closes: bash reads to the end of the text, and gives up."""


class WrittenWord(NamedTuple):
    """A word as it is written.

    bare: its text where nothing in it is quoted or expanded: this alone can be a keyword. braces:
    bash makes several words of it.
    """

    pieces: tuple[Piece, ...]
    bare: str = ""
    braces: bool = False
    assignment: Assignment | None = None


class Assignment(NamedTuple):
    """``NAME=value``, ``NAME+=value`` (adds), or ``NAME[1]=value`` (indexed)."""

    name: str
    indexed: bool
    adds: bool
    value: tuple[Piece, ...]  # none where nothing stands behind the =
    place: str = ""  # what stands in the brackets


def keyed(pieces: Sequence[Piece]) -> tuple[tuple[Piece, ...], tuple[Piece, ...]] | None:
    """Return the key and the value of ``[key]=value`` among an array's words; None for another."""
    if pieces[0].quoted or pieces[0].text[:1] != "[":
        return None
    for place, piece in enumerate(pieces):
        if piece.kind == "text" and not piece.quoted and "]=" in piece.text:
            before, _, behind = piece.text.partition("]=")
            key = (*pieces[:place], piece._replace(text=before))
            value = (piece._replace(text=behind), *pieces[place + 1 :])
            return (key[0]._replace(text=key[0].text[1:]), *key[1:]), value
    return None


def written(pieces: Sequence[Piece]) -> str:
    """Return a word as it stands, with nothing expanded."""
    return "".join(piece.text for piece in pieces)


def written_word(pieces: Sequence[Piece]) -> WrittenWord:
    """Return the word that has these pieces; there is at least one."""
    first = pieces[0]
    plain = first.kind == "text" and not first.quoted
    bare = first.text if plain and len(pieces) == 1 else ""
    assignment = None
    head, behind = first.text, pieces[1:]
    if plain and _INDEXED.fullmatch(head):  # A[$i]=
        close = next((i for i, piece in enumerate(pieces) if i and "]" in piece.text), 0)
        if close and pieces[close].kind == "text" and not pieces[close].quoted:
            head, behind = written(pieces[: close + 1]), pieces[close + 1 :]
    if plain and (match := _ASSIGNMENT.match(head)):
        name, index, adds = match.groups()
        rest = head[match.end() :]
        value = (Piece("text", rest), *behind) if rest else behind
        assignment = Assignment(
            name, bool(index), bool(adds), _with_home(value), (index or "")[1:-1]
        )
    if _has_braces(pieces):
        return WrittenWord(tuple(pieces), bare, True, assignment)
    return WrittenWord(_with_home(pieces), bare, False, assignment)


def _with_home(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the pieces with the home directory of ``~/models`` as a variable."""
    first = pieces[0] if pieces else None
    if first is None or first.quoted or not _HOME.match(first.text):
        return tuple(pieces)
    if first.text == "~" and len(pieces) > 1:
        return tuple(pieces)
    home = Piece("variable", "~", True, "HOME")
    return (home, first._replace(text=first.text[1:]), *pieces[1:])


def _has_braces(pieces: Sequence[Piece]) -> bool:
    """Return whether there are braces of which bash makes several words.

    They are as in ``mlx5_{0,1}`` and ``{0..3}``.
    """
    stack: list[bool] = []
    for piece in pieces:
        if piece.kind != "text" or piece.quoted:
            continue
        for match in _BRACES.finditer(piece.text):
            if match.group() == "{":
                stack.append(False)
            elif match.group() == "}":
                if stack and stack.pop():
                    return True
            elif stack:
                stack[-1] = True
    return False


class WordScanner:
    """Goes through a text from ``position`` on; raises UnterminatedError where a quote is open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def parts(self, ending: str, depth: int) -> list[Piece]:
        """Return the pieces up to ``ending``.

        ending: of a bare word (""), ``"``, ``}``, or the end of the text ("heredoc").
        """
        text, run = self.text, _RUNS[ending]
        found: list[Piece] = []
        quoted = ending not in ("", "}")
        while True:
            if match := run.match(text, self.position):
                found.append(Piece("text", match.group(), quoted))
                self.position = match.end()
            if self.position >= len(text):
                if ending in ("", "heredoc"):
                    return found
                raise UnterminatedError(f"a {'${' if ending[-1:] == '}' else ending} never closes")
            character = text[self.position]
            if character == "\\":
                self.escape(found, ending)
            elif character == "$" and (match := _NAME.match(text, self.position)):
                found.append(Piece("variable", match.group(), quoted, match.group(1)))
                self.position = match.end()
            elif character == "$":
                found.append(self.dollar(quoted, depth, ending))
            elif character == "`":
                found.append(self.backtick(quoted))
            elif character == ending[-1:]:
                return found
            elif character == "'":
                end = text.find("'", self.position + 1)
                if end < 0:
                    raise UnterminatedError("a ' never closes")
                found.append(Piece("text", text[self.position + 1 : end], True))
                self.position = end + 1
            elif character == '"':
                self.position += 1
                inner = self.parts('"', depth + 1)
                self.position += 1
                # An empty "${A[@]}" is no word, where any other empty quotes are one.
                if not inner or not (inner[0].kind == "array" or _LIST.match(inner[0].text)):
                    found.append(_EMPTY)
                found.extend(inner)
            else:
                return found

    def escape(self, found: list[Piece], ending: str) -> None:
        following = self.text[self.position + 1 : self.position + 2]
        if ending in _ESCAPES and (not following or following not in _ESCAPES[ending]):
            found.append(Piece("text", "\\", True))
            self.position += 1
            return
        if ending == "" and following in (" ", "\t"):
            self.escaped_blank(bool(found))
        self.position += 2
        # A continuation vanishes, and so does the backslash that ends a text.
        if following not in ("", "\n"):
            found.append(Piece("text", following, True))

    def escaped_blank(self, inside_word: bool) -> None:
        """Take note of a backslash in front of a blank, which may be a continuation gone wrong."""

    def dollar(self, quoted: bool, depth: int, ending: str) -> Piece:
        text, start = self.text, self.position
        following = text[start + 1 : start + 2]
        if following == "{":
            return self.braced(quoted, depth)
        if following == "(":
            inner = self.nested()
            if inner.startswith("$((") and inner.endswith("))"):
                return Piece("arithmetic", inner, quoted, "$((...))")
            return Piece("unknown", inner, quoted, "$(...)")
        if following == "'" and not quoted:
            match = _ANSI.match(text, start)
            if match is None:
                raise UnterminatedError("a $' never closes")
            self.position = match.end()
            return Piece("text", _ANSI_ESCAPE.sub(_ansi, match.group(1)).partition("\0")[0], True)
        if match := _SPECIAL.match(text, start):
            self.position = match.end()
            return Piece("unknown", match.group(), quoted, match.group())
        self.position += 1
        # ``$"..."`` is a double-quoted text that may be translated.
        return Piece("text", "" if following == '"' and not quoted else "$", quoted)

    def braced(self, quoted: bool, depth: int) -> Piece:
        start = self.position
        match = _BRACED.match(self.text, start)
        if match is None or (match.group(2) and match.group(3) != "}") or depth >= DEEPEST:
            inner = self.nested()
            return Piece("unknown", inner, quoted, short(inner))
        self.position = match.end()
        name, array, operator = match.groups()
        if operator == "}":
            kind: Kind = "array" if array else "variable"
            return Piece(kind, match.group(), quoted, name, array or "")
        default = self.parts('"}' if quoted else "}", depth + 1)
        self.position += 1
        whole = self.text[start : self.position]
        return Piece("variable", whole, quoted, name, operator, tuple(default))

    def backtick(self, quoted: bool) -> Piece:
        match = _BACKTICK.match(self.text, self.position)
        if match is None:
            raise UnterminatedError("a ` never closes")
        self.position = match.end()
        return Piece("unknown", match.group(), quoted, "`...`")

    def nested(self) -> str:
        """Pass over ``$(...)``, ``${...}`` or ``(...)`` from here, and return it as written."""
        text, start, position = self.text, self.position, self.position
        stack: list[str] = []
        pending: list[Pending] = []  # heredocs, whose texts the next line begins
        while True:
            match = _NESTING.search(text, position)
            if match is None:
                raise UnterminatedError(f"a {text[start : start + 2]} never closes")
            found, position = match.group(), match.end()
            top = stack[-1] if stack else ""
            if found == "\\":
                position += 1
            elif found == top:
                stack.pop()
            elif found in ("$(", "${"):
                stack.append(")" if found == "$(" else "}")
            elif top == '"':
                position = match.start() + 1
            elif match["case"] and top in _COMMANDS:
                stack.append("esac")
            elif match["end"] and top in _COMMANDS:
                pending.append(Pending(0, match["end"], bool(match["tabs"]), False))
                position += bool(match["quote"] in ("'", '"'))
            elif found == "\n":
                for each in pending if top in _COMMANDS else ():
                    _, position = heredoc_text(text, position, each)
                pending = []
            elif found in ('"', "`"):
                stack.append(found)
            elif found == "$'":
                ansi = _ANSI.match(text, match.start())
                if ansi is None:
                    raise UnterminatedError("a $' never closes")
                position = ansi.end()
            elif found == "'":
                position = text.find("'", position) + 1
                if not position:
                    raise UnterminatedError("a ' never closes")
            elif found == "(" and top in _COMMANDS:
                stack.append(")")
            elif found == "#" and top in (")", "esac") and text[position - 2] in " \t\n;(":
                end = text.find("\n", position)
                position = len(text) if end < 0 else end
            if not stack:
                self.position = position
                return text[start:position]


def _ansi(match: re.Match[str]) -> str:
    letter, byte, short, long, octal = match.groups()
    if letter:
        return _ANSI_LETTERS[letter]
    code = int(octal, 8) & 0xFF if octal else int(byte or short or long, 16)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


def short(text: str) -> str:
    """Return a text that may be long, cut off for a name, without secrets."""
    return beginning(text, 40)


class Pending(NamedTuple):
    """A heredoc whose text is still to come: the token of its end, and how the end is written.

    tabs: ``<<-``, which takes away the tabs that a line begins with. quoted: nothing in the text is
    expanded.
    """

    token: int
    end: str
    tabs: bool
    quoted: bool


def heredoc_text(text: str, start: int, pending: Pending) -> tuple[str, int]:
    """Return the lines up to one that is the end, or to the last one.

    And the position behind that.
    """
    if pending.tabs:
        return _tabbed(text, start, pending.end)
    end = pending.end
    if "\n" in end or start >= len(text):
        stop = -1
    elif text.startswith(f"{end}\n", start):
        stop = start - 1
    else:
        stop = text.find(f"\n{end}\n", start)
        last = len(text) - len(end) - 1
        if stop < 0 and last >= start - 1 and text.endswith(f"\n{end}"):
            stop = last
    if stop < 0:
        rest = text[start:]
        return (rest if not rest or rest.endswith("\n") else rest + "\n"), len(text)
    return text[start : stop + 1], min(stop + len(end) + 2, len(text))


def _tabbed(text: str, position: int, end: str) -> tuple[str, int]:
    lines: list[str] = []
    while position < len(text):
        stop = text.find("\n", position)
        stop = len(text) if stop < 0 else stop
        line = text[position:stop].lstrip("\t")
        position = min(stop + 1, len(text))
        if line == end:
            break
        lines.append(line + "\n")
    return "".join(lines), position


def heredoc_pieces(body: Piece) -> tuple[Piece, ...]:
    """Return the pieces of a heredoc's text: expanded, unless its end was quoted.

    It is expanded as in double quotes.
    """
    if body.quoted:
        return (body,)
    try:
        return tuple(WordScanner(body.text).parts("heredoc", 0))
    except UnterminatedError:
        return (body,)
