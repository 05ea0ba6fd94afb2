"""A shell script as tree-sitter-bash parses it, and the pieces of its words; nothing is expanded.

What the grammar cannot parse is an ERROR node: whoever walks the tree names that part as not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from checks.framework.regex import regex
from checks.host_snapshot.secrets import beginning
from preflight.launches.source import Origin, SourceError, SourceNote

Node = Any  # tree_sitter.Node: the package is imported when a script is read

# A word that a guide leaves to its reader, ``<model_path>``; of ``<in>out`` the file stands behind.
_PLACEHOLDER = regex(
    r"(?:(?<=[\s=])|^)<([A-Za-z][A-Za-z0-9_ ,.:/-]{0,60})>(?=[ \t]*(?:\\?\n|-|&|\Z)|:\d)", re.M
)
# In quotes, if it names what it stands for: "<think>" and others are meant as they stand.
_QUOTED_PLACEHOLDER = regex(
    r"<\s*[A-Za-z](?:[\w ,.:/-]*[\W_])?"
    r"(?:your|ip\d*|address|path|host|hostname|name|nic|interface|dir|port|model)"
    r"(?:[\W_][\w ,.:/-]*)?>",
    re.IGNORECASE,
)
# Private characters in place of those that would end the word: ``<``, ``>``, a blank within, CR.
_HIDDEN = {
    "\ue000": "<", "\ue001": ">", "\ue002": " ", "\ue003": "\r", "\ue004": "$((", "\ue005": "))"
}  # fmt: skip
_HIDES = regex("[\ue000-\ue005]")
_FILL_IN = regex("\ue000[^\ue001]*\ue001")
# A sum in ``${A:-$((1 << 3))}``, of which tree-sitter-bash 0.25 makes a command or a heredoc.
_SUM = regex(
    r"(\$\{\w+:?[-=+][^{}()\n]*)\$\(\(((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*)\)\)"
    r"(?=[^{}()\n]*\})"
)
_BROKEN = re.compile(rb"(?<!\\)\\[ \t]+(?:#[^\n]*)?(?:\n|\Z)")
_DEEP = regex(r"(?:(?:\$?\(|[{`]|\b(?:if|while|until|case)\b)[ \t\n]*){300}")
_ASIDE = regex(r"(<<-?[ \t]*(['\"]?)[A-Za-z_]\w*\2[^\n&|;]*?)[ \t]&[ \t]*$", re.M)
_BLANK = (
    "a blank behind the backslash: bash ends the command on this line, passes what follows the "
    "backslash to the program, and runs the next line as a command of its own; end the line with "
    "the backslash"
)
_BLANK_WORD = "\ue002".encode()
_QUOTED = frozenset(
    "string string_content raw_string ansi_c_string comment heredoc_body heredoc_content".split()
)
_LAST_BACKSLASH = regex(r"\\\n?\Z")
_DOUBLE = regex(r'\\([$`"\\])|\\\n')
_HEREDOC = regex(r"\\([$`\\])|\\\n")
_BARE = regex(r"\\\n|\\(.)", re.DOTALL)
_ANSI = {r"\n": "\n", r"\t": "\t", r"\\": "\\", r"\'": "'"}
# Escapes of $'...': those, and characters of ASCII by number, as this program quotes them itself.
_ANSI_ESCAPE = regex(r"\\x([0-7][0-9a-f])|\\.", re.DOTALL)
_OTHER_ANSI = regex(r"(?<!\\)(?:\\\\)*\\(?!x(?!00)[0-7][0-9a-f])[^nt\\']", re.DOTALL)
_PARAMETER = regex(
    r"\$\{([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([^\[\]]*)\])?(.*)\}", re.DOTALL
)
_OPERATOR = regex(r"##?|%%?|//|/#|/%|/|\^\^?|,,?|:?[-+=?]|:")
# The pattern of ${A/pattern/by}.
_REPLACED = regex(r"(?:[^/\\'\"]|\\.|'[^']*'|\"[^\"]*\")*")
_NAMED = re.compile(rb"\$([A-Za-z_]\w*|[0-9@*#])")
_WORD_REST = re.compile(rb"[^\s'\"`\\;&|<>()]*")
_MOST_PASSES = 5
_SPECIAL = regex(r"[$`'\"\\]")
_HOME = regex(r"~(?:/|\Z)")
_LEAVES = frozenset(
    "word number variable_name special_variable_name extglob_pattern regex test_operator "
    "string_content heredoc_content file_descriptor".split()
)
_EXPANSIONS = frozenset(
    "simple_expansion expansion command_substitution arithmetic_expansion".split()
)
_IN_FRONT = regex(r"(?:\s|\\\n)*")
_INNER = frozenset("concatenation command_name heredoc_body brace_expression".split())
_NOT_SET = "it is taken as not set"
_MOST_CHARACTERS = 16 * 2**20
# The right spelling, for what is too long to be read.
ALONE = "give the part that starts the servers alone"


class Piece(NamedTuple):
    """A piece of a word: a plain text, ``$A`` or ``${A:-x}`` (parameter), ``$(...)`` (output), a
    sum (arithmetic), or something unread.

    Attributes:
        text: Without quotes if the type is ``text``, else as written.
        name: Of a parameter; of another type, the name of the piece in messages.
        place: The text in a parameter's brackets.
        mark: ``!`` or ``#`` before the name.
        operand: What stands behind the operator; in ``${A/x/y}`` the x, and replacement the y. Both
            are None if not read.
    """

    type: Literal["text", "parameter", "output", "arithmetic", "unread"]
    text: str
    quoted: bool = False
    name: str = ""
    place: str | None = None
    mark: str = ""
    operator: str = ""
    operand: tuple[Piece, ...] | None = ()
    replacement: tuple[Piece, ...] | None = ()
    rest: str = ""  # the operand as it is written


Pieces = tuple[Piece, ...]
_EMPTY = Piece("text", "", True)


class WrittenWord(NamedTuple):
    """A word as it is written.

    Attributes:
        line: The row in which it begins, counted from 0.
    """

    pieces: Pieces
    line: int

    @property
    def text(self) -> str:
        return written(self.pieces)


def written(pieces: Pieces) -> str:
    """Return a word as it stands, with nothing expanded."""
    return "".join(piece.text for piece in pieces)


class ShellText:
    """One text that a shell reads: the script, or the text of ``eval`` or ``source``.

    Args:
        first_line: None for a text without lines, as on a command line. notes: parts that bash
            reads otherwise than the author meant.
    """

    def __init__(self, text: str, source: str, first_line: int | None) -> None:
        """Parse a text; placeholders and constructs that the grammar lacks are hidden from the
        parser.

        Args:
            source: The name for origins.

        Raises:
            SourceError: For a text that is too long.
        """
        if len(text) > _MOST_CHARACTERS:
            raise SourceError(f"{source} has more than {_MOST_CHARACTERS} characters: {ALONE}")
        self.source, self.lined = source, first_line is not None
        self.before = (first_line or 1) - 1
        self.notes: list[SourceNote] = []
        deep = _DEEP.search(text)
        if deep is not None:  # the parser takes minutes for such a text
            row = text.count("\n", 0, deep.start())
            message = "brackets are nested deeper than is followed: nothing is read from here on"
            self.note("script-not-read", message, row)
            text = text[: text.rfind("\n", 0, deep.start()) + 1]
        hidden = _LAST_BACKSLASH.sub("\n", text.replace("\r\n", "\ue003\n"))
        hidden = _PLACEHOLDER.sub(
            lambda match: f"\ue000{match[1].replace(' ', chr(0xE002))}\ue001", hidden
        )
        hidden = _SUM.sub("\\1\ue004\\2\ue005", hidden)
        # ``cmd <<EOF &``: the grammar takes no & there.
        self._aside = {hidden.count("\n", 0, m.start()) for m in _ASIDE.finditer(hidden)}
        hidden = _ASIDE.sub(r"\1", hidden)
        self.root: Node
        self.bytes, self.root = _parse(hidden.encode(errors="surrogateescape"))
        self._words: dict[int, list[WrittenWord]] = {}
        self._pieces: dict[int, Pieces] = {}
        self._note_lines(text)

    def _note_lines(self, text: str) -> None:
        """Note two things that bash reads otherwise than was meant: lines that end in CR LF, and a
        backslash with blanks behind it, which does not join its line with the next.

        Such a backslash is replaced by a word that the grammar can read, and the text is parsed
        again.

        Args:
            text: As written; ``self.bytes`` has its placeholders hidden.
        """
        if "\r\n" in text:
            taken = "bash takes the CR as part of the last word of a line; convert the file to LF"
            row = text.count("\n", 0, text.index("\r\n"))
            self.note("carriage-return", f"the lines end in CR LF: {taken}", row)
        places = []
        for match in _BROKEN.finditer(self.bytes):
            inside = self.bytes[match.start() - 1 : match.start()].strip() and b"#" in match.group()
            if inside:  # in ``file\ #1`` the blank is part of a name
                continue
            tree = self.root.descendant_for_byte_range(match.start(), match.start() + 1)
            if tree is not None and tree.type not in _QUOTED:
                places.append(match.start())
                self.note("continuation-broken", _BLANK, self.bytes.count(b"\n", 0, match.start()))
        for place in reversed(places):  # the grammar passes over that word
            self.bytes = self.bytes[:place] + _BLANK_WORD + self.bytes[place + 2 :]
        if places:
            self.bytes, self.root = _parse(self.bytes)

    def note(self, identifier: str, message: str, row: int) -> None:
        """Keep a note about a row of this text, counted from 0."""
        self.notes.append(SourceNote(identifier, message, Origin(self.source, self.line(row))))

    def line(self, row: int) -> int | None:
        return self.before + row + 1 if self.lined else None

    def origin(self, tree: Node) -> Origin:
        return Origin(self.source, self.line(tree.start_point[0]))

    def text(self, tree: Node) -> str:
        """Return the text of a tree as it is written."""
        return _shown(self._raw(tree.start_byte, tree.end_byte))

    def _raw(self, start: int, end: int) -> str:
        return self.bytes[start:end].decode(errors="surrogateescape")

    # Words

    def words(self, nodes: list[Node]) -> list[WrittenWord]:
        """Return the words that nodes make: nodes without a blank in between are one word."""
        if not nodes:
            return []
        if nodes[0].id not in self._words:
            self._words[nodes[0].id] = list(self._grouped(nodes))
        return self._words[nodes[0].id]

    def _grouped(self, nodes: list[Node]) -> Iterator[WrittenWord]:
        """Yield the words that nodes make: a blank between two nodes ends a word."""
        pieces: list[Piece] = []
        row, before = -1, None
        for tree in nodes:
            if pieces and before is not None and self.has_gap(before, tree):
                yield WrittenWord(self._finish_word(pieces, row), row)
                pieces = []
            if not pieces:
                row = tree.start_point[0]
            pieces += self.raw_pieces(tree)
            before = tree
        if pieces:
            yield WrittenWord(self._finish_word(pieces, row), row)

    def has_gap(self, tree: Node, behind: Node) -> bool:
        """Return whether the text between two trees is more than a line that goes on."""
        return self.bytes[tree.end_byte : behind.start_byte].replace(b"\\\n", b"") != b""

    def runs_in_background(self, tree: Node) -> bool:
        """Return whether an & stands behind the heredoc that a command announces."""
        first, last = tree.start_point[0], tree.end_point[0]
        heredoc = tree.type == "redirected_statement"
        return heredoc and any(first <= row <= last for row in self._aside)

    def pieces(self, tree: Node) -> Pieces:
        """Return the pieces of a word, of an assignment's value or of a heredoc's text."""
        return self._finish_word(list(self.raw_pieces(tree)), tree.start_point[0])

    def raw_pieces(self, tree: Node) -> Pieces:
        """Return a tree's pieces, in which ``~`` and quoted placeholders are still plain text."""
        pieces = self._pieces.get(tree.id)
        if pieces is None:
            collected: list[Piece] = []
            self._add_tree(tree, False, collected)
            pieces = self._pieces[tree.id] = tuple(collected)
        return pieces

    def _finish_word(self, pieces: list[Piece], row: int) -> Pieces:
        """Return a word's pieces, with ``~/`` as the variable HOME and each placeholder as an
        unread piece.

        Add a note on each placeholder.

        Args:
            row: Of the word, counted from 0.
        """
        first = pieces[0] if pieces else None
        plain = len(pieces) == 1 and pieces[0].type == "text" and not pieces[0].quoted
        if plain and not pieces[0].text.startswith("~"):
            return tuple(pieces)
        if first is not None and not first.quoted and _HOME.match(first.text):
            home = Piece("parameter", "~", True, "HOME")
            if first.type == "text" and (first.text != "~" or len(pieces) == 1):
                pieces = [home, first._replace(text=first.text[1:]), *pieces[1:]]
        read = [piece for piece in pieces if piece.type == "unread"]
        takes = "a program would get it as it stands"
        shown = [piece for piece in pieces if piece.text]
        last = shown[-1] if shown else None
        whole = len(shown) == 1 or (len(shown) == 2 and shown[0].text.endswith("="))
        meant = last is not None and whole and last.quoted and last.type == "text"
        if last is not None and meant and _QUOTED_PLACEHOLDER.fullmatch(last.text):
            pieces = [*shown[:-1], last._replace(type="unread", name=last.text)]
        for piece in pieces:
            if piece.type == "unread" and piece.text[:1] == "<" and piece.text[:2] != "<(":
                takes = "bash would take it for a file to read" if piece in read else takes
                self.note("placeholder", f"{piece.text} is a placeholder: {takes}; {_NOT_SET}", row)
        return tuple(pieces)

    def _add_tree(self, tree: Node, quoted: bool, pieces: list[Piece]) -> None:
        """Add the pieces of a tree to ``pieces``, with the text between its children.

        A tree of no known type becomes one unread piece.

        Args:
            quoted: The tree stands in double quotes.
        """
        tree_type = tree.type
        if tree_type == "$" and self.bytes.startswith(b'"', tree.end_byte):
            return  # $"..." is a text that may be translated
        if not tree.child_count and (tree_type in _LEAVES or not tree.is_named):
            self._add_text(self._raw(tree.start_byte, tree.end_byte), quoted, pieces, tree_type)
        elif tree_type == "string":
            inner: list[Piece] = []
            self._add_part(tree, tree.start_byte + 1, tree.end_byte - 1, True, inner)
            # An empty "${A[@]}" is no word; any other empty quotes are one.
            first = inner[0] if inner else _EMPTY
            listed = first.type == "parameter" and "@" in (first.name, first.place)
            pieces += inner if listed else [_EMPTY, *inner]
        elif tree_type == "raw_string":  # within double quotes, single ones stand
            text = self.text(tree)
            pieces.append(Piece("text", text if quoted else text[1:-1], True))
        elif tree_type == "ansi_c_string" and not _OTHER_ANSI.search(self.text(tree)):
            text = _ANSI_ESCAPE.sub(
                lambda m: chr(int(m[1], 16)) if m[1] else _ANSI[m.group()], self.text(tree)[2:-1]
            )
            pieces.append(Piece("text", text, True))
        elif tree_type in _EXPANSIONS:
            text = self.text(tree)
            start = _IN_FRONT.match(text).end()  # type: ignore[union-attr]
            if start:  # the grammar counts blanks in front as part of it
                self._add_text(text[:start], quoted, pieces, "string_content")
                text = text[start:]
            simple = {
                "simple_expansion": Piece("parameter", text, quoted, text[1:]),
                "command_substitution": Piece("output", text, quoted, "$(...)"),
                "arithmetic_expansion": Piece("arithmetic", text, quoted, "$((...))"),
            }
            pieces.append(simple.get(tree_type) or self._expansion(tree, text, quoted))
        elif tree_type == "process_substitution":
            text = self.text(tree)
            pieces.append(Piece("unread", text, quoted, f"{text[:1]}(...)"))
        elif tree_type in _INNER:
            self._add_part(tree, tree.start_byte, tree.end_byte, quoted, pieces)
        else:
            text = self.text(tree)
            pieces.append(Piece("unread", text, quoted, beginning(text, 40)))

    def _add_part(
        self, tree: Node, start: int, end: int, quoted: bool, pieces: list[Piece]
    ) -> None:
        """Add to ``pieces`` those of a tree from byte ``start`` to ``end``: the pieces of its
        children, and of the text between the children.
        """
        literal = "heredoc_content" if tree.type == "heredoc_body" else "string_content"
        literal = literal if quoted or tree.type == "heredoc_body" else "word"
        quoted = quoted or tree.type == "heredoc_body"
        place = start
        for child in tree.children:
            if child.start_byte < place or not child.is_named or child.end_byte > end:
                continue
            if child.start_byte > place:
                gap = self._raw(place, child.start_byte)
                several = tree.type == "concatenation" and tree.parent.type != "expansion"
                if several and gap.isspace():
                    text = self.text(tree)  # the grammar took several words for one
                    pieces.append(Piece("unread", text, False, beginning(text, 40)))
                    return
                self._add_text(gap, quoted, pieces, literal)
            self._add_tree(child, quoted, pieces)
            place = child.end_byte
        if place < end:
            self._add_text(self._raw(place, end), quoted, pieces, literal)

    def _add_text(self, text: str, quoted: bool, pieces: list[Piece], tree_type: str) -> None:
        """Add a text that is not expanded to ``pieces``, without the backslashes that bash takes
        away.

        A hidden placeholder becomes unread.

        Args:
            tree_type: The type of the node, as backslashes in a heredoc differ.
        """
        if tree_type == "heredoc_content" and "`" in text:
            pieces.append(Piece("unread", _shown(text), True, "`...`"))
        elif quoted:
            if "\\" in text:
                rule = _HEREDOC if tree_type == "heredoc_content" else _DOUBLE
                text = rule.sub(lambda match: match[1] or "", text)
            pieces.append(Piece("text", _shown(text), True))
        elif "\ue000" in text or "\\" in text:
            fills_in, place = "\ue000" in text, 0
            for match in (_FILL_IN if fills_in else _BARE).finditer(text):
                self._add_text(text[place : match.start()], False, pieces, tree_type)
                shown = _shown(match.group())
                if fills_in:
                    pieces.append(Piece("unread", shown, True, shown))
                elif match[1]:
                    pieces.append(Piece("text", match[1], True))
                place = match.end()
            rest = text[place:]
            if rest != text:
                self._add_text(rest, False, pieces, tree_type)
            else:
                pieces.append(Piece("text", _shown(text)))
        elif text:
            pieces.append(Piece("text", _shown(text)))

    def _expansion(self, tree: Node, text: str, quoted: bool) -> Piece:
        """Return the piece of ``${...}``, which is ``text``; unread if its form is not known."""
        match = _PARAMETER.fullmatch(text)
        if match is None:
            return Piece("unread", text, quoted, beginning(text, 40))
        mark, name, place, rest = match.groups()
        if not rest:
            return Piece("parameter", text, quoted, name, place, mark)
        match_operator = _OPERATOR.match(rest)
        operator = match_operator.group() if match_operator else rest
        raw = rest[len(operator) :]
        operand: Pieces | None
        by: Pieces | None = ()
        if "$((" in raw and operator[-1:] in "-+=":  # hidden from the grammar
            operand = value_pieces(raw, '"' if quoted else "")
        elif operator[-1:] in "-+=?" and operator[:1] != ",":
            inner: list[Piece] = []
            start = tree.end_byte - 1 - len(raw.encode(errors="surrogateescape"))
            self._add_part(tree, start, tree.end_byte - 1, quoted, inner)
            operand = tuple(inner)
        elif operator[:1] == "/":
            first = _REPLACED.match(raw).end()  # type: ignore[union-attr]
            operand, by = (
                _pattern_pieces(raw[:first]),
                _pattern_pieces(raw[first:].removeprefix("/")),
            )
        else:
            operand = _pattern_pieces(raw)
        return Piece("parameter", text, quoted, name, place, mark, operator, operand, by, raw)

    def heredoc(self, tree: Node) -> Pieces:
        """Return the pieces of a heredoc's text; () if the tree has none.

        With ``<<-`` leading tabs are removed, and a text with something to expand is unread.
        """
        children = {child.type: child for child in tree.children}
        body, end = children.get("heredoc_body"), children.get("heredoc_start")
        if body is None or end is None:
            return ()
        text = self.text(body)
        tabs = "<<-" in children
        if tabs:
            text = re.sub(r"^\t+", "", text, flags=re.M)
        if re.search(r"[\\'\"]", self.text(end)) or (tabs and not re.search(r"[$`\\]", text)):
            return (Piece("text", text, True),)
        return (Piece("unread", text, True, "a <<-"),) if tabs else self.raw_pieces(body)


