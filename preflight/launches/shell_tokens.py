"""The words and operators of a shell script, split as bash splits them; nothing is expanded here.

Most of a script is words that stand for themselves, and most scripts say the same words often: so
whole commands of plain words are taken at once, and each other word is taken apart once.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from preflight.launches.shell_forms import Form, form_of
from preflight.launches.shell_grammar import (
    BEGINS,
    BLOCKS,
    CAREFUL,
    CARELESS,
    COMMAND,
    IS_NEWLINE,
    IS_OPERATOR,
    IS_WORD,
    OPENS,
    REDIRECTIONS,
    Token,
)
from preflight.launches.shell_heredoc import Pending, heredoc_text
from preflight.launches.shell_words import Part, UnterminatedError, WordScanner, short, written
from preflight.launches.source import Origin, SourceNote

# Bash 5.2 gives up between 2,500 and 5,000 blocks within each other ("syntax error near unexpected
# token"; measured with subshells, braces, if, while and case).
DEEPEST_BLOCKS = 5000

# Longer lines are taken apart however often they come.
LONGEST_KNOWN = 500


_UNQUOTED = re.compile(r"""[^ \t\n\\'"$`;&|<>()]+""")
_BLANKS = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"(?:[ \t]+|\\\n|#[^\n]*|[\n;&|<>(])")  # the words of an array
_CLOSING = re.compile(r"\)(?:[ \t]*\))*")
_BROKEN = re.compile(r"\\[ \t]+(#[^\n]*)?(?:\n|\Z)")


class Tokens(NamedTuple):
    """The tokens of a text, with notes on what bash reads in a way that its author hardly meant."""

    tokens: list[Token]
    notes: list[SourceNote]


def tokenize(text: str, source: str, first_line: int, forms: dict[str, Form | None]) -> Tokens:
    """The tokens of a script. Never raises; from a quote that never closes on there are none.

    forms: the words of other texts, which may be those of this one; it adds to them.
    """
    scanner = _Tokenizer(text, source, first_line, forms)
    scanner.run()
    return Tokens(scanner.tokens, scanner.notes)


