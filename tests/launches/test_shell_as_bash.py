"""Scripts made at random, which set variables and build arguments, as bash itself runs them."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.launches.shell_script import read_script
from preflight.launches.source import Reading
from tests.builders.launched import argv, argvs
from tests.tables import each_row

SCRIPTS = 240
needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
EXPORTED = ("A", "B", "C")
# Each program prints its words, each behind a NUL, and a \1 between programs.
STAND_INS = (
    "mooncake_prog() { builtin printf '%s\\0' mooncake_prog \"$@\"; builtin printf '\\1'; }\n"
    "sglang_other() { builtin printf '%s\\0' sglang_other \"$@\"; builtin printf '\\1'; }\n"
)
# Notes of what is not followed: what hangs on it is not known.
NAMES_UNKNOWN = ("condition", "loop-not-counted", "script-not-read", "source-not-read")
NAMES = ("A", "B", "N", "I", "LONG_NAME")
ARRAYS = ("ARGS", "LIST")
LINES = ("'k,l,m n,,'", '"$LONG_NAME"', "$'a b\\nc, d'", "',a,'", "' x  y '", "'1,2,'")
TEXTS = (
    "x", "a b", "", "prefill", "qwen3-8b.sh", "/models/Qwen/a.b.c", "true", "7", "--tp", "a,b,c",
)  # fmt: skip


class Maker:
    """Makes scripts; every value in them is known."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.functions: list[str] = []
        self.counters = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def name(self) -> str:
        return self.pick(*NAMES)

    def script(self) -> str:
        lines = [f"{name}={self.quoted(self.pick(*TEXTS))}" for name in NAMES]
        lines += ["N=3", "I=0", "ARGS=(--first 'a b')", "LIST=(one two 'th ree')"]
        for number in range(self.random.randrange(3)):
            lines += self.function(f"f{number}")
        for _ in range(self.random.randrange(4, 10)):
            lines += self.statement(0)
        return "\n".join([*lines, 'mooncake_prog end "${ARGS[@]}" "$A" "$B" "$N" "$LONG_NAME"', ""])

    def quoted(self, text: str) -> str:
        return f"'{text}'" if not text or " " in text or self.random.random() < 0.3 else text

    def word(self) -> str:
        name, array = self.name(), self.pick(*ARRAYS)
        return self.pick(
            self.quoted(self.pick(*TEXTS)), f'"${name}"', f"${name}", f'"${{{name}}}-x"',
            f"pre${{{name}}}post", f'"${{{array}[@]}}"', f"${{{array}[@]}}", f'"${{{array}[*]}}"',
            f'"${{{array}[1]}}"', f'"${{#{array}[@]}}"', f'"${{{array}[@]:1}}"',
            f'"${{{array}[@]:0:1}}"', f'"${{#{name}}}"', f'"${{{name}:-dflt}}"',
            f'"${{{name}:+alt $N}}"', f'"${{{name}%.*}}"', f'"${{{name}%%.*}}"',
            f'"${{{name}#*/}}"', f'"${{{name}##*/}}"', f'"${{{name}/a/Z}}"',
            f'"${{{name}//[ab]/_}}"', f'"${{{name}/#a/S}}"', f'"${{{name}^^}}"', f'"${{{name}^}}"',
            f'"${{{name},,}}"', f'"${{{name}:1:2}}"', f'"${{{name}:1}}"', f'"${{{array}[@]/#/x}}"',
            f'"${{{array}[@]: -1}}"', '"$((N * 2 + 1))" ', "$((N + 10))", "{1..3}",
            f"/a/${name}/${self.name()}/c", f"${name}:${self.name()}:x",
            f"pre-${name}.${self.name()}-z.log", f'"${name}"/${self.name()}/y',
            f'"a  ${name}  ${self.name()} "', f"a\\ b\\${name}", f"${{{name}:-x y}}",
            f'"$(echo ${name})"', f'"$(basename -- "${{{name}:-x}}")"',
            f'$(dirname -- "${{{name}:-x}}")', "$(seq 2)", "'lit $A'", '\\"q\\"',
        )  # fmt: skip

    def words(self, most: int = 3) -> str:
        return " ".join(self.word() for _ in range(self.random.randrange(1, most + 1)))

    def condition(self) -> str:
        name = self.name()
        value = self.quoted(self.pick(*TEXTS))
        number = str(self.random.randrange(5))
        one = self.pick(
            f'[ "${name}" = {value} ]', f'[ "${name}" != {value} ]', f'[ -z "${name}" ]',
            f'[ -n "${name}" ]', f'[ "$N" -lt {number} ]', f'[ $N -ge {number} -a -n "${name}" ]',
            f'[ ! -z "${name}" -o "$N" -eq {number} ]', f'test "${name}" = {value}',
            f"[[ ${name} == {value} ]]", f"[[ ${name} == *a* ]]", f'[[ ${name} != "$A" ]]',
            f"[[ -n ${name} && $N -gt {number} ]]",
            f"[[ -z ${name} || ( $N -le {number} && ${name} != x ) ]]", f"((N > {number}))",
            f"(( N % 2 == 0 && I < {number} ))", f'[[ "${{#ARGS[@]}}" -gt {number} ]]', "true",
            "false", f"[[ ! ${name} ]]", f"[[ ${name} == pre* ]]",
        )  # fmt: skip
        return f"! {one}" if self.random.random() < 0.15 else one

    def assignment(self) -> str:
        name, array = self.pick("A", "B", "LONG_NAME"), self.pick(*ARRAYS)
        simple = self.pick(*TEXTS)
        return self.pick(
            f"{name}={self.quoted(simple)}", f'{name}="${self.name()} y"',
            f"{name}+={self.quoted(self.pick('q', 'r s'))}",
            f"{name}=${{{self.name()}:-{self.pick('d', 'e')}}}",
            f'{name}="$(echo {self.pick("u", "v w")})"', f"{array}+=({self.words()})",
            f"{array}=({self.words()})", f"{array}=()", f"{array}[0]={self.quoted(simple)}",
            "N=$((N + 1))", "((N++))", "((N += 2, I = N))", "let I=I+1", "N=4",
            f"IFS={self.pick(',', ', ', '')} read -r {name} B <<< {self.pick(*LINES)}",
            f"read -r {name} <<< {self.pick(*LINES)}", f"read -ra {array} <<< {self.pick(*LINES)}",
            self.pick("IFS=,", "IFS=', '", "IFS=", "IFS=$' \\t\\n'", "unset IFS", "IFS=x-"),
            f'{name}="${{{array}[*]}}"', f"{name}=${{{array}[*]}}", f"{name}=',a,,b ,c'",
            f"unset {name}; {name}=again", f"IFS=, read -ra {array} <<< 'k,l,m n'",
            f"export {name}=exported", f"set -- {self.words(2)}",
        )  # fmt: skip

    def statement(self, depth: int) -> list[str]:
        kinds = ["assign"] * 5 + ["start"] * 3
        if depth < 3:
            kinds += ["if", "if", "case", "for", "for", "while", "list", "sub", "brace", "list"]
        if self.functions:
            kinds += ["call", "call"]
        kind = self.pick(*kinds)
        inner = depth + 1
        if kind == "start":
            front = self.pick("", "", f"{self.name()}=inner ")
            return [f"{front}{self.pick('mooncake_prog', 'sglang_other')} {self.words()}"]
        if kind == "call":
            return [f"{self.pick(*self.functions)} {self.words(2)}"]
        if kind == "if":
            lines = [f"if {self.condition()}; then", *self.block(inner)]
            if self.random.random() < 0.4:
                lines += [f"elif {self.condition()}", "then", *self.block(inner)]
            if self.random.random() < 0.5:
                lines += ["else", *self.block(inner)]
            return [*lines, "fi"]
        if kind == "case":
            name = self.name()
            lines = [f'case "${name}" in']
            for _ in range(self.random.randrange(1, 4)):
                value = self.quoted(self.pick(*TEXTS))
                pattern = self.pick(value, f"{value}|true", "a*", "*.sh", '"$B"')
                lines += [f"{self.pick('', '(')}{pattern})", *self.block(inner), ";;"]
            if self.random.random() < 0.5:
                lines += ["*)", *self.block(inner), ";;"]
            return [*lines, "esac"]
        if kind == "for":
            self.counters += 1
            counter = f"i{self.counters}"
            head = self.pick(
                f"for {counter} in {self.words(2)}; do",
                f"for {counter} in {{1..3}}; do",
                f"for {counter} in $(seq 0 2); do",
                f"for (({counter} = 0; {counter} < 3; {counter}++)); do",
                f'for {counter} in "${{ARGS[@]}}"; do',
            )
            skips = [f'[ "${counter}" = 2 ] && {self.pick("break", "continue")}']
            skips = skips if self.random.random() < 0.3 else []
            return [head, *skips, *self.block(inner), f'sglang_other "${counter}"', "done"]
        if kind == "while":
            self.counters += 1
            counter = f"w{self.counters}"
            test = self.pick(
                f"[ ${counter} -lt 3 ]", f"(({counter} < 2))", f"[[ ${counter} -lt 2 ]]"
            )
            return [
                f"{counter}=0", f"while {test}; do", f"{counter}=$(({counter} + 1))",
                *self.block(inner), "done",
            ]  # fmt: skip
        if kind == "list":
            joint = self.pick("&&", "||")
            then = f"{self.assignment()}; mooncake_prog {self.word()}"
            return [f"{self.condition()} {joint} {{ {then}; }}"]
        if kind == "sub":
            return ["(", *self.block(inner), self.pick("", "exit 3"), ")"]
        if kind == "brace":
            return ["{", *self.block(inner), "}"]
        if kind == "assign" and self.random.random() < 0.02:
            return [f"if {self.condition()}; then exit 1; fi"]
        return [self.assignment()]

    def block(self, depth: int) -> list[str]:
        return [line for _ in range(self.random.randrange(1, 3)) for line in self.statement(depth)]

    def function(self, name: str) -> list[str]:
        head = self.pick(f"{name}() {{", f"{name}()\n{{", f"function {name} {{", f"{name} () {{")
        lines = [head, "local A=inside v=$1", 'sglang_other "$#" "$@" "$v" "${2:-none}"']
        lines += self.block(2)
        if self.random.random() < 0.4:
            lines += ["shift", 'mooncake_prog "$@"']
        if self.random.random() < 0.4:
            part = self.pick(":2", ":1:1", ":1", ": -1", "#a", "/x/y", "^")
            lines.append(
                f"sglang_other {self.pick(f'${{@{part}}}', f'{chr(34)}${{@{part}}}{chr(34)}')}"
            )
            lines.append(f'mooncake_prog "${{*{part}}}" "${{#@}}" ${{#*}}')
        if self.random.random() < 0.3:
            lines += [f"if {self.condition()}; then return 1; fi", 'LIST+=("$v")']
        self.functions.append(name)
        return [*lines, "}"]


