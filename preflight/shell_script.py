"""What a shell script starts, read without running it.

Variables are followed as bash follows them; whatever only running it could tell (command
substitutions, variables nobody sets) stays in the words as written, and is named there. Branches,
loops and functions are read as if each of their commands ran once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from preflight.container_run import SHELLS, strip_wrappers
from preflight.env_file import Layers, Variables, environment_words
from preflight.launch_source import Command, Origin, Reading, SourceNote, Word
from preflight.shell_words import ASSIGNMENT, Part, Token, heredoc_parts, tokenize, written

# Characters that all expansions of one reading may add: ``A=$A$A`` in a row doubles each time.
LARGEST_EXPANSION = 2**20
# ``bash -c "bash -c '...'"`` and eval are read down to here.
DEEPEST_SCRIPT = 8
# Subshells within subshells further in share their variables.
DEEPEST_SUBSHELL = 8

# Shell builtins that start no process, and sleep, which changes nothing.
_BUILTINS = frozenset(
    "[ . : alias bg bind break caller cd compgen complete compopt continue declare dirs disown "
    "echo enable eval exit export false fc fg getopts hash help history jobs kill let local logout "
    "mapfile popd printf pushd pwd read readarray readonly return set shift shopt sleep source "
    "suspend test times trap true type typeset ulimit umask unalias unset wait".split()
)
_DECLARATIONS = frozenset({"declare", "export", "local", "readonly", "typeset"})
_LEADS = frozenset({"then", "else", "elif", "do", "{", "!", "coproc"})
_CLOSES = frozenset({"fi", "done", "esac", "}"})
_REDIRECTIONS = frozenset({"<", ">", ">>", "<<", "<<-", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>"})
_BLANKS = re.compile(r"[ \t\n]+")
_BRACES = re.compile(r"[{},]|\.\.")
_ARITHMETIC_NAME = re.compile(r"\$?\{?([A-Za-z_][A-Za-z0-9_]*)\}?")


def read_script(text: str, name: str, environment: Mapping[str, str | Word]) -> Reading:
    """The processes that a script called ``name`` starts in ``environment``. Never raises.

    The commands say what bash does, where the notes say that its author hardly meant it.
    """
    reader = _Reader(name, Variables(environment_words(environment)))
    reader.read(text, 1)
    return reader.reading()


def heredoc_files(text: str, environment: Mapping[str, str | Word] | None = None) -> dict[str, str]:
    """The files that a script writes with ``cat > FILE <<EOF`` or tee: names to texts."""
    reader = _Reader("script", Variables(environment_words(environment or {})))
    reader.read(text, 1)
    return reader.files


def read_words(
    words: Sequence[Word],
    environment: Mapping[str, Word],
    *,
    inside: bool = False,
    depth: int = 0,
    budget: Budget | None = None,
) -> Reading:
    """One command's words: wrappers taken off, and the text of ``bash -c`` read. Never raises.

    inside: the words are those of a container. depth, budget: of the script that holds them.
    """
    if not words:
        return Reading(())
    stripped = strip_wrappers(words, environment, inside)
    notes = list(stripped.notes)
    if stripped.script is not None:
        if depth >= DEEPEST_SCRIPT:
            text = f"more than {DEEPEST_SCRIPT} shells within each other: the innermost is not read"
            return Reading((), (*notes, SourceNote("script-not-read", text, words[0].origin)))
        origin = stripped.script.origin
        reader = _Reader(origin.source, Variables(stripped.environment), depth + 1, budget)
        reader.read(stripped.script.text, origin.line)
        inner = reader.reading()
        commands = tuple(
            command._replace(wrappers=(*stripped.wrappers, *command.wrappers))
            for command in inner.commands
        )
        return Reading(commands, (*notes, *inner.notes))
    if not stripped.words or (program := stripped.words[0].text) in _BUILTINS or not program:
        return Reading((), tuple(notes))
    origin = stripped.words[0].origin
    if program.startswith("-"):
        text = f"{program} stands where a program should: the shell finds none of that name"
        return Reading((), (*notes, SourceNote("not-a-program", text, origin)))
    if program.rpartition("/")[2] in SHELLS:
        text = "the script that this shell runs is not read: name it on its own to read it"
        notes.append(SourceNote("script-not-read", text, origin))
    command = Command(stripped.words, stripped.environment, stripped.wrappers, words[0].origin)
    return Reading((command,), tuple(notes))


class Budget:
    """Characters that expansions may still add, in a reading and all that it reads inside."""

    def __init__(self) -> None:
        self.left = LARGEST_EXPANSION

    def spend(self, characters: int) -> bool:
        self.left -= characters
        return self.left >= 0


class _Reader:
    def __init__(
        self, source: str, variables: Variables, depth: int = 0, budget: Budget | None = None
    ) -> None:
        self.source = source
        self.variables = variables
        self.depth = depth
        self.lined = True
        self.last_line, self.last_origin = -1, Origin(source)
        self.budget = Budget() if budget is None else budget
        self.arrays: dict[str, tuple[Word, ...]] = {}
        self.export_all = False
        self.commands: list[Command] = []
        self.notes: list[SourceNote] = []
        self.files: dict[str, str] = {}
        # Functions: their bodies' first and last token, and whether they have been read.
        self.functions: dict[str, tuple[int, int]] = {}
        self.unread: dict[str, tuple[int, int]] = {}
        self.changed: list[str] = []
        self.subshells: list[tuple[int, int] | None] = []

    def reading(self) -> Reading:
        return Reading(tuple(self.commands), tuple(dict.fromkeys(self.notes)))

    def origin(self, line: int) -> Origin:
        if line != self.last_line:
            self.last_line = line
            self.last_origin = Origin(self.source, line if self.lined else None)
        return self.last_origin

    def note(self, identifier: str, text: str, line: int) -> None:
        self.notes.append(SourceNote(identifier, text, self.origin(line)))

    def read(self, text: str, first_line: int | None) -> None:
        """Reads a whole text; ``first_line`` None where it has no lines, as on a command line."""
        self.lined = first_line is not None
        self.last_line = -1
        tokens, notes = tokenize(text, self.source, first_line or 1)
        if not self.lined:
            notes = [note._replace(origin=self.origin(0)) for note in notes]
        self.notes += notes
        ends = _block_ends(tokens)
        frames = [(0, len(tokens))]
        while True:
            while frames:
                position, end = frames.pop()
                called = ""
                while position < end and not called:
                    position, called = self.step(tokens, position, end, ends)
                if called:
                    frames += [(position, end), self.unread.pop(called)]
            if not self.unread:
                return
            # Nobody calls these here; whoever sources the script may.
            frames.append(self.unread.pop(next(iter(self.unread))))

    def step(
        self, tokens: list[Token], position: int, end: int, ends: dict[int, int]
    ) -> tuple[int, str]:
        """Reads one command or keyword; returns where to go on, and a function to read first."""
        token = tokens[position]
        if token.operator:
            if token.operator == "(":
                deep = len(self.subshells) >= DEEPEST_SUBSHELL
                mark = None if deep else (self.variables.now, len(self.changed))
                self.subshells.append(mark)
            elif token.operator == ")" and self.subshells and (mark := self.subshells.pop()):
                self.variables.back_to(mark[0], self.changed[mark[1] :])
            elif token.operator in (";;", ";&", ";;&"):
                return _behind_pattern(tokens, position + 1, end), ""
            elif token.operator in _REDIRECTIONS:
                return self.simple(tokens, position, end)
            return position + 1, ""
        bare = token.bare
        if bare in _LEADS or bare in _CLOSES:
            return position + 1, ""
        if bare in ("if", "while", "until", "for", "select", "case"):
            self.control(bare, token.line)
            if bare == "case":
                return _behind_in(tokens, position, end), ""
            return (
                self.loop(tokens, position + 1, end) if bare in ("for", "select") else position + 1
            ), ""
        if bare == "[[":
            while position < end and tokens[position].bare != "]]":
                position += 1
            return position + 1, ""
        named = position + (bare == "function")
        if named < end and _is_function(tokens, named, end, bare == "function"):
            return self.function(tokens, named, end, ends), ""
        return self.simple(tokens, position, end)

    def control(self, what: str, line: int) -> None:
        text = f"{what}: its commands are read as if each ran once, whatever the conditions"
        self.note("control-flow", text, line)

    def loop(self, tokens: list[Token], position: int, end: int) -> int:
        """The head of a for loop: its variable is unknown inside, as it takes several values."""
        if position < end and (name := tokens[position].bare):
            word = Word(f"${name}", self.origin(tokens[position].line), (name,))
            self.assign(name, word)
        while position < end and tokens[position].operator not in (";", "\n"):
            position += 1
        return position

    def function(self, tokens: list[Token], named: int, end: int, ends: dict[int, int]) -> int:
        name = written(tokens[named].parts)
        start = named + 1
        if [token.operator for token in tokens[start : start + 2]] == ["(", ")"]:
            start += 2
        while start < end and tokens[start].operator == "\n":
            start += 1
        if start not in ends:
            return start
        text = f"function {name}: its commands are read as if it was called once, without arguments"
        self.note("control-flow", text, tokens[named].line)
        self.functions[name] = self.unread[name] = (start + 1, ends[start])
        return ends[start] + 1

    def simple(self, tokens: list[Token], position: int, end: int) -> tuple[int, str]:
        """A simple command from here to its end."""
        start, first = position, tokens[position]
        assigned: list[Token] = []
        words: list[Word] = []
        writes: list[str] = []
        body: Part | None = None
        declares = False
        while position < end:
            token = tokens[position]
            if token.operator in _REDIRECTIONS:
                position += 1
                if position < end and not tokens[position].operator:
                    target = tokens[position]
                    body = target.heredoc or body
                    if token.operator in (">", ">|", ">>"):
                        writes += [w.text for w in self.expand(target.parts, target.line)[:1]]
                    position += 1
                continue
            if token.operator:
                break
            matched = _assigns(token)
            if matched and (not words or declares):
                assigned.append(token)
            elif token.elements is None:
                words += self.expand(token.parts, token.line)
                declares = bool(words) and words[0].text in _DECLARATIONS
            position += 1
        if body is not None:
            self.heredoc(body, words, writes, first.line)
        if position == start:
            position += 1
        return position, self.finish(words, assigned, first)

    def finish(self, words: list[Word], assigned: list[Token], first: Token) -> str:
        """Takes a command's assignments and words in; returns the function it calls first."""
        program = words[0].text if words else ""
        if not words or program in _DECLARATIONS:
            self.declare(words, assigned)
            return ""
        for token in assigned:
            if program in self.functions or token.elements is not None:
                self.take(token)
        if program in self.functions:
            return program if program in self.unread else ""
        if program in _BUILTINS:
            self.builtin(words, first.line)
            return ""
        environment = self.variables.environment()
        if len(assigned) == 1 and assigned[0].elements is None:
            name, word = self.value(assigned[0], self.variables)
            environment = Layers(environment, {name: word})
        elif assigned:
            scope = Variables(environment)
            for token in assigned:
                if token.elements is None:
                    scope.put(*self.value(token, scope), True)
            environment = scope.environment()
        reading = read_words(words, environment, depth=self.depth, budget=self.budget)
        self.commands += [
            command._replace(origin=self.origin(first.line))
            if command.origin.source == self.source and not (command.wrappers and _deeper(command))
            else command
            for command in reading.commands
        ]
        self.notes += reading.notes
        return ""

    def declare(self, words: list[Word], assigned: list[Token]) -> None:
        options = "".join(word.text for word in words[1:] if word.text.startswith("-"))
        exports = bool(words) and (words[0].text == "export" or "x" in options)
        exports = exports and "n" not in options
        for token in assigned:
            self.take(token, exports or None)
        for word in words[1:]:
            name, equals, value = word.text.partition("=")
            if name.startswith("-") or not name:
                continue
            if equals:
                self.assign(name, word._replace(text=value), exports or None)
            elif words[0].text == "export" and (held := self.variables.get(name)) is not None:
                self.assign(name, held, exports)

    def builtin(self, words: list[Word], line: int) -> None:
        program, *arguments = (word.text for word in words)
        if program == "unset":
            for name in arguments:
                if not name.startswith("-"):
                    self.assign(name, None)
                    self.arrays.pop(name, None)
        elif program == "set" and arguments:
            flags = arguments[0]
            if flags in ("-o", "+o") and arguments[1:2] == ["allexport"]:
                flags = flags[0] + "a"
            if "a" in flags and flags[0] in "-+" and "o" not in flags:
                self.export_all = flags[0] == "-"
        elif program in ("read", "mapfile", "readarray", "getopts"):
            for name in arguments:
                if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                    self.assign(name, Word(f"${name}", words[0].origin, (name,)))
        elif program in (".", "source"):
            file = arguments[0] if arguments else ""
            text = f"{file} is not read: variables that it sets are unknown; name its settings here"
            self.note("source-not-read", text, line)
        elif program == "eval":
            self.eval(words[1:], line)
        elif program == "ulimit":
            text = f"ulimit {' '.join(arguments)}: sets a limit of the processes that follow"
            self.note("ulimit", text, line)

    def eval(self, words: list[Word], line: int) -> None:
        text = " ".join(word.text for word in words)
        if self.depth >= DEEPEST_SCRIPT:
            self.note("script-not-read", "eval within eval: the innermost is not read", line)
            return
        inner = _Reader(self.source, self.variables, self.depth + 1, self.budget)
        inner.arrays = self.arrays
        inner.read(text, line if self.lined else None)
        self.changed += inner.changed
        self.commands += inner.commands
        self.notes += inner.notes

    def heredoc(self, body: Part, words: list[Word], writes: list[str], line: int) -> None:
        program = words[0].text.rpartition("/")[2] if words else ""
        if program == "tee":
            writes = [word.text for word in words[1:] if not word.text.startswith("-")]
        if program in SHELLS:
            text = "the script that this shell reads from the heredoc is not read"
            self.note("script-not-read", text, line)
        if program in ("cat", "tee") and writes:
            parts = heredoc_parts(body)
            text = "".join(word.text for word in self.expand(parts, line, split=False))
            for target in writes:
                self.files[target] = text

    def assign(self, name: str, word: Word | None, exported: bool | None = None) -> None:
        if self.export_all and word is not None:
            exported = True
        self.variables.put(name, word, exported)
        if self.subshells:
            self.changed.append(name)

    def take(self, token: Token, exported: bool | None = None) -> None:
        """An assignment that stays: ``A=x``, ``A+=x``, ``A=(x y)``."""
        if token.elements is not None:
            match = ASSIGNMENT.match(written(token.parts))
            assert match is not None
            words = [w for parts in token.elements for w in self.expand(parts, token.line)]
            before = self.arrays.get(match.group(1), ()) if match.group(3) else ()
            fits = self.budget.spend(len(before))
            self.arrays[match.group(1)] = (*before, *words) if fits else tuple(words)
            return
        name, word = self.value(token, self.variables)
        self.assign(name, word, exported)

    def value(self, token: Token, variables: Variables) -> tuple[str, Word]:
        match = ASSIGNMENT.match(token.parts[0].text)
        assert match is not None
        name, index, adds = match.groups()
        rest = token.parts[0]._replace(text=token.parts[0].text[match.end() :])
        shell, self.variables = self.variables, variables
        expanded = self.expand((rest, *token.parts[1:]), token.line, split=False)
        self.variables = shell
        word = expanded[0] if expanded else Word("", self.origin(token.line))
        if index:
            return name, Word(f"${{{name}}}", word.origin, (name,))
        if adds and (before := variables.get(name)) is not None:
            fits = self.budget.spend(len(before.text))
            text = before.text + word.text if fits else f"${name}"
            names = (*before.unresolved, *word.unresolved, *([] if fits else [name]))
            return name, Word(text, word.origin, tuple(dict.fromkeys(names)))
        return name, word

    def expand(self, parts: Sequence[Part], line: int, split: bool = True) -> list[Word]:
        """The words that one written word becomes: none, one, or with an unquoted list several."""
        if len(parts) == 1 and parts[0].kind == "text":
            text = parts[0].text
            if parts[0].quoted or not (text.startswith("~") or (split and "{" in text)):
                return [Word(text, self.origin(line))]
        expansion = _Expansion(self, self.origin(line), split)
        if split and _has_braces(parts):
            expansion.keep(written(tuple(parts)), ("{...}",))
        else:
            expansion.add(_tilde(parts), inner=False)
        expansion.close()
        return expansion.words


