"""Simple commands of a script: the programs that it starts, and the files that it writes."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from importlib import import_module

from checks.framework.needs import RunAs
from preflight.launches.env_files import env_file_settings
from preflight.launches.launchers import enters_container, starts_anew, starts_server
from preflight.launches.set_limits import OWN_SHELL, changed_user, prlimit
from preflight.launches.shell_builtins import BUILTINS, DEEPEST_SCRIPT, ShellBuiltins, SimpleCommand
from preflight.launches.shell_conditions import GATE, OPEN, PROGRAM, TRUE, Truth
from preflight.launches.shell_expansion import expand, value
from preflight.launches.shell_flow import (
    STARTED,
    WRITES,
    Part,
    Redirection,
    ShellFunction,
    redirections_of,
)
from preflight.launches.shell_text import ALONE, Node, Pieces, ShellText
from preflight.launches.source import Command, Origin, Reading, SourceError, Word, brief
from preflight.launches.starters import STARTERS, is_starter
from preflight.launches.variables import may_be_absent
from preflight.launches.wrappers import SHELLS, is_ordinary, own_words, strip_wrappers

# A function within itself is followed down to here.
DEEPEST_CALLS = 4
# Programs that a script starts at most, loops and functions written out: more is no launch, and to
# read it took minutes. 1 MB of published launches starts 3000.
_MOST_PROGRAMS = 10_000
# What starts a server in a way that is not followed: it is named with its line.
_NOT_FOLLOWED = frozenset(("find", "trap"))
# Programs that are taken to do what they are told; what any other one says is not known.
_SUCCEED = frozenset("chmod chown cp install ln mkdir mv pip pip3 rm tee touch".split())
# What starts a program in a job of its own.
_ALLOCATE = frozenset(("oarsub", "salloc"))
# What ends processes that run aside, and what asks of one of them alone.
_KILLS = frozenset("kill killall pkill wait".split())
# Programs of which one that reads standard input may start what it finds there.
_READERS = STARTERS | SHELLS | set("read runuser ssh su sudo".split())
_ENGINES = frozenset(("docker", "nerdctl", "podman"))
_STOPS = frozenset(("kill", "rm", "stop"))
_ASKS = frozenset("-0 -l -L".split())
_DETACHED = frozenset(("-d", "--detach", "--wait"))
# What writes nothing that $(...) would take.
_SILENT = frozenset(
    ": [ break cd continue declare exit export false local readonly return set shift shopt test "
    "trap true typeset unset".split()
)
_SIMPLE = frozenset(
    "command declaration_command unset_command variable_assignment variable_assignments "
    "redirected_statement".split()
)
_DECLARATIONS = frozenset("declare export local readonly typeset unset".split())
_KEYWORDS = frozenset("case do done elif else esac fi for if in then until while { }".split())
# Programs that write a text which follows from their words.
_TALKS = frozenset("basename cat dirname readlink realpath seq".split())
# Of a longer seq nobody starts a process each.
_MOST_NUMBERS = 1024
# Notes of what a command substitution may write one thing or another by.
_DOUBTS = ("condition", "loop-not-counted", "script-not-read")


class ShellPrograms(ShellBuiltins):
    """Takes in each simple command, and works out the output of ``$(...)``."""

    def reading(self) -> Reading:
        return Reading(tuple(self.commands), tuple(dict.fromkeys(self.notes)), self.files)

    def read(self, text: str, first_line: int | None) -> None:
        """Read the whole text of a script.

        If the script starts nothing of a launch, note each function that would, and that nothing
        calls.
        """
        parsed = self.parse(text, self.source, first_line)
        self.run_whole(parsed)
        if self.stop == "exit" or self.has_started_launch():
            return
        for name, function in self.functions.items():
            if name not in self.called and STARTED.search(function.text.text(function.body)):
                message = f"nothing here calls the function {name}: what it starts is not read"
                self.note("script-not-read", message, function.text.origin(function.body))

    def simple(self, text: ShellText, tree: Node, redirections: Sequence[Redirection]) -> Truth:
        """Read a simple command, a declaration or assignments, with all words expanded.

        Return whether it succeeds.
        """
        tree_type = tree.type
        if tree.has_error or any(r.tree.has_error for r in redirections):
            return self.not_read(text, tree)
        called = tree.child_by_field_name("name")
        keyword = called is not None and text.text(called) in _KEYWORDS
        if tree_type not in _SIMPLE or keyword:  # what is left of a block that was cut
            return self.not_read(text, tree)
        if tree_type in ("variable_assignment", "variable_assignments"):
            nodes = [tree] if tree_type == "variable_assignment" else tree.children
            for each in nodes:
                if each.type == "variable_assignment":
                    self.run_assignment(text, each)
            return TRUE
        typed = [(child, child.type) for child in tree.children]
        children = [child for child, child_type in typed if child_type != "comment"]
        for before, child in itertools.pairwise(list(children)):
            between = text.bytes[before.end_byte : child.start_byte]
            if b"\n" not in between.replace(b"\\\n", b""):  # the line goes on
                continue
            if before.type != "variable_assignment":
                return self.not_read(text, tree)
            # The grammar takes assignments on the lines before for those of a command.
            for setting in children[: children.index(child)]:
                self.run_assignment(text, setting)
            children = children[children.index(child) :]
        settings = [child for child in children if child.type == "variable_assignment"]
        redirecting = [child for child in children if child.type.endswith("_redirect")]
        for child in redirecting:
            redirections = [*redirections, *redirections_of(text, child)]
        written = [
            child
            for child, child_type in typed
            if child_type not in ("variable_assignment", "comment")
            and not child_type.endswith("_redirect")
            # The 2 of ``2>&1``, of which the grammar makes a word.
            and not (child_type == "number" and text.bytes.startswith((b"<", b">"), child.end_byte))
        ]
        for redirection in redirections:
            written += redirection.extra
        argv: list[Word] = []
        for word in text.words(written):
            argv += expand(self.state, word, Origin(text.source, text.line(word.line)))
        origin = text.origin(tree)
        if argv and argv[0].text == "time" and tree_type == "command":
            argv = [word for word in argv[1:] if word.text != "-p"]
        if tree_type in ("declaration_command", "unset_command") or (
            argv and argv[0].text in _DECLARATIONS  # the tree may have them for any command
        ):
            return self.declare(SimpleCommand(text, argv, settings, origin))
        return self.program(SimpleCommand(text, argv, settings, origin), redirections)

    def program(self, command: SimpleCommand, redirections: Sequence[Redirection]) -> Truth:
        """Take in a command of expanded words: a function, a builtin or a program.

        Keep the files that it writes and its output. Return whether it succeeds.
        """
        text, argv, settings, origin = command
        for word in argv:
            if word.text.startswith(("<(", ">(")) and STARTED.search(word.text):
                message = f"{brief(word.text)}: what it starts is not read"
                self.note("script-not-read", message, origin)
        writes = [
            word.text
            for redirection in redirections
            if redirection.operator in WRITES and redirection.target is not None
            for word in expand(self.state, redirection.target, origin)[:1]
        ]
        heredoc = next((r.tree for r in redirections if r.operator in ("<<", "<<-")), None)
        body = None if heredoc is None else text.heredoc(heredoc)
        name = argv[0].text.rpartition("/")[2] if argv else ""
        if writes or name in ("tee", "sed"):
            appends = any(redirection.operator in (">>", "&>>") for redirection in redirections)
            self.keep_written(body, argv, writes, appends, origin)
        if self.output_parts is not None:
            self.add_output(argv, body, writes, origin)
        stdin = None
        if any(word.text.rpartition("/")[2] in _READERS for word in argv):
            # What a loop reads line by line is not followed.
            reads_lines = argv[0].text == "read"
            stdin = self.stdin(text, redirections, None if reads_lines else self.piped)
        if not argv:
            return TRUE
        called = self.functions.get(argv[0].text)
        if called is not None:
            mark = self.state.mark()
            for setting in settings:
                self.run_assignment(text, setting, exported=True)
            before = self.state.values_before(mark)
            ended = self.call(called, argv, origin)
            for key, value_before in before.items():
                self.state.change(key, value_before)
            return ended
        texts = [word.text for word in argv]
        ends, kills = _STOPS & {*texts[1:3]}, not _ASKS & {*texts[1:]}  # docker stop, kill $PID
        name = texts[0].rpartition("/")[2]
        if ends if name in _ENGINES else name in _KILLS and kills:
            self.kills += 1
            self.mark_ended(texts)
        if self.note_unread_program(argv, origin):
            return PROGRAM
        if texts[0] in BUILTINS:
            return self.builtin(command, stdin)
        if self.captures and texts[0] in _TALKS:
            return TRUE
        if "prlimit" in texts[:3] and OWN_SHELL & set(texts):
            setter = changed_user(argv[: texts.index("prlimit")] or argv)
            for limit in prlimit(argv):
                self.state.set_limit(limit._replace(must=False, setter=setter))
            return TRUE
        return self.start_program(command, stdin)

    def mark_ended(self, texts: Sequence[str]) -> None:
        """Mark background processes as ended that ``kill`` named, once ``wait`` waits for them.

        A command in doubt marks none.

        Args:
            texts: The words of ``kill`` or ``wait``.
        """
        named = {text for text in texts[1:] if re.fullmatch(r"\$!\d+", text)}
        if self.doubts:
            return
        if texts[0] == "kill":
            self.killed |= named
        elif texts[0] == "wait":
            for each in (named or self.killed) & self.killed:
                place = int(each[2:])
                if place < len(self.commands):
                    self.commands[place] = self.commands[place]._replace(ended=True)

    def start_program(self, command: SimpleCommand, stdin: Word | None) -> Truth:
        """Take in a command that starts a program, behind wrappers and shells if there are any.

        Return whether it succeeds, which is mostly undecided.

        Args:
            stdin: None if not known.
        """
        text, argv, settings, origin = command
        environment = self.environment(text, settings)
        program = argv[0].text
        script = program.endswith(".sh") and self.text_beside(program) is not None
        plain = is_ordinary(argv) and not is_starter(argv)
        if plain and not argv[0].unresolved and not script:
            self.add_command(Command(tuple(argv), environment, (), origin))
        else:
            # By name: what stands behind a wrapper may be the text of a shell again.
            reading: Reading = import_module("preflight.launches.shell_script").read_words(
                argv,
                environment,
                depth=self.depth,
                budget=self.state.budget,
                beside=self.text_of_file,
                stdin=stdin,
            )
            aside = bool(_DETACHED & {word.text for word in argv})
            self.keep_container(argv, environment)
            for inner in map(self.in_container, reading.commands):
                # What stands in the text of bash -c has lines of its own.
                deeper = reading.own_lines or any(
                    wrapper[0].rpartition("/")[2] in SHELLS and len(wrapper) > 1
                    for wrapper in inner.wrappers
                )
                shown = inner.origin.source != text.source or deeper
                self.add_command(inner if shown else inner._replace(origin=origin), aside, deeper)
            self.notes += reading.notes
            self.files.update(reading.files)
        if program == "exec" and len(argv) > 1:
            self.stop = "exit"
        if own_words(argv) is not None:
            return GATE
        return TRUE if program.rpartition("/")[2] in _SUCCEED else PROGRAM

    def note_unread_program(self, argv: Sequence[Word], origin: Origin) -> bool:
        """Note a command whose programs are not read; return whether the command is left out."""
        texts = [word.text for word in argv]
        names = [text.rpartition("/")[2] for text in texts]
        job = names[0] in _ALLOCATE and any(n in SHELLS or n.endswith(".sh") for n in names[1:])
        runs = names[0] in _NOT_FOLLOWED and STARTED.search(" ".join(texts)) is not None
        coprocess = names[0] == "coproc"
        if job or runs or coprocess:
            message = f"{brief(' '.join(texts))}: what it starts, and when, is not read"
            self.note("script-not-read", f"{message}; give that on its own", origin)
        return runs or coprocess

    def keep_container(self, argv: Sequence[Word], environment: Mapping[str, Word]) -> None:
        """Keep a container's settings by its ``--name``: ``docker exec`` may start more in it."""
        texts = [word.text for word in argv]
        names = [text.removeprefix("--name=") for text in texts if text.startswith("--name=")]
        names += [after for text, after in itertools.pairwise(texts) if text == "--name"]
        stripped = strip_wrappers(argv, environment) if names else None
        if stripped is not None and stripped.container is not None:
            self.containers[names[0]] = (stripped.container, stripped.environment)

    def in_container(self, command: Command) -> Command:
        """Give a command of ``docker exec`` the settings and variables of its container, if the
        script started that container.

        Any other command is unchanged.
        """
        names = [wrapper[-1] for wrapper in command.wrappers if enters_container(wrapper)]
        container = self.containers.get(names[0]) if len(names) == 1 else None
        if container is None or command.container is not None:
            return command
        settings, environment = container
        pairs = command.environment.items()
        variables = {**environment, **{n: w for n, w in pairs if not may_be_absent(w, n)}}
        limits = tuple(limit for limit in command.limits if limit.origin != command.run_as.origin)
        return command._replace(
            container=settings, environment=variables, limits=limits, run_as=RunAs()
        )

    def add_command(self, command: Command, aside: bool = False, deeper: bool = False) -> None:
        """Add a command to those that the script starts, with the doubts and limits in force.

        Args:
            aside: ``-d`` or the like is among the command's words in the script.
            deeper: A script that this one runs starts the command.

        Raises:
            SourceError: If the script starts too many.
        """
        doubts = tuple(dict.fromkeys((*self.doubts, *command.doubts)))
        detached = command.container is not None and (
            any(word in _DETACHED for wrapper in command.wrappers for word in wrapper)
            or (aside and command.container.engine == "compose")
        )
        waited = (command.waited or not deeper) and not self.aside and not detached
        limits = command.limits
        if command.container is None and not any(map(starts_anew, command.wrappers)):
            limits = (*self.state.limits(), *limits)
        turn = self.kills + command.turn
        command = command._replace(doubts=doubts, waited=waited, turn=turn, limits=limits)
        self.commands.append(command)
        if len(self.commands) > _MOST_PROGRAMS:
            raise SourceError(f"{self.source} starts more than {_MOST_PROGRAMS} programs: {ALONE}")

    def call(self, function: ShellFunction, argv: Sequence[Word], origin: Origin) -> Truth:
        """Go through the function that ``argv`` names, with its arguments.

        Return whether it succeeds; OPEN, with a note, if the calls are too deep.
        """
        name, cost = argv[0].text, function.body.end_byte - function.body.start_byte
        self.called.add(name)
        deep = self.active.count(name) >= DEEPEST_CALLS or len(self.active) > 4 * DEEPEST_SCRIPT
        if deep or not self.state.budget.spend(cost):
            why = "calls itself" if deep else "is called more often than is followed"
            self.note("loop-not-counted", f"{name} {why}: not followed further", origin)
            return OPEN
        before = self.state.parameters
        self.state.give_parameters(tuple(argv[1:]))
        self.active.append(name)
        self.locals.append({})
        outer, self.may_return = self.may_return, False
        ended = self.command(function.text, Part("", function.body))
        self.active.pop()
        for key, value_before in self.locals.pop().items():
            self.state.change(key, value_before)
        self.state.give_parameters(before)
        if self.stop == "return":
            self.stop, ended = "", self.ended
        ended = OPEN if self.may_return else ended
        self.may_return = outer
        return ended

    def output(self, text: str, origin: Origin) -> Word | None:
        """Return the output of a command substitution, if it follows from its text or from
        ``host_words``; else None.

        Notes a server or a script that the text would start.
        """
        known = self.host_words(text)
        if known is None:
            known = env_file_settings(text, self.text_of_file)
        if known is not None:
            return Word(known, origin)
        if self.depth >= DEEPEST_SCRIPT or not self.state.budget.spend(len(text)):
            return None
        mark, kept = self.state.mark(), self.state.output
        inner = type(self)(self.source, self.state, self.depth + 1, self.beside, self.host_words)
        inner.files, inner.functions = self.files, dict(self.functions)
        inner.active, inner.nested = [*self.active], self.nested + 1
        inner.output_parts, inner.captures = [], True
        parsed = self.parse(text, self.source, origin.line)
        ended = inner.run_whole(parsed)
        self.state.back_to(mark)
        self.state.output = kept
        unread = {note.origin for note in inner.notes if note.id == "script-not-read"}
        for command in inner.commands:
            program = brief(" ".join(word.text for word in command.words[:2]))
            script = command.origin in unread and program.endswith(".sh")
            if script or starts_server(command.words):
                why = f"$(...) starts {program}: it is not read; give that command alone"
                self.note("script-not-read", why, origin)
        doubted = any(note.id in _DOUBTS for note in inner.notes)
        if inner.output_parts is None or inner.commands or ended.value is None or doubted:
            return None
        return Word("".join(inner.output_parts).rstrip("\n"), origin)

    def add_output(
        self, argv: Sequence[Word], body: Pieces | None, writes: Sequence[str], origin: Origin
    ) -> None:
        """Add the standard output of a command to ``output_parts``, which becomes None if the
        output is not known.

        Args:
            body: The heredoc.
            writes: Files that take the output instead.
        """
        program = argv[0].text if argv else ""
        silent = not argv or writes or program in self.functions or program in _SILENT
        if self.output_parts is None or silent:
            return
        if any(word.unresolved or word.doubts for word in argv):
            self.output_parts = None
            return
        arguments = [word.text for word in argv[1:]]
        folder = self.state.folder()
        if program in ("readlink", "realpath") and folder is not None:
            arguments = [a if a.startswith(("-", "/")) else f"{folder}/{a}" for a in arguments]
        output = output_of_words(program, arguments)
        if program == "pwd":
            output = None if folder is None else folder + "\n"
        elif program == "cat" and body is not None:
            word = value(self.state, body, origin)
            output = None if word.unresolved else word.text
        elif program == "cat" and len(arguments) == 1:
            text = self.text_of_file(arguments[0])
            output = text if text is not None and self.state.budget.spend(len(text)) else None
        self.output_parts = None if output is None else [*self.output_parts, output]

    def keep_written(
        self,
        body: Pieces | None,
        argv: list[Word],
        writes: list[str],
        appends: bool,
        origin: Origin,
    ) -> None:
        """Keep in ``files`` the text that a command writes, unresolved if it does not follow from
        the script.

        Args:
            body: The heredoc.
            writes: Paths behind ``>``.
            appends: The redirection is ``>>``.
        """
        program = argv[0].text.rpartition("/")[2] if argv else ""
        plain = [word for word in argv[1:] if not word.text.startswith("-")]
        if program == "tee":
            writes = [word.text for word in plain]
            appends = any(word.text in ("-a", "--append") for word in argv)
        elif program == "sed" and any(w.text.startswith(("-i", "--in-place")) for w in argv):
            writes = [*writes, *(word.text for word in plain[1:] if word.text in self.files)]
        content = Word("", origin, (f"what {program} writes",))
        if body is not None and program in ("cat", "tee"):
            content = value(self.state, body, origin)
        elif program in ("echo", "printf"):
            printed = output_of_words(program, [word.text for word in argv[1:]])
            names = tuple(name for word in argv for name in word.unresolved)
            content = content if printed is None else Word(printed, origin, names)
        for target in (name for path in writes for name in self.state.names_of(path)):
            before = self.files.get(target) if appends else None
            if appends and before is None:
                content = Word("", origin, (f"what {target} held before",))
            elif before is not None:
                names = (*before.unresolved, *content.unresolved)
                content = Word(before.text + content.text, origin, names)
            self.files[target] = content
            starts = content.unresolved or STARTED.search(content.text)
            if target.startswith("/etc/cron") and starts:
                why = f"{target}: what cron starts of it, and when, is not read"
                self.note("script-not-read", why, origin)