def as_bash(script: str, folder: Path | None = None) -> list[list[str]]:
    """Return the words of each program that bash starts, with nothing but stand-ins to start."""
    ran = subprocess.run(
        ["bash", "--norc", "-c", STAND_INS + script, "launch.sh"],
        capture_output=True,
        check=False,
        timeout=20,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )
    assert b"syntax error" not in ran.stderr, ran.stderr
    return [
        [word.decode() for word in started.split(b"\0")[:-1]]
        for started in ran.stdout.split(b"\1")[:-1]
    ]


def is_named(reading: Reading) -> bool:
    """Tell whether a reading names something that it does not know."""
    notes = any(note.id in NAMES_UNKNOWN for note in reading.notes)
    return notes or any(w.unresolved for command in reading.commands for w in command.words)


@pytest.mark.slow
@needs_bash
@pytest.mark.parametrize("tenth", range(10))
def test_a_script_starts_what_bash_starts(tenth: int) -> None:
    named = 0
    for seed in range(tenth, SCRIPTS, 10):
        script = Maker(seed).script()
        reading = read_script(script, "launch.sh", {})
        if is_named(reading):
            named += 1
            continue
        found = argvs(reading)
        assert found == as_bash(script), f"seed {seed}:\n{script}"
    # What is left out is named in the words; that is to stay rare where every value is known.
    assert named <= SCRIPTS // 10 // 4


