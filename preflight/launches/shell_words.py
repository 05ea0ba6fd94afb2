"""One word of a shell script: its pieces, as bash's quotes and dollars divide it.

Nothing is expanded here. Each character is looked at a bounded number of times: no text, however it
is made, takes more than linear time.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

# ``${A:-${B:-...}}`` nested deeper than this is left as written.
DEEPEST = 20

Kind = Literal["text", "variable", "array", "arithmetic", "unknown"]


class Part(NamedTuple):
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
    default: tuple[Part, ...] = ()


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
_NESTING = re.compile(r"""[\\'"`(){}#]|\$[({']""")


_EMPTY = Part("text", "", True)
_LISTS = ("$@", "${@}")


class UnterminatedError(Exception):
    """A quote or bracket that never closes: bash reads to the end of the text, and gives up."""


def written(parts: tuple[Part, ...]) -> str:
    """A word as it stands, with nothing expanded."""
    return "".join(part.text for part in parts)


def _text(text: str, quoted: bool) -> Part:
    return tuple.__new__(Part, ("text", text, quoted, "", "", ()))


class WordScanner:
    """Goes through a text from ``position`` on; raises UnterminatedError where a quote is open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def parts(self, ending: str, depth: int) -> list[Part]:
        """The pieces up to ``ending``: a bare word's end (""), ``"``, ``}``, or the text's end."""
        text, run = self.text, _RUNS[ending]
        found: list[Part] = []
        quoted = ending not in ("", "}")
        while True:
            if match := run.match(text, self.position):
                found.append(_text(match.group(), quoted))
                self.position = match.end()
            if self.position >= len(text):
                if ending in ("", "heredoc"):
                    return found
                raise UnterminatedError(f"a {'${' if ending[-1:] == '}' else ending} never closes")
            character = text[self.position]
            if character == "\\":
                self.escape(found, ending)
            elif character == "$" and (match := _NAME.match(text, self.position)):
                name = ("variable", match.group(), quoted, match.group(1), "", ())
                found.append(tuple.__new__(Part, name))
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
                found.append(Part("text", text[self.position + 1 : end], True))
                self.position = end + 1
            elif character == '"':
                self.position += 1
                inner = self.parts('"', depth + 1)
                self.position += 1
                # An empty "${A[@]}" is no word, where any other empty quotes are one.
                if not inner or (inner[0].kind != "array" and inner[0].name not in _LISTS):
                    found.append(_EMPTY)
                found.extend(inner)
            else:
                return found

    def escape(self, found: list[Part], ending: str) -> None:
        following = self.text[self.position + 1 : self.position + 2]
        if ending in _ESCAPES and (not following or following not in _ESCAPES[ending]):
            found.append(Part("text", "\\", True))
            self.position += 1
            return
        if ending == "" and following in (" ", "\t"):
            self.escaped_blank(bool(found))
        self.position += 2
        # A continuation vanishes, and so does the backslash that ends a text.
        if following not in ("", "\n"):
            found.append(Part("text", following, True))

    def escaped_blank(self, inside_word: bool) -> None:
        """Told of each backslash in front of a blank, which may be a continuation gone wrong."""

    def dollar(self, quoted: bool, depth: int, ending: str) -> Part:
        text, start = self.text, self.position
        following = text[start + 1 : start + 2]
        if following == "{":
            return self.braced(quoted, depth)
        if following == "(":
            inner = self.nested()
            if inner.startswith("$((") and inner.endswith("))"):
                return Part("arithmetic", inner, quoted, "$((...))")
            return Part("unknown", inner, quoted, "$(...)")
        if following == "'" and not quoted:
            match = _ANSI.match(text, start)
            if match is None:
                raise UnterminatedError("a $' never closes")
            self.position = match.end()
            return Part("text", _ANSI_ESCAPE.sub(_ansi, match.group(1)).partition("\0")[0], True)
        if match := _SPECIAL.match(text, start):
            self.position = match.end()
            return Part("unknown", match.group(), quoted, match.group())
        self.position += 1
        # ``$"..."`` is a double-quoted text that may be translated.
        return Part("text", "" if following == '"' and not quoted else "$", quoted)

    def braced(self, quoted: bool, depth: int) -> Part:
        start = self.position
        match = _BRACED.match(self.text, start)
        if match is None or (match.group(2) and match.group(3) != "}") or depth >= DEEPEST:
            inner = self.nested()
            return Part("unknown", inner, quoted, short(inner))
        self.position = match.end()
        name, array, operator = match.groups()
        if operator == "}":
            kind: Kind = "array" if array else "variable"
            return Part(kind, match.group(), quoted, name, array or "")
        default = self.parts('"}' if quoted else "}", depth + 1)
        self.position += 1
        whole = self.text[start : self.position]
        return Part("variable", whole, quoted, name, operator, tuple(default))

    def backtick(self, quoted: bool) -> Part:
        match = _BACKTICK.match(self.text, self.position)
        if match is None:
            raise UnterminatedError("a ` never closes")
        self.position = match.end()
        return Part("unknown", match.group(), quoted, "`...`")

    def nested(self) -> str:
        """Passes over ``$(...)``, ``${...}`` or ``(...)`` from here, and returns it as written."""
        text, start, position = self.text, self.position, self.position
        stack: list[str] = []
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
                continue
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
            elif found == "(" and top in ("", ")"):
                stack.append(")")
            elif found == "#" and top == ")" and text[position - 2] in " \t\n;(":
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
    return text if len(text) <= 40 else text[:37] + "..."