def output_of_words(program: str, arguments: Sequence[str]) -> str | None:
    """Return the output of ``echo``, ``dirname`` and the like; None if the words do not tell it."""
    if program == "echo":
        flag = arguments[0] if arguments and arguments[0] in ("-n", "-e", "-ne", "-en") else ""
        text = " ".join(arguments[1:] if flag else arguments)
        if "\\" in text and "e" in flag:
            return None
        return text if "n" in flag else text + "\n"
    if program == "printf" and arguments and not arguments[0].startswith("-"):
        text = arguments[0].replace("\\n", "\n")
        return None if "%" in text or "\\" in text else text
    plain = [text for text in arguments if text != "--"]
    options = arguments[:1] != ["--"] and any(text.startswith("-") for text in plain)
    if program in ("dirname", "basename") and len(plain) == 1 and not options:
        stripped = plain[0].rstrip("/") or "/"
        folder, _, name = stripped.rpartition("/")
        if program == "basename":
            return (name or stripped) + "\n"
        return (folder.rstrip("/") or ("/" if "/" in stripped else ".")) + "\n"
    if program in ("realpath", "readlink"):
        paths = [text for text in plain if not text.startswith("-")]
        known = len(paths) == 1 and paths[0].startswith("/")
        return posixpath.normpath(paths[0]) + "\n" if known else None
    if program == "seq" and all(re.fullmatch(r"-?\d{1,9}", text) for text in plain):
        first, last = [1, *map(int, plain), 0][-3:-1]
        if len(plain) in (1, 2) and last - first <= _MOST_NUMBERS:
            return "".join(f"{each}\n" for each in range(first, last + 1))
    return None