NESTED = {
    "case": "A=$(case x in x) echo 4;; *) echo 5;; esac)\nmooncake_prog $A",
    "brackets in a heredoc": 'A=$(cat <<T\n) it\'s "x\nT\n)\nmooncake_prog "$A" end',
    "tabs": 'A=$(cat <<-T\n\t) a\n\tT\n)\nmooncake_prog "$A" end',
    "a shift is no heredoc": "A=$((1<<2))\nmooncake_prog $A end",
    "a string is no heredoc": "A=$(cat <<< 'T )')\nmooncake_prog \"$A\" end",
    "nested": 'A=$(echo $(case y in (y) echo "$(echo 1)";; esac))\nmooncake_prog $A end',
    "two in a path": "A=x B=y\nmooncake_prog /a/$A/$B/c.json $A/$B/d",
    "a list behind a heredoc": "cat <<T >/dev/null && mooncake_prog 1\nx\nT\nmooncake_prog 2",
    "a pipe behind a heredoc": "mooncake_prog 0 <<T | cat\nx\nT\nmooncake_prog 2",
    "a sum behind !": "N=1\n! ((N > 3)) && mooncake_prog 1\nmooncake_prog 2",
    "a list within a pipeline": "false | true && mooncake_prog 1 || mooncake_prog 2",
}
SUMS = ("1 << 3", "(1+3) << 2", "4*5", "1 + 1 << 2", "-9 >> 1", "(2*(3+1)) << N", "1 << 3 > 7")
# How a script asks for what its caller is to set, with a default that ends it: S has to be x.
GUARDS = (
    'if [ "${S:-none}" != x ]; then echo no >&2; exit 1; fi',
    '[ "${S:-none}" = x ] || exit 1',
    "[[ ${S:-none} != x ]] && { true; exit 0; }",
    'm=${S:-none}\nif [ "$m" != x ]; then exit 0; fi',
    'case "${S:-none}" in x) ;; *) exit 1;; esac',
    'f() { local m=${S:-none}; test "$m" = x || exit 3; }\nf',
    'if [ "${S:-none}" = x ]; then A=2; else exit 1; fi',
    'if [ "$N" = 9 ]; then A=2; elif [ "${S-none}" != x ]; then exit 1; fi',
    "n=${S:+1}\nif ((n < 1)); then exit 1; fi",
)