class _Tokenizer(WordScanner):
    def __init__(
        self, text: str, source: str, first_line: int, forms: dict[str, Form | None]
    ) -> None:
        super().__init__(text)
        self.source = source
        self.tokens: list[Token] = []
        self.notes: list[SourceNote] = []
        self.forms = forms
        self.pending: list[Pending] = []
        self.line = first_line  # of the token that is being read
        self.start = 0  # its position
        self.single = True  # nothing reaches from this line into the next
        self.brackets = 0  # that are open, among the blocks that are
        self.blocks = 0
        self.cases = "case" in text  # whose patterns end in brackets that nothing opened
        self.broken_until = 0
        self.continued: dict[str | None, str] = {}  # what is said of each comment behind a \\
        self.no_arithmetic_until = 0

    def run(self) -> None:
        try:
            self.lines()
            self.heredocs(self.position)
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
        origin = tuple.__new__(Origin, (self.source, line))
        self.notes.append(tuple.__new__(SourceNote, (identifier, text, origin)))

    def lines(self) -> None:
        """Takes line by line; a line that was there before becomes the same tokens again."""
        text, tokens, new = self.text, self.tokens, tuple.__new__
        known: dict[str, tuple[list[Token], list[SourceNote]]] = {}
        while self.position < len(text):
            position, line = self.position, self.line
            stop = text.find("\n", position, position + LONGEST_KNOWN)
            said = text[position:stop] if stop >= 0 else None
            if said in known:
                made, notes = known[said]
                if len(made) == 1:
                    _, operator, _, _, _, words = made[0]
                    tokens.append(new(Token, (line, operator, None, None, None, words)))
                    self.position, self.line = stop + 1, line + 1
                    continue
                tokens += [
                    new(Token, (line, operator, form, elements, None, words))
                    for _, operator, form, elements, _, words in made
                ]
                for note in notes:
                    self.note(note.id, note.text, line)
                self.position, self.line = stop + 1, line + 1
                continue
            first_token, first_note = len(tokens), len(self.notes)
            open_before = self.blocks, self.brackets
            self.single = True
            self.rest_of_line()
            if (
                said is not None
                and self.single
                and len(tokens) > first_token
                and tokens[-1][0] == line
                and open_before == (self.blocks, self.brackets)
            ):
                known[said] = tokens[first_token:], self.notes[first_note:]

    def rest_of_line(self) -> None:
        """Takes a line, with those that its quotes, continuations and heredocs reach into."""
        text, end, append, new = self.text, len(self.text), self.tokens.append, tuple.__new__
        position, line, forms = self.position, self.line, self.forms
        begins = True  # a command may begin here
        announced = ""  # << or <<-, where the end of a heredoc stands here
        while position < end:
            if begins and not self.pending and (found := COMMAND.match(text, position)):
                words, newline, operator = found.groups()
                append(new(Token, (line, operator or "\n", None, None, None, words.split())))
                position = found.end()
                if newline:
                    line += text.count("\n", found.start(2), position)
                    break
                continue
            found = (CARELESS if position < self.broken_until else CAREFUL).match(text, position)
            kind = found.lastindex if found else None
            if found is not None and kind == IS_WORD:
                said = found[1]
                form = forms[said] if said in forms else self.form(said)
                end_of_word = found.end()
                if form and not (form.assigns and text[end_of_word : end_of_word + 1] == "("):
                    if announced:
                        self.announce(announced, form)
                        announced = ""
                    append(new(Token, (line, "", form, None, None, ())))
                    position = end_of_word
                    line += form.lines
                    if begins:
                        if form.bare in BLOCKS:
                            self.block(form.bare in OPENS)
                        begins = form.bare in BEGINS or form.assignment is not None
                    continue
            elif found is not None and kind == IS_OPERATOR:
                operator = found[3]
                append(new(Token, (line, operator, None, None, None, ())))
                position = found.end()
                begins = operator not in REDIRECTIONS
                announced = operator if operator in ("<<", "<<-") else ""
                if operator in ("(", ")"):
                    position = self.bracket(operator, position)
                continue
            elif found is not None and kind == IS_NEWLINE:
                append(new(Token, (line, "\n", None, None, None, ())))
                position = found.end()
                if self.pending:
                    position = self.heredocs(found.start(2) + 1)
                line += text.count("\n", found.start(2), position)
                break
            elif found is not None and kind is not None:
                position = found.end()
                line += text[position - 1] == "\n"
                continue
            self.position, self.line = position, line
            begins = self.other(announced) and begins
            position, line, announced = self.position, self.line, ""
        self.position, self.line = position, line

    def form(self, said: str) -> Form | None:
        """The form of a word; None where its end does not lie where it seemed to."""
        form: Form | None = None
        if _UNQUOTED.fullmatch(said):
            form = form_of((Part("text", said),))
        elif said[0] == said[-1] == "'" and said.find("'", 1) == len(said) - 1:
            form = form_of((Part("text", said[1:-1], True),), said.count("\n"))
        else:
            scanner = WordScanner(said)
            with suppress(UnterminatedError):
                parts = scanner.parts("", 0)
                if parts and scanner.position == len(said):
                    form = form_of(parts, said.count("\n"))
        self.forms[said] = form
        return form

    def bracket(self, operator: str, position: int) -> int:
        """Counts round brackets; takes those that close nothing together, and says up to where."""
        if operator == "(":
            self.brackets += 1
            self.block(True)
        elif self.brackets:
            self.brackets -= 1
            self.block(False)
        elif not self.cases and (found := _CLOSING.match(self.text, position - 1)):
            return found.end()
        return position

    def block(self, begins: bool) -> None:
        """Counts the blocks that lie around the next token."""
        self.blocks = max(0, self.blocks + (1 if begins else -1))
        if self.blocks > DEEPEST_BLOCKS:
            raise UnterminatedError(f"more than {DEEPEST_BLOCKS} blocks within each other")

    def other(self, announced: str) -> bool:
        """One step of any other kind; true where a command may still begin behind it."""
        blanks = _BLANKS.match(self.text, self.position)
        start = self.start = self.position = blanks.end() if blanks else self.position
        text, line = self.text, self.line
        if start >= len(text):
            return True
        if text.startswith("((", start):
            if end := self.arithmetic_end(start):
                self.position = end
                self.tokens.append(Token(line, "(("))
            else:
                self.position += 1
                self.tokens.append(Token(line, "("))
                self.bracket("(", start)
            begins = True
        elif text[start] in "<>":  # process substitution
            self.position += 1
            inner = self.nested()
            part = Part("unknown", text[start] + inner, name=f"{text[start]}(...)")
            self.tokens.append(Token(line, form=form_of([part])))
            begins = False
        elif (
            text[start] == "\\"
            and start >= self.broken_until
            and text[start + 1 : start + 2] in (" ", "\t")
        ):
            self.escaped_blank(False)
            return True
        else:
            begins = self.word(line, announced)
        self.line += text.count("\n", start, self.position)
        return begins

    def word(self, line: int, announced: str) -> bool:
        parts = self.parts("", 0)
        following = self.text[self.position : self.position + 1]
        if not parts:
            return True  # nothing but a continuation
        form = form_of(parts)
        if following == "(" and form.assigns:
            self.position += 1
            self.tokens.append(Token(line, "", form, tuple(self.elements())))
            return True
        if following in ("<", ">") and form.bare.isdigit():
            return True  # the 2 of ``2>&1``
        if announced:
            self.announce(announced, form)
        self.tokens.append(Token(line, "", form))
        return form.bare in BEGINS or form.assignment is not None

    def announce(self, operator: str, form: Form) -> None:
        """Takes the next token for the end of a heredoc, whose text the next line begins."""
        end, quoted = form.bare, False
        if not end:
            # The home directory that ``~`` would be elsewhere is a quoted variable.
            quoted = any(part.quoted and part.kind == "text" for part in form.parts)
            end = written(form.parts)
        self.pending.append(Pending(len(self.tokens), end, operator == "<<-", quoted))

    def elements(self) -> list[Form]:
        """The words up to the bracket that closes an array."""
        found: list[Form] = []
        while self.position < len(self.text):
            match = CAREFUL.match(self.text, self.position)
            if match and match.lastindex == IS_WORD:
                said = match[1]
                if form := self.forms[said] if said in self.forms else self.form(said):
                    found.append(form)
                    self.position = match.end()
                    continue
            if between := _BETWEEN.match(self.text, self.position):
                self.position = between.end()
            elif self.text[self.position] == ")":
                self.position += 1
                return found
            elif parts := self.parts("", 0):
                found.append(form_of(parts))
        raise UnterminatedError("an array's ( never closes")

    def heredocs(self, position: int) -> int:
        """Takes the texts of the heredocs that the line before announced; returns their end."""
        self.position, self.single = position, False
        for pending in self.pending:
            body, self.position = heredoc_text(self.text, self.position, pending)
            heredoc = Part("text", body, pending.quoted)
            line, _, form, *_ = self.tokens[pending.token]
            self.tokens[pending.token] = Token(line, "", form, None, heredoc)
        self.pending.clear()
        return self.position

    def escaped_blank(self, inside_word: bool) -> None:
        """Notes a backslash that was meant to continue the line, with a blank behind it."""
        if self.position < self.broken_until:
            return
        end = self.text.find("\n", self.position)
        self.broken_until = len(self.text) if end < 0 else end
        match = _BROKEN.match(self.text, self.position)
        # In ``file\ #1`` the blank is part of a name.
        if match is None or (inside_word and match.group(1)):
            return
        comment = match.group(1)
        if comment not in self.continued:
            behind = f"a blank and {short(comment)!r}" if comment else "a blank"
            self.continued[comment] = (
                f"{behind} behind the backslash: bash ends the command on this line, passes what "
                "follows the backslash to the program, and runs the next line as a command of its "
                "own; end the line with the backslash"
            )
        line = self.line + self.text.count("\n", self.start, self.position)
        self.note("continuation-broken", self.continued[comment], line)

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
