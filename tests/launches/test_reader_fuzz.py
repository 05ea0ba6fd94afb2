"""No text makes a reader raise anything but SourceError, run a command, or work without bounds."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.launches import shell_state
from preflight.launches.compose import read_compose
from preflight.launches.env_files import read_env_file
from preflight.launches.kubernetes import read_kubernetes
from preflight.launches.launch_files import read_source
from preflight.launches.shell_script import read_argv, read_script
from preflight.launches.source import Reading, SourceError
from tests.builders.examples import some
from tests.builders.steps import steps
from tests.tables import each_row

SENTINEL = "reader-fuzz-sentinel"
PIECES = [
    *" \t\n\\'\"$`;&|<>(){}[]#=~*?!,:%-",
    "\r\n", "\0", "\u00e9", "$(", "${", "$((", "))", ":-", ":=", ":+", "<<EOF\n", "\nEOF\n",
    "<<-'E'", "$'", "&&", "||", ";;", "<(", "2>&1", "\\\n", "\\ # x\n", "A=", "A+=", "A=(",
    "${A[@]}", "$A", "export ", "unset A", "if ", "then ", "fi", "for i in ", "do ", "done",
    "case x in ", "esac", "f() {", "}", "f", "function ", "[[ ", "]]", "eval ", "bash -c ",
    "sh -c '", "source x", "set -a", "numactl --membind=0 ", "sudo -u ", "env -u ", "env -i ",
    "timeout 1 ", "exec ", "time ", "nice ", "docker run ", "-it ", "--shm-size ",
    "--ulimit memlock=", "-v /a:/b:ro ", "--mount type=", "--gpus=all ", "-e A", "--env-file x",
    "--entrypoint ", "image ", "python3 -m sglang.launch_server ", "--tp 8", "$((1<<", "1/0",
    "999999999999999999999999999999",
    *(written.format(f"touch {SENTINEL}") for written in ("{}", "$({})", "`{}`", "<({})")),
]  # fmt: skip
scripts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join)
words = st.lists(st.sampled_from([piece.strip() for piece in PIECES]) | scripts, max_size=12)
environments = st.dictionaries(st.sampled_from(["A", "B", "HOME", "IFS"]), scripts, max_size=3)
scalars = st.none() | st.booleans() | st.integers() | scripts
FIELDS = [
    *"services command entrypoint environment env_file image ulimits volumes kind spec".split(),
    *"items env containers args name value valueFrom template metadata resources limits".split(),
    *"deploy path devices shm_size tmpfs security_opt sizeLimit mountPath target type".split(),
    *"volumeMounts emptyDir medium securityContext capabilities add hugepages-2Mi memory".split(),
]
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=20,
)
yaml_texts = st.lists(
    st.sampled_from(
        [*":-[]{}&*!|>'\"%@`?#, \n\t", "\n  ", "- ", ": ", "&a ", "*a", "<<: ", "---\n", "!!int "]
        + [f"{field}: " for field in FIELDS]
        + ["kind: Pod\n", "services:\n  a:\n    ", "$(A)", "${A:-", "$$", f"$(touch {SENTINEL})"]
    )
    | st.text(max_size=3),
    max_size=30,
).map("".join)


@pytest.fixture(autouse=True, scope="module")
def nothing_was_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to stand in; whatever a reader would run leaves its sentinel there."""
    folder = tmp_path_factory.mktemp("fuzz")
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
        assert not (folder / SENTINEL).exists()
        assert not (before / SENTINEL).exists()
    finally:
        os.chdir(before)


def use(reading: Reading) -> None:
    """Looks at everything that a reading holds."""
    for command in reading.commands:
        assert command.words
        assert command.words[0].text
        assert all(isinstance(word.text, str) for word in command.words)
        assert len(dict(command.environment)) == len(command.environment)
        assert all(command.wrappers)
        if command.container is not None:
            assert command.container.engine
            command.container.mount_at("/dev/shm")
            repr(command.container)
    for note in reading.notes:
        assert note.text
        assert str(note.origin)


@given(scripts, environments)
def test_scripts(text: str, environment: dict[str, str]) -> None:
    use(read_script(text, "launch.sh", environment))


@given(words, environments)
def test_command_lines(argv: list[str], environment: dict[str, str]) -> None:
    use(read_argv(argv, environment))


@given(scripts | st.text(), environments)
def test_env_files(text: str, environment: dict[str, str]) -> None:
    read_env_file(text, "prod.env", environment)


