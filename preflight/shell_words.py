"""The words and operators of a shell script, split as bash splits them; nothing is expanded here.

One pass over the text, which looks at each character a bounded number of times: no script, however
it is made, takes more than linear time.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from preflight.launch_source import Origin, SourceNote

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


class Token(NamedTuple):
    """An operator (``operator`` says which; a line's end is ``"\\n"``), or else a word.

    bare: the text of a word without any quoting, which alone can be a keyword. elements: the words
    of an array assignment, whose name and ``=`` are in ``parts``. heredoc: the text that follows,
    for the word behind ``<<``.
    """

    line: int
    operator: str = ""
    parts: tuple[Part, ...] = ()
    bare: str = ""
    elements: tuple[tuple[Part, ...], ...] | None = None
    heredoc: Part | None = None


class Tokens(NamedTuple):
    """The tokens of a text, with notes on what bash reads in a way that its author hardly meant."""

    tokens: list[Token]
    notes: list[SourceNote]


ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?)=")
_BLANKS = re.compile(r"(?:[ \t]+|\\\n)+")
# A word that ends where it seems to, with the blanks in front of it: most words are.
_PLAIN = re.compile(
    r"""(?:[ \t]|\\\n)*([^ \t\n\\'"$`;&|<>()#][^ \t\n\\'"$`;&|<>()]*)(?=[ \t\n;&|]|\Z)"""
)
_OPERATOR = re.compile(
    r"&&|\|\||;;&|;&|;;|&>>|&>|\|&|<<<|<<-|<<|<&|<>|>>|>&|>\||[<>](?!\()|[;&|()]"
)
_RUNS = {
    "": re.compile(r"""[^ \t\n\\'"$`;&|<>()]+"""),
    '"': re.compile(r"""[^\\"$`]+"""),
    "}": re.compile(r"""[^\\'"$`}]+"""),
    '"}': re.compile(r"""[^\\"$`}]+"""),
    "heredoc": re.compile(r"[^\\$`]+"),
}
# What a backslash quotes inside double quotes, and inside a heredoc; elsewhere, everything.
_ESCAPES = {'"': '$`"\\\n', '"}': '$`"\\\n}', "heredoc": "$`\\\n"}
_BROKEN = re.compile(r"\\[ \t]+(#[^\n]*)?(?:\n|\Z)")
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


class _UnterminatedError(Exception):
    """A quote or bracket that never closes: bash reads to the end of the text, and gives up."""


def tokenize(text: str, source: str, first_line: int = 1) -> Tokens:
    """The tokens of a script. Never raises; from a quote that never closes on there are none."""
    scanner = _Scanner(text, source, first_line)
    scanner.run()
    return Tokens(scanner.tokens, scanner.notes)


def heredoc_parts(body: Part) -> tuple[Part, ...]:
    """The pieces of a heredoc's text: expanded as in double quotes, unless its end was quoted."""
    if body.quoted:
        return (body,)
    scanner = _Scanner(body.text, "", 1)
    try:
        return tuple(scanner.parts("heredoc", 0))
    except _UnterminatedError:
        return (body,)


def written(parts: tuple[Part, ...]) -> str:
    """A word as it stands, with nothing expanded."""
    return "".join(part.text for part in parts)


class _Scanner:
    def __init__(self, text: str, source: str, first_line: int) -> None:
        self.text = text
        self.source = source
        self.position = 0
        self.tokens: list[Token] = []
        self.notes: list[SourceNote] = []
        self.pending: list[tuple[int, bool]] = []  # heredocs whose text is still to come
        self.line = first_line
        self.counted = 0
        self.broken_until = 0
        self.no_arithmetic_until = 0

    def run(self) -> None:
        try:
            self.steps()
            self.heredocs()
        except _UnterminatedError as what:
            # Bash runs no command of a line that it cannot parse to its end.
            while self.tokens and self.tokens[-1].operator != "\n":
                self.tokens.pop()
            text = f"{what} never closes: bash reports a syntax error and runs nothing from here on"
            self.note("unterminated", text)
        if "\r\n" in self.text:
            text = (
                "the lines end in CR LF: bash takes the CR as part of the last word of a line; "
                "convert the file to LF"
            )
            first = self.text.count("\n", 0, self.text.index("\r\n")) + 1
            self.notes.append(SourceNote("carriage-return", text, Origin(self.source, first)))

    def note(self, identifier: str, text: str) -> None:
        self.notes.append(SourceNote(identifier, text, Origin(self.source, self.line)))

    def line_of(self, position: int) -> int:
        """The line of a position that is not before the last one asked for."""
        self.line += self.text.count("\n", self.counted, position)
        self.counted = max(self.counted, position)
        return self.line

    def steps(self) -> None:
        """Takes plain words by themselves, and everything else step by step."""
        text, tokens, match_plain = self.text, self.tokens, _PLAIN.match
        known: dict[str, tuple[Part, ...]] = {}
        while self.position < len(text):
            match = match_plain(text, self.position)
            if match is None and text[self.position] == "\n" and not self.pending:
                tokens.append(Token(self.line_of(self.position), "\n"))
                self.position += 1
                continue
            if match is None or (tokens and tokens[-1].operator in ("<<", "<<-")):
                self.step()
                continue
            start, self.position = match.span(1)
            self.line += text.count("\n", self.counted, start)
            self.counted = start
            bare = match.group(1)
            parts = known.get(bare)
            if parts is None:
                parts = known[bare] = (Part("text", bare),)
            tokens.append(Token(self.line, "", parts, bare))

    def step(self) -> None:
        text = self.text
        if blanks := _BLANKS.match(text, self.position):
            self.position = blanks.end()
            return
        start = self.position
        line = self.line_of(start)
        if text[start] == "\n":
            self.position += 1
            self.tokens.append(Token(line, "\n"))
            self.heredocs()
        elif text[start] == "#":
            end = text.find("\n", start)
            self.position = len(text) if end < 0 else end
        elif text.startswith("((", start) and (end := self.arithmetic_end(start)):
            self.position = end
            self.tokens.append(Token(line, "(("))
        elif operator := _OPERATOR.match(text, start):
            self.position = operator.end()
            self.tokens.append(Token(line, operator.group()))
        elif text[start] in "<>":  # process substitution
            self.position += 1
            inner = self.nested()
            part = Part("unknown", text[start] + inner, name=f"{text[start]}(...)")
            self.tokens.append(Token(line, parts=(part,)))
        else:
            self.word(line)

    def word(self, line: int) -> None:
        parts = tuple(self.parts("", 0))
        following = self.text[self.position : self.position + 1]
        single = len(parts) == 1 and parts[0].kind == "text" and not parts[0].quoted
        bare = parts[0].text if single else ""
        if following == "(" and (match := ASSIGNMENT.match(bare)) and match.end() == len(bare):
            self.position += 1
            self.tokens.append(Token(line, "", parts, bare, tuple(self.elements())))
            return
        if following in ("<", ">") and bare.isdigit():
            return  # the 2 of ``2>&1``
        if not parts:
            return  # nothing but a continuation
        behind = self.tokens[-1].operator if self.tokens else ""
        self.tokens.append(Token(line, "", parts, bare))
        if behind in ("<<", "<<-"):
            self.pending.append((len(self.tokens) - 1, behind == "<<-"))

    def elements(self) -> list[tuple[Part, ...]]:
        """The words up to the bracket that closes an array."""
        found: list[tuple[Part, ...]] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if blanks := _BLANKS.match(self.text, self.position):
                self.position = blanks.end()
            elif character == ")":
                self.position += 1
                return found
            elif character == "#":
                end = self.text.find("\n", self.position)
                self.position = len(self.text) if end < 0 else end
            elif character in "\n;&|<>(":
                self.position += 1
            elif parts := self.parts("", 0):
                found.append(tuple(parts))
        raise _UnterminatedError("an array's (")

    def heredocs(self) -> None:
        """Takes the texts of the heredocs that the line before announced."""
        for index, tabs in self.pending:
            token = self.tokens[index]
            end = written(token.parts)
            lines: list[str] = []
            while self.position < len(self.text):
                stop = self.text.find("\n", self.position)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.position : stop]
                self.position = min(stop + 1, len(self.text))
                line = line.lstrip("\t") if tabs else line
                if line == end:
                    break
                lines.append(line + "\n")
            quoted = any(part.quoted for part in token.parts)
            self.tokens[index] = token._replace(heredoc=Part("text", "".join(lines), quoted))
        self.pending.clear()

    def parts(self, ending: str, depth: int) -> list[Part]:
        """The pieces up to ``ending``: a bare word's end (""), ``"``, ``}``, or the text's end."""
        text, run, found = self.text, _RUNS[ending], list[Part]()
        quoted = ending not in ("", "}")
        while True:
            if match := run.match(text, self.position):
                found.append(Part("text", match.group(), quoted))
                self.position = match.end()
            if self.position >= len(text):
                if ending in ("", "heredoc"):
                    return found
                raise _UnterminatedError('a "' if ending == '"' else "a ${")
            character = text[self.position]
            if character == "\\":
                self.escape(found, ending)
            elif character == "$":
                found.append(self.dollar(quoted, depth, ending))
            elif character == "`":
                found.append(self.backtick(quoted))
            elif character == ending[-1:]:
                return found
            elif character == "'":
                end = text.find("'", self.position + 1)
                if end < 0:
                    raise _UnterminatedError("a '")
                found.append(Part("text", text[self.position + 1 : end], True))
                self.position = end + 1
            elif character == '"':
                self.position += 1
                inner = self.parts('"', depth + 1)
                self.position += 1
                # An empty "${A[@]}" is no word, where any other empty quotes are one.
                if not inner or inner[0].kind != "array":
                    found.append(Part("text", "", True))
                found.extend(inner)
            else:
                return found

    def escape(self, found: list[Part], ending: str) -> None:
        following = self.text[self.position + 1 : self.position + 2]
        if ending in _ESCAPES and (not following or following not in _ESCAPES[ending]):
            found.append(Part("text", "\\", True))
            self.position += 1
            return
        if ending == "" and following in (" ", "\t") and self.position >= self.broken_until:
            self.broken_continuation(bool(found))
        self.position += 2
        # A continuation vanishes, and so does the backslash that ends a text.
        if following not in ("", "\n"):
            found.append(Part("text", following, True))

    def broken_continuation(self, inside_word: bool) -> None:
        """Notes a backslash that was meant to continue the line, with a blank behind it."""
        end = self.text.find("\n", self.position)
        self.broken_until = len(self.text) if end < 0 else end
        match = _BROKEN.match(self.text, self.position)
        # In ``file\ #1`` the blank is part of a name.
        if match is None or (inside_word and match.group(1)):
            return
        self.line_of(self.position)
        comment = match.group(1)
        behind = f"a blank and {_short(comment)!r}" if comment else "a blank"
        text = (
            f"{behind} behind the backslash: bash ends the command on this line, passes what "
            "follows the backslash to the program, and runs the next line as a command of its "
            "own; end the line with the backslash"
        )
        self.note("continuation-broken", text)

    def dollar(self, quoted: bool, depth: int, ending: str) -> Part:
        text, start = self.text, self.position
        following = text[start + 1 : start + 2]
        if match := _NAME.match(text, start):
            self.position = match.end()
            return Part("variable", match.group(), quoted, match.group(1))
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
                raise _UnterminatedError("a $'")
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
            return Part("unknown", inner, quoted, _short(inner))
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
            raise _UnterminatedError("a `")
        self.position = match.end()
        return Part("unknown", match.group(), quoted, "`...`")

    def arithmetic_end(self, start: int) -> int:
        """Where ``((...))`` ends on its line; 0 where it does not."""
        if start < self.no_arithmetic_until:
            return 0
        stop = self.text.find("\n", start)
        stop = len(self.text) if stop < 0 else stop
        end = self.text.find("))", start, stop)
        if end < 0:
            self.no_arithmetic_until = stop
            return 0
        while self.text.startswith(")))", end):
            end += 1
        return end + 2

    def nested(self) -> str:
        """Passes over ``$(...)``, ``${...}`` or ``(...)`` from here, and returns it as written."""
        text, start, position = self.text, self.position, self.position
        stack: list[str] = []
        while True:
            match = _NESTING.search(text, position)
            if match is None:
                raise _UnterminatedError(f"a {text[start : start + 2]}")
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
                    raise _UnterminatedError("a $'")
                position = ansi.end()
            elif found == "'":
                position = text.find("'", position) + 1
                if not position:
                    raise _UnterminatedError("a '")
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


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
