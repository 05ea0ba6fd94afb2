"""The words and operators of a shell script, as bash splits them; nothing is expanded here."""

from __future__ import annotations

import re
from typing import NamedTuple

from preflight.launches.shell_words import (
    Pending,
    Piece,
    UnterminatedError,
    WordScanner,
    WrittenWord,
    heredoc_text,
    short,
    written,
    written_word,
)
from preflight.launches.source import Origin, SourceError, SourceNote

REDIRECTIONS = frozenset({"<", ">", ">>", "<<", "<<-", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>"})
DECLARATIONS = frozenset({"declare", "export", "local", "readonly", "typeset"})
# Words behind which a command begins, where they begin one themselves; and other keywords.
LEADS = frozenset({"then", "else", "elif", "do", "{", "!", "coproc"})
CONDITIONS = frozenset({"if", "while", "until"})
CLOSES = frozenset({"fi", "done", "esac", "}"})
_OPENS = CONDITIONS | {"{", "case", "for", "select"}
_BEGINS = LEADS | CLOSES | CONDITIONS
# Bash 5.2 gives up between 2,500 and 5,000 blocks within each other ("syntax error near unexpected
# token"; measured with subshells, braces, if, while and case).
DEEPEST_BLOCKS = 5000
# 1 MB of published launches has 53,000 words and operators.
_MOST_TOKENS = 200_000

_BETWEEN = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)+")
_OPERATOR = re.compile(
    r"&&|\|\||;;&|;&|;;|&>>|&>|\|&|<<<|<<-|<<|<&|<>|>>|>&|>\||[<>](?!\()|[;&|)]|\(\)|\((?!\()"
)
_IN_ARRAY = re.compile(r"(?:[ \t]+|\\\n|#[^\n]*|[\n;&|<>(])")
# ``<model_path>`` in a guide; behind ``<in>`` of a real redirection stands its file at once.
_PLACEHOLDER = re.compile(
    r"<[A-Za-z][A-Za-z0-9_ ,.:/-]{0,60}>(?=[ \t]*(?:\\?\n|-|&|\Z)|[ \t]+\\\n|:\d)"
)
# In quotes, where it names what it stands for: "<think>" and others are meant as they stand.
_QUOTED_PLACEHOLDER = re.compile(
    r"<\s*[A-Za-z](?:[\w ,.:/-]*[\W_])?"
    r"(?:your|ip\d*|address|path|host|hostname|name|nic|interface|dir|port|model)"
    r"(?:[\W_][\w ,.:/-]*)?>",
    re.IGNORECASE,
)
_BROKEN = re.compile(r"\\[ \t]+(#[^\n]*)?(?:\n|\Z)")
# The right spelling, for what is too long to be read.
ALONE = "give the part that starts the servers alone"


class Token(NamedTuple):
    """An operator (``operator`` says which; a line's end is ``"\\n"``), or else a word.

    elements: the words of an array assignment, whose name and ``=`` are in ``word``. heredoc: the
    text that follows, for the word behind ``<<``. formula: what stands in ``((...))``.
    """

    line: int
    operator: str = ""
    word: WrittenWord | None = None
    elements: tuple[WrittenWord, ...] | None = None
    heredoc: Piece | None = None
    formula: str = ""

    @property
    def bare(self) -> str:
        """A word that can be a keyword."""
        return self.word.bare if self.word else ""


class Tokens(NamedTuple):
    """The tokens of a text, with notes on what bash reads in a way that its author hardly meant."""

    tokens: list[Token]
    notes: list[SourceNote]


def tokenize(text: str, source: str, first_line: int) -> Tokens:
    """Return the tokens of a script, none from a quote that never closes on.

    Raises SourceError for far too many.
    """
    scanner = _Tokenizer(text, source, first_line)
    scanner.run()
    return Tokens(scanner.tokens, scanner.notes)


class _Tokenizer(WordScanner):
    def __init__(self, text: str, source: str, first_line: int) -> None:
        super().__init__(text)
        self.source = source
        self.tokens: list[Token] = []
        self.notes: list[SourceNote] = []
        self.pending: list[Pending] = []
        self.line = first_line  # of the token that is being read
        self.start = 0  # its position
        self.begins = True  # a command may begin here
        self.announced = ""  # << or <<-, where the end of a heredoc stands here
        self.brackets = 0  # that are open, among the blocks that are
        self.blocks = 0
        self.broken_until = 0
        self.no_arithmetic_until = 0

    def run(self) -> None:
        try:
            while self.position < len(self.text):
                self.token()
                self.line += self.text.count("\n", self.start, self.position)
                if len(self.tokens) > _MOST_TOKENS:
                    raise SourceError(f"{self.source} has more than {_MOST_TOKENS} words: {ALONE}")
            self.heredocs()
        except UnterminatedError as what:
            # Bash runs no command of a line that it cannot parse to its end.
            while self.tokens and self.tokens[-1].operator != "\n":
                self.tokens.pop()
            text = f"{what}: bash reports a syntax error and runs nothing from here on"
            self.note("unterminated", text, self.line)
        if "\r\n" in self.text:
            text = (
                "the lines end in CR LF: bash takes the CR as part of the last word of a line; "
                "convert the file to LF"
            )
            first = self.text.count("\n", 0, self.text.index("\r\n")) + 1
            self.note("carriage-return", text, first)

    def note(self, identifier: str, text: str, line: int) -> None:
        self.notes.append(SourceNote(identifier, text, Origin(self.source, line)))

    def token(self) -> None:
        """Take the next token, or what stands in front of it."""
        text, start = self.text, self.position
        self.start = start
        if match := _BETWEEN.match(text, start):
            self.position = match.end()
        elif text[start] == "<" and (match := _PLACEHOLDER.match(text, start)):
            self.position = match.end()
            pieces = [self.placeholder(match.group())]
            if text.startswith(":", self.position):
                pieces += self.parts("", 0)
            self.tokens.append(Token(self.line, word=written_word(pieces)))
            self.begins, self.announced = False, ""
        elif text[start] == "\n":
            self.tokens.append(Token(self.line, "\n"))
            self.position, self.begins, self.announced = start + 1, True, ""
            self.heredocs()
        elif match := _OPERATOR.match(text, start):
            self.operator(match.group())
        elif text.startswith("((", start):
            if end := self.arithmetic_end(start):
                self.position = end
                formula = text[start + 2 : end - 2]
                self.tokens.append(Token(self.line, "((", formula=formula))
            else:
                self.operator("(")
        elif text[start] in "<>":  # process substitution
            self.position += 1
            piece = Piece("unknown", text[start] + self.nested(), name=f"{text[start]}(...)")
            self.tokens.append(Token(self.line, word=written_word([piece])))
            self.begins, self.announced = False, ""
        else:
            self.word()

    def operator(self, operator: str) -> None:
        self.tokens.append(Token(self.line, operator))
        self.position += len(operator)
        self.begins = operator not in REDIRECTIONS
        self.announced = operator if operator in ("<<", "<<-") else ""
        if operator == "(":
            self.brackets += 1
            self.block(True)
        elif operator == ")" and self.brackets:
            self.brackets -= 1
            self.block(False)

    def block(self, begins: bool) -> None:
        """Count the blocks that lie around the next token."""
        self.blocks = max(0, self.blocks + (1 if begins else -1))
        if self.blocks > DEEPEST_BLOCKS:
            raise UnterminatedError(f"more than {DEEPEST_BLOCKS} blocks within each other")

    def word(self) -> None:
        pieces = self.parts("", 0)
        following = self.text[self.position : self.position + 1]
        if not pieces:
            return  # nothing but a continuation
        match = _PLACEHOLDER.match(self.text, self.position) if following == "<" else None
        if match is not None and pieces[-1].text.endswith("="):
            pieces.append(self.placeholder(match.group()))
            self.position = match.end()
            if self.text.startswith(":", self.position):
                pieces += self.parts("", 0)
        word = written_word(self.to_fill_in(pieces))
        if following in ("<", ">") and word.bare.isdigit():
            return  # the 2 of ``2>&1``
        elements = None
        if following == "(" and word.assignment and not word.assignment.value:
            self.position += 1
            elements = tuple(self.elements())
        elif self.announced:
            self.announce(word)
        self.tokens.append(Token(self.line, "", word, elements))
        if self.begins and word.bare in _OPENS | CLOSES:
            self.block(word.bare in _OPENS)
        self.begins = self.begins and (word.bare in _BEGINS or word.assignment is not None)
        self.announced = ""

    def placeholder(self, text: str, takes: str = "bash would take it for a file to read") -> Piece:
        """Take ``<model_path>`` of a guide for what its reader is to fill in."""
        said = f"{text} is a placeholder: {takes}; it is taken as not set"
        self.note("placeholder", said, self.line)
        return Piece("unknown", text, True, text)

    def to_fill_in(self, pieces: list[Piece]) -> list[Piece]:
        """Return a word's pieces, with a placeholder for ``"<your ip>"``, the whole of a value."""
        said = [piece for piece in pieces if piece.text]  # double quotes begin with an empty one
        before, last = said[:-1], said[-1] if said else pieces[-1]
        whole = not before or (len(before) == 1 and before[0].text.endswith("="))
        meant = whole and last.quoted and last.kind == "text"
        if meant and _QUOTED_PLACEHOLDER.fullmatch(last.text):
            return [*before, self.placeholder(last.text, "a program would get it as it stands")]
        return pieces

    def announce(self, word: WrittenWord) -> None:
        """Take the next token for the end of a heredoc, whose text the next line begins."""
        end, quoted = word.bare, False
        if not end:
            # The home directory that ``~`` would be elsewhere is a quoted variable.
            quoted = any(piece.quoted and piece.kind == "text" for piece in word.pieces)
            end = written(word.pieces)
        self.pending.append(Pending(len(self.tokens), end, self.announced == "<<-", quoted))

    def elements(self) -> list[WrittenWord]:
        """Take the words up to the bracket that closes an array."""
        found: list[WrittenWord] = []
        while self.position < len(self.text):
            if between := _IN_ARRAY.match(self.text, self.position):
                self.position = between.end()
            elif self.text[self.position] == ")":
                self.position += 1
                return found
            elif pieces := self.parts("", 0):
                found.append(written_word(self.to_fill_in(pieces)))
        raise UnterminatedError("an array's ( never closes")

    def heredocs(self) -> None:
        """Take the texts of the heredocs that the line before announced."""
        for pending in self.pending:
            body, self.position = heredoc_text(self.text, self.position, pending)
            heredoc = Piece("text", body, pending.quoted)
            self.tokens[pending.token] = self.tokens[pending.token]._replace(heredoc=heredoc)
        self.pending.clear()

    def escaped_blank(self, inside_word: bool) -> None:
        """Note a backslash that was meant to continue the line, with a blank behind it."""
        if self.position < self.broken_until:
            return
        end = self.text.find("\n", self.position)
        self.broken_until = len(self.text) if end < 0 else end
        match = _BROKEN.match(self.text, self.position)
        # In ``file\ #1`` the blank is part of a name.
        if match is None or (inside_word and match.group(1)):
            return
        comment = match.group(1)
        behind = f"a blank and {short(comment)!r}" if comment else "a blank"
        said = (
            f"{behind} behind the backslash: bash ends the command on this line, passes what "
            "follows the backslash to the program, and runs the next line as a command of its "
            "own; end the line with the backslash"
        )
        line = self.line + self.text.count("\n", self.start, self.position)
        self.note("continuation-broken", said, line)

    def arithmetic_end(self, start: int) -> int:
        """Return where ``((...))`` ends on its line; 0 where it does not."""
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


def behind_newlines(tokens: list[Token], position: int, end: int) -> int:
    """Return the place behind empty lines, if any."""
    while position < end and tokens[position].operator == "\n":
        position += 1
    return position