def _parse(text: bytes) -> tuple[bytes, Node]:
    """Parse a text.

    Return the text that was parsed, which may have more braces, and its tree. tree-sitter-bash 0.25
    loses the second of ``$a/$b/c``: it ends the word behind a bare ``$``, and takes ``b/c`` for the
    next one. With braces, ``${b}``, it does not, so braces are added.
    """
    parse, dollars = _parser()
    root = parse(text).root_node
    for _ in range(_MOST_PASSES):
        places = {n.start_byte for n in dollars(root) if _NAMED.match(text, n.start_byte)}
        if not places:
            break
        parts, end = [], 0
        for place in sorted(places):
            rest = _WORD_REST.match(text, max(place, end))
            if rest is not None and place >= end:
                parts += [text[end:place], _NAMED.sub(rb"${\1}", rest.group())]
                end = rest.end()
        text = b"".join(parts) + text[end:]
        root = parse(text).root_node
    return text, root


@lru_cache(maxsize=1)
def _parser() -> tuple[Callable[[bytes], Any], Callable[[Node], list[Node]]]:
    """Return bash's parser and a finder of bare ``$``.

    Raises:
        SourceError: Without the package.
    """
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser, Query, QueryCursor
    except ImportError as error:
        raise SourceError(
            f"a shell script is read with tree-sitter-bash, which is not installed here ({error}): "
            "pip install tree-sitter tree-sitter-bash, or give what the script starts behind --"
        ) from None
    bash = Language(tree_sitter_bash.language())
    query = Query(bash, '(concatenation "$" @dollar)')

    def dollars(root: Node) -> list[Node]:
        captures: list[Node] = QueryCursor(query).captures(root).get("dollar", [])
        return captures

    return Parser(bash).parse, dollars


@lru_cache(maxsize=4096)
def value_pieces(text: str, quote: str = '"') -> Pieces | None:
    """Return the pieces of ``text``, read as a value behind ``NAME=`` that stands in ``quote``.

    Returns:
        None if the text is not one word.
    """
    inner = ShellText(f"v={quote}{text}{quote}\n", "", None)
    nodes = inner.root.named_children
    if inner.root.has_error or len(nodes) != 1 or nodes[0].type != "variable_assignment":
        return None
    value = nodes[0].child_by_field_name("value")
    if value is None or value.end_byte != len(inner.bytes) - 1:
        return None
    return inner.raw_pieces(value)


def _pattern_pieces(text: str) -> Pieces | None:
    """Return the pieces of a pattern behind an operator; None if it is not read."""
    if not _SPECIAL.search(text):
        return (Piece("text", text),) if text else ()
    return value_pieces(text, "")


def _shown(text: str) -> str:
    return _HIDES.sub(lambda match: _HIDDEN[match.group()], text) if _HIDES.search(text) else text