@given(trees, environments)
def test_json(tree: object, environment: dict[str, str]) -> None:
    manifests(json.dumps(tree), environment)


@given(yaml_texts, environments)
def test_yaml(text: str, environment: dict[str, str]) -> None:
    manifests(text, environment)


def manifests(text: str, environment: dict[str, str]) -> None:
    with contextlib.suppress(SourceError):
        use(read_kubernetes(text, "manifest"))
    with contextlib.suppress(SourceError):
        use(read_compose(text, "manifest", environment))


@given(st.sampled_from(["a.sh", "a.yaml", "a.json", "a"]), st.binary() | scripts.map(str.encode))
def test_files(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    with contextlib.suppress(SourceError):
        use(read_source(name, {}, [name]))


# Each as often as a text is long; numbered where it says so.
NASTY = [
    "'\"", "x \"${A:-'", "${A:-", '"${A:-', "$(", "x $(a) `b` ", "$(a $'", "x \\\n", "\\ # x",
    "x \\ # y\n", "cat >a <<A\n", "<<A ", "cat >a <<A\n$B\nA\n", "((", "((1+1))\n", "(",
    "(A=1;", "f() { ", "f() { f; }; f\n", "case x in a) ", "if ", "export A$B=1 C=2; x\n",
    "A=1 x\n", "A+=$A ", "A=$A$A\n", 'A+=(a "${A[@]}")\n', "bash -c ",
    "export A='bash -c \"$A;$A\"'; bash -c \"$A\"\n", "A='eval \"$A $A\"'; eval $A\n",
    "docker run -e A ", "docker run -e A i x\n", "sudo env A=1 ", "{,", "{{a,b", "x", "x # y\n",
    ")", "A[", "[[ ", "x\n", "x;", "x|", "x&x ", "\n", ";\n", ";;", ":\n", "x ",
    "run%d --port %d\n", "A%d=%d\n", 'export A%d="x $A%d" B=2; x\n', 'x "$A%d" ${B%d:-c}\n',
    "f%d() { x %d; }; f%d\n", "cat >a%d <<E%d\n$B\nE%d\n", 'x "a$(b %d)" `c %d`\n',
    "eval x%d\n", "bash -c 'x %d'\n", "docker run --shm-size %dg -v /a%d:/b i x\n", "A=\n",
    "$A", "\\a", "''", '"$A\\$ ', "eval x\n", "bash -c x\n", "<a ", "x >a 2>&1 &\n",
    "(A=1; x)\n", "{ x;}\n", "if x; then y; else z; fi\n", 'for i in a b; do x "$i"; done\n',
    "while x; do for i in a; do ", "case $A in a) x;; *) y;; esac\n", "[[ -n $A ]] && x\n",
    "A=(a b $C)\n", "x --config '{\"a\": [1, \"b\"]}'\n", "x ~/a\n", "x a\r\n",
]  # fmt: skip


def shaped(piece: str, length: int) -> str:
    """A text of about ``length`` characters; a piece with %d in it is another one each time."""
    numbers = piece.count("%d")
    if not numbers:
        return piece * (length // len(piece))
    some = [piece % ((index,) * numbers) for index in range(length // len(piece))]
    return "".join(some)[:length]


@pytest.mark.slow
@each_row("piece", some(NASTY, 5))
def test_work_grows_with_the_text(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the text takes about twice the steps; a reading that is quadratic takes four times."""
    # What expansions may add is a constant for every text, here one that hides nothing.
    monkeypatch.setattr(shell_state, "LARGEST_EXPANSION", 500)
    small, large = (
        steps(partial(read_script, shaped(piece, length), "launch.sh", {"A": "a b"}))
        for length in (2_000, 4_000)
    )
    assert large <= 2.4 * small + 10_000


@pytest.mark.slow
@each_row("piece", some(NASTY, 2))
def test_no_text_drives_the_readers_deep(piece: str) -> None:
    """How deep calls nest is bounded by the readers' own limits, not by the text."""
    text = shaped(piece, 2_000)
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 250)
    try:
        use(read_script(text, "launch.sh", {"A": "a b"}))
        use(read_argv([text], {}))
        for manifest in (text, "a: " + text, json.dumps({"services": {"s": {"command": text}}})):
            manifests(manifest, {"A": "a b"})
    finally:
        sys.setrecursionlimit(before)