@pytest.mark.slow
@needs_bash
@pytest.mark.parametrize("script", NESTED.values(), ids=NESTED)
def test_what_the_grammar_nests_otherwise_is_read_as_bash_reads_it(script: str) -> None:
    """What is known has the same words; what is not is named, and what follows is read."""
    judged = as_bash(script)
    reading = read_script(script, "launch.sh", {})
    found = [argv(one) for one in reading.commands if one.words[0].text[:2] == "mo"]
    assert is_named(reading) or found == judged


@each_row(
    ("test", "holds"),
    [
        ("$V =~ ^8", "1"), ('"$V" =~ ^[0-9]+$', "1"), ("! $V =~ x", "1"),
        ("$V =~ ^8$ && -n $V", "1"), ("$V =~ ^[1-9][0-9]*$", "1"), ("$V =~ ^(a|8)$", "not known"),
        ("$V =~ $R", "not known"), ("$V =~ [[:digit:]]", "not known"),
    ],
)  # fmt: skip
def test_a_regular_expression_decides_if_everybody_reads_it_alike(test: str, holds: str) -> None:
    script = f"V=8; R='^8$'; if [[ {test} ]]; then T=1; else T=2; fi; mooncake_prog $T\n"
    (command,) = read_script(script, "launch.sh", {}).commands
    assert (command.words[1].text if not command.words[1].doubts else "not known") == holds