class _Expansion:
    def __init__(self, reader: _Reader, origin: Origin, split: bool) -> None:
        self.reader = reader
        self.origin = origin
        self.split = split
        self.words: list[Word] = []
        self.pieces: list[str] = []
        self.unresolved: list[str] = []
        self.open = not split

    def close(self) -> None:
        if self.open:
            names = tuple(dict.fromkeys(self.unresolved))
            self.words.append(Word("".join(self.pieces), self.origin, names))
        self.pieces, self.unresolved, self.open = [], [], False

    def keep(self, text: str, unresolved: Sequence[str] = ()) -> None:
        self.pieces.append(text)
        self.unresolved += unresolved
        self.open = True

    def fields(self, text: str) -> None:
        """Text from an unquoted expansion: blanks in it end words."""
        if not self.split:
            self.keep(text)
            return
        for index, piece in enumerate(_BLANKS.split(text)):
            if index:
                self.close()
            if piece:
                self.keep(piece)

    def add(self, parts: Sequence[Part], inner: bool) -> None:
        for part in parts:
            if part.kind == "text":
                if inner and not part.quoted:
                    self.fields(part.text)
                elif part.text or part.quoted:
                    self.keep(part.text)
            elif part.kind == "variable":
                self.variable(part)
            elif part.kind == "array" and part.name in self.reader.arrays:
                self.array(part, self.reader.arrays[part.name])
            elif part.kind == "arithmetic" and (number := self.arithmetic(part.text)) is not None:
                self.keep(number)
            else:
                self.keep(part.text, (part.name,))

    def value(self, part: Part, word: Word) -> None:
        if not self.reader.budget.spend(len(word.text) + len(word.unresolved)):
            self.keep(part.text, (part.name,))
            return
        # What is not known keeps its blanks: ``$(nproc --all)`` is one word until somebody runs it.
        if part.quoted or word.unresolved:
            self.keep(word.text, word.unresolved)
        else:
            self.fields(word.text)

    def variable(self, part: Part) -> None:
        variables = self.reader.variables
        word = variables.get(part.name)
        if word is None and part.name in self.reader.arrays:
            word = next(iter(self.reader.arrays[part.name]), None)
        colon, action = part.operator.startswith(":"), part.operator[-1:]
        missing = word is None or (colon and not word.text and not word.unresolved)
        if action == "+":
            self.add([] if missing else part.default, inner=not part.quoted)
            self.open = self.open or part.quoted
        elif missing and action in ("-", "="):
            if action == "=":
                inner = _Expansion(self.reader, self.origin, split=False)
                inner.add(part.default, inner=False)
                inner.close()
                self.reader.assign(part.name, inner.words[0])
                self.value(part, inner.words[0])
            else:
                self.add(part.default, inner=not part.quoted)
                self.open = self.open or part.quoted
        elif word is not None:
            self.value(part, word)
        elif variables.was_unset(part.name) and not action:
            self.open = self.open or part.quoted
        else:
            self.keep(part.text, (part.name,))

    def array(self, part: Part, elements: tuple[Word, ...]) -> None:
        # Each use of a long array is paid for before it is walked through.
        if not self.reader.budget.spend(len(elements)):
            self.keep(part.text, (part.name,))
            return
        if part.operator == "[*]" and part.quoted:
            text = " ".join(word.text for word in elements)
            names = tuple(name for word in elements for name in word.unresolved)
            self.value(part, Word(text, self.origin, names))
            return
        for index, word in enumerate(elements):
            if index and self.split:
                self.close()
            elif index:
                self.keep(" ")
            self.value(part, word)

    def arithmetic(self, text: str) -> str | None:
        """``$((64 << 30))``, where every name in it is known; None otherwise."""
        if len(text) > 200:
            return None

        def number(match: re.Match[str]) -> str:
            word = self.reader.variables.get(match.group(1))
            known = word is not None and re.fullmatch(r"\d{1,19}", word.text, re.ASCII)
            return word.text if word is not None and known else "?"

        formula = _ARITHMETIC_NAME.sub(number, text[3:-2]).strip()
        # A number that begins with 0 is octal to bash; nobody means it, so it is not worked out.
        if not re.fullmatch(r"[0-9 \t+\-*/%()<>]+", formula, re.ASCII):
            return None
        result = _sum(formula)
        return None if result is None else str(result)


