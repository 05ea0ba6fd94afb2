"""This program on a node: the line that ssh hands over, and the program's standard input.

If a node has no such program, this one goes along on standard input, and unpacks itself into a
temporary folder, which it removes. The launch comes behind it, as it was read here.
"""

import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from preflight.base.bundle import CARRIED, zipapp

# How what is said of the program differs from a login shell's banner and from the report itself.
SAYS = "@mooncake-preflight"
_SCRIPT = f'echo "{SAYS} start $SSH_CONNECTION"; {{ "$@"; echo "{SAYS} end $?"; }}'
# Within JSON an end of line says nothing, and one line costs less here than thousands.
_JOINED = ' | tr -d "\\n"; echo'

_READ_IT = "import sys; given = sys.stdin.buffer; exec(given.read(int(given.readline())))"


class Question(NamedTuple):
    """The line that ssh hands over to a node, and the input of the program on that node.

    Attributes:
        carried: The input begins with the program itself.
    """

    line: str
    content: bytes
    carried: bool


class Pair(NamedTuple):
    """Two nodes, of which one serves and the other asks that one.

    Attributes:
        serve: What the serving node is asked.
        ask: What the asking node is asked, by the address that the serving node printed.
    """

    serving: str
    asking: str
    serve: Question
    ask: Callable[[str], Question]


class Program(NamedTuple):
    """How this program is run on a node.

    Attributes:
        command: Its words, if the node has it.
        python: The interpreter for the program that is sent along.
        carry: Whether it is sent: always, never, or auto, to nodes that lack it.
    """

    command: tuple[str, ...]
    python: str
    carry: str

    def question(
        self, argv: Sequence[str], content: bytes, carried: bool, one_line: bool = False
    ) -> Question:
        """Return the line for ssh that runs this program with ``argv``, and its standard input.

        Args:
            content: What the program reads.
            carried: The program itself is sent too, in front of ``content``.
            one_line: The output comes back as one line.
        """
        script = _SCRIPT + _JOINED if one_line else _SCRIPT
        # Constant but for the words: a login shell may be any.
        program = (self.python, "-c", _READ_IT) if carried else self.command
        line = f"exec sh -c '{script}' sh {shlex.join((*program, *argv))}"
        if carried:  # the program stands in front of what it reads itself
            archive, start = zipapp(), CARRIED.encode()
            content = b"%d\n%s%d\n%s%s" % (len(start), start, len(archive), archive, content)
        return Question(line, content, carried)


class SshNodes(NamedTuple):
    """Which nodes to ask, and how ssh reaches them.

    Attributes:
        nodes, exclude: Node sets.
        nodes_files: Of node sets.
        timeout_seconds: For one node, from start to end; connect_seconds: for ssh to connect, a
            part of that time.
        fanout: Connections at once, None for ClusterShell's own.
        user: None for ssh's own.
    """

    nodes: tuple[str, ...]
    nodes_files: tuple[str, ...]
    exclude: tuple[str, ...]
    timeout_seconds: float
    connect_seconds: float
    fanout: int | None
    user: str | None
    ssh_options: str