@pytest.mark.slow
@needs_bash
@each_row("quote", ["", '"'])
@each_row("given", ["", "N=3\n"])
def test_a_sum_that_is_a_default_is_worked_out(quote: str, given: str) -> None:
    words = [f"{quote}${{{name}:-$(({each}))}}{quote}" for name in "AB" for each in SUMS]
    words += [f"$(({each}))" for each in SUMS] + ["${A:-${B:-$((1 << 2))}}z"]
    words = [word for word in words if given or "N" not in word]
    script = f"{given}mooncake_prog {' '.join(words)}\n"
    assert argvs(read_script(script, "launch.sh", {})) == as_bash(script)


@pytest.mark.slow
@needs_bash
@each_row("guard", GUARDS)
@each_row("before", ["", "mooncake_prog 1 &\nwait\n"])
def test_what_follows_an_exit_that_a_default_decides_is_read(guard: str, before: str) -> None:
    """Who starts the script sets the variable. What bash starts either way is read, in doubt."""
    script = f"N=3\n{before}{guard}\nmooncake_prog 2\n"
    started = as_bash(f"S=x\n{script}")
    assert len(started) == len(as_bash(script)) + 1, "the guard asks for S"
    reading = read_script(script, "launch.sh", {})
    found = [argv(one) for one in reading.commands if one.words[0].text == "mooncake_prog"]
    assert (found, is_named(reading)) == (started, True)
    assert "condition" in {doubt.id for doubt in reading.commands[-1].doubts}
    given = read_script(script, "launch.sh", {"S": "x"})
    assert (argvs(given), is_named(given)) == (started, False)
    other = read_script(script, "launch.sh", {"S": ""})
    assert argvs(other) == started[:-1] or is_named(other)


@pytest.mark.slow
@needs_bash
@each_row(
    "guard",
    [
        'if [ "$N" = 3 ]; then echo "${S:-none}"; exit 1; fi',
        'if [ "${S:-none}" = none ]; then mooncake_prog 4; exit 0; fi',
        'N=1; case "$N" in 1) exit 1;; esac',
    ],
)
def test_an_exit_that_is_decided_ends_the_script(guard: str) -> None:
    script = f"N=3\nmooncake_prog 1 &\nwait\n{guard}\nmooncake_prog 2\n"
    found = read_script(script, "launch.sh", {}).commands
    assert [argv(one) for one in found if "mooncake" in one.words[0].text] == as_bash(script)


NOT_FOLLOWED = {
    "a name by a key": "declare -A T=([a]=1); mooncake_prog ${T[a]}",
    "a sum by its kind": "declare -i N; N=1+1; mooncake_prog $N",
    "a reference": "declare -n R=A; A=1; mooncake_prog $R",
    "lines of a file": "mapfile -t A < hosts; mooncake_prog ${A[0]}",
    "lines in a loop": "while read -r A; do mooncake_prog $A; done < hosts",
    "options": "while getopts a: o; do mooncake_prog $OPTARG; done",
    "names of files": "mooncake_prog *.json",
    "several words": "mooncake_prog mlx5_{0,1}",
    "the folder before": "pushd /x; popd; mooncake_prog $PWD",
    "a menu": "select A in x y; do mooncake_prog $A; done",
    "what runs on": "case a in a) mooncake_prog 1;& b) mooncake_prog 2;; esac",
    "find": "find . -name 'x' -exec mooncake_client {} \\;",
    "trap": "trap 'mooncake_client' EXIT; mooncake_prog 1",
    "coproc": "coproc mooncake_client",
    "what it is told": 'eval "$X"; mooncake_prog 1',
    "a file that is not here": 'source "$X"; mooncake_prog 1',
    "a quote": "mooncake_prog 'a\nmooncake_prog 2",
    "a block": "if true; then mooncake_prog 1",
    "what does not parse": "mooncake_prog 1 )\nmooncake_prog 2",
}