def _sum(formula: str) -> int | None:
    """Integers as C works them out; None for what does not fit into 64 bits, or is no such sum."""
    import ast  # only scripts with sums in them pay for it

    def compute(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            result = node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            result = compute(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
        elif isinstance(node, ast.BinOp):
            result = binary(node.op, compute(node.left), compute(node.right))
        else:
            raise ValueError("no sum of integers")
        if not -(2**63) <= result < 2**63:
            raise ValueError("more than 64 bits")
        return result

    def binary(operator: ast.operator, left: int, right: int) -> int:
        if isinstance(operator, ast.Add):
            return left + right
        if isinstance(operator, ast.Sub):
            return left - right
        if isinstance(operator, ast.Mult):
            return left * right
        if isinstance(operator, ast.LShift | ast.RShift) and 0 <= right < 64:
            return left << right if isinstance(operator, ast.LShift) else left >> right
        if isinstance(operator, ast.Div | ast.Mod):
            # C rounds towards zero, Python downwards.
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if isinstance(operator, ast.Div) else left - quotient * right
        raise ValueError("no operator of integers")

    try:
        return compute(ast.parse(formula, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ArithmeticError):
        return None


def _deeper(command: Command) -> bool:
    """True where a shell stands in front: its commands have lines of their own."""
    return any(
        wrapper[0].rpartition("/")[2] in SHELLS and len(wrapper) > 1 for wrapper in command.wrappers
    )


def _assigns(token: Token) -> bool:
    if token.elements is not None:
        return True
    first = token.parts[0]
    return (
        "=" in first.text
        and first.kind == "text"
        and not first.quoted
        and ASSIGNMENT.match(first.text) is not None
    )


def _is_function(tokens: list[Token], named: int, end: int, keyword: bool) -> bool:
    if keyword:
        return not tokens[named].operator
    following = [token.operator for token in tokens[named + 1 : min(named + 3, end)]]
    return following == ["(", ")"]


def _block_ends(tokens: list[Token]) -> dict[int, int]:
    """Where each ``{`` and ``(`` block ends, by the token it begins at; in one pass."""
    ends: dict[int, int] = {}
    stack: list[tuple[str, int]] = []
    begins = True  # a command may begin here
    for index, token in enumerate(tokens):
        bare = token.bare
        if token.operator == "(" or (bare == "{" and begins):
            stack.append((token.operator or bare, index))
        elif (token.operator == ")" or (bare == "}" and begins)) and stack:
            # A case pattern's ) closes nothing; a } that closes a ( is an error that ends here.
            opener = "(" if token.operator else "{"
            if stack[-1][0] == opener:
                ends[stack.pop()[1]] = index
        named = index > 0 and tokens[index - 1].bare == "function"
        begins = (
            named
            or (bool(token.operator) and token.operator not in _REDIRECTIONS)
            or (begins and (bare in _LEADS or bare in _CLOSES or bare in ("if", "while", "until")))
        )
    for _, index in stack:
        ends[index] = len(tokens)
    return ends


def _behind_in(tokens: list[Token], position: int, end: int) -> int:
    """Behind ``case WORD in PATTERN)``."""
    while position < end and tokens[position].bare != "in":
        position += 1
    return _behind_pattern(tokens, position + 1, end)


def _behind_pattern(tokens: list[Token], position: int, end: int) -> int:
    while position < end and tokens[position].operator == "\n":
        position += 1
    while position < end and tokens[position].operator != ")":
        if tokens[position].bare == "esac":
            return position
        position += 1
    return position + 1


def _has_braces(parts: Sequence[Part]) -> bool:
    """True for ``mlx5_{0,1}`` and ``{0..3}``, of which bash makes several words."""
    stack: list[bool] = []
    for part in parts:
        if part.kind != "text" or part.quoted or (not stack and "{" not in part.text):
            continue
        for match in _BRACES.finditer(part.text):
            if match.group() == "{":
                stack.append(False)
            elif match.group() == "}":
                if stack and stack.pop():
                    return True
            elif stack:
                stack[-1] = True
    return False


def _tilde(parts: Sequence[Part]) -> Sequence[Part]:
    """``~/models`` with the home directory as a variable."""
    first = parts[0] if parts else None
    if first is None or first.quoted or not re.match(r"~(?:/|$)", first.text):
        return parts
    if first.text == "~" and len(parts) > 1:
        return parts
    home = Part("variable", "~", True, "HOME")
    return (home, first._replace(text=first.text[1:]), *parts[1:])