@each_row("script", NOT_FOLLOWED.values())
def test_what_is_not_followed_is_named(script: str) -> None:
    reading = read_script(f"{script}\n", "launch.sh", {})
    doubts = [doubt for command in reading.commands for doubt in command.doubts]
    assert doubts or is_named(reading)


def _bash(script: str) -> list[dict[str, str]]:
    """What each ``printenv`` of ``script`` prints, of the names above."""
    run, path = ["bash", "--norc", "-c", script], {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(run, capture_output=True, text=True, env=path, check=True)
    found = []
    for block in re.split(r"(?m)^--\n", done.stdout)[:-1]:  # A=0-- is a value
        lines = (line.partition("=") for line in block.splitlines())
        found.append({name: value for name, _, value in lines if name in EXPORTED})
    return found


def _exported(script: str) -> list[dict[str, str]]:
    commands = read_script(script, "s", {}).commands
    return [
        {name: word.text for name, word in one.environment.items() if name in EXPORTED}
        for one in commands
        if one.words[0].text.endswith("printenv")
    ]


P = "/usr/bin/printenv; echo --"


@pytest.mark.parametrize(
    "script",
    [
        # DEVICES=a,b on one line, and MOONCAKE_DEVICE=$DEVICES PROTOCOL=rdma server on the next.
        f"A=x; B=1 C=$A {P}", f"A=x; B=$A C=$B {P}", f"A=x; A=y B=$A {P}; C=$A {P}",
        f"export A=x; unset A; B=1 C=${{A:-none}} {P}",
        f"f() {{ {P}; }}; A=1 f; {P}", f"f() {{ A=2; {P}; }}; A=1 f; {P}",
        f"f() ( export A=2; {P} ); f; {P}", f"export A; A=1; {P}", f"declare -x A; A=1; {P}",
        f"export A=1; unset A; A=2; {P}", f"A=1; unset A; export A; A=2; {P}",
        f"declare -x A=1; declare +x A; {P}", f"export A=1; export -n A=2; {P}",
        f"(set -a; A=1; {P}); A=2; {P}", f"B=$(set -a; echo x); A=2; {P}",
        f"echo | {{ set -a; }}; A=2; {P}", f"set -e -a; A=1; {P}",
        f"set -eu -o allexport; A=1; set +a; B=2; {P}", f"set -euo pipefail -a; A=1; {P}",
        f"(declare -i A); A=1+1; export A; {P}", f"A=1; unset -f A; export A; {P}",
        f"A=1; A+=(2); export B=${{#A[@]}}; {P}", f"export A=1; (eval 'A=4; {P}'); {P}",
    ],
)  # fmt: skip
@pytest.mark.slow
@needs_bash
def test_what_is_exported_is_what_bash_exports(script: str) -> None:
    assert _exported(script) == _bash(script)


_VALUES = st.sampled_from(["x", "", "$A", "$B", "${C}", '"$A-$B"', "${A:-d}", "'$A'", "a$C"])
_PAIRS = st.lists(st.tuples(st.sampled_from(EXPORTED), _VALUES), min_size=1, max_size=3)


@pytest.mark.slow
@needs_bash
@given(st.lists(st.tuples(st.sampled_from(["", "export ", "prefix"]), _PAIRS), max_size=5))
def test_any_assignments(steps: list[tuple[str, list[tuple[str, str]]]]) -> None:
    lines = [f"{name}=0" for name in EXPORTED]  # all are set: what is not is another matter
    for kind, pairs in steps:
        words = " ".join(f"{name}={value}" for name, value in pairs)
        lines.append(
            f"{words} /usr/bin/printenv; echo --" if kind == "prefix" else f"{kind}{words}"
        )
    lines.append("/usr/bin/printenv; echo --")
    script = "".join(f"{line}\n" for line in lines)
    assert _exported(script) == _bash(script)
