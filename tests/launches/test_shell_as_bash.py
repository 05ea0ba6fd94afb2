"""Scripts made at random, which set variables and build arguments, as bash itself runs them."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from preflight.launches.launch_files import read_source
from preflight.launches.shell_patterns import expression
from preflight.launches.shell_script import read_script

SCRIPTS = 480
# Each program prints its words, each behind a NUL, and a \1 between programs.
STAND_INS = (
    "mooncake_prog() { builtin printf '%s\\0' mooncake_prog \"$@\"; builtin printf '\\1'; }\n"
    "sglang_other() { builtin printf '%s\\0' sglang_other \"$@\"; builtin printf '\\1'; }\n"
)
NAMES = ("A", "B", "N", "I", "LONG_NAME")
ARRAYS = ("ARGS", "LIST")
LINES = ("'k,l,m n,,'", '"$LONG_NAME"', "$'a b\\nc, d'", "',a,'", "' x  y '", "'1,2,'")
TEXTS = (
    "x",
    "a b",
    "",
    "prefill",
    "qwen3-8b.sh",
    "/models/Qwen/a.b.c",
    "true",
    "7",
    "--tp",
    "a,b,c",
)


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
        lines += ["declare -A T=([prefill]=30000 ['a b']=two)"]
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
            self.quoted(self.pick(*TEXTS)),
            f'"${name}"',
            f"${name}",
            f'"${{{name}}}-x"',
            f"pre${{{name}}}post",
            f'"${{{array}[@]}}"',
            f"${{{array}[@]}}",
            f'"${{{array}[*]}}"',
            f'"${{{array}[1]}}"',
            f'"${{#{array}[@]}}"',
            f'"${{{array}[@]:1}}"',
            f'"${{{array}[@]:0:1}}"',
            f'"${{#{name}}}"',
            f'"${{{name}:-dflt}}"',
            f'"${{{name}:+alt $N}}"',
            f'"${{{name}%.*}}"',
            f'"${{{name}%%.*}}"',
            f'"${{{name}#*/}}"',
            f'"${{{name}##*/}}"',
            f'"${{{name}/a/Z}}"',
            f'"${{{name}//[ab]/_}}"',
            f'"${{{name}/#a/S}}"',
            f'"${{{name}^^}}"',
            f'"${{{name}^}}"',
            f'"${{{name},,}}"',
            f'"${{{name}:1:2}}"',
            f'"${{{name}:1}}"',
            f'"${{{array}[@]/#/x}}"',
            f'"${{{array}[@]: -1}}"',
            f'"${{!{array}[@]}}"',
            f'"${{T[{self.key()}]}}"',
            f'"${{T[{self.key()}]:-none}}"',
            '"${T[@]}"',
            '"${!T[@]}"',
            '"${#T[@]}"',
            f'"${{T[{self.key()}]+set}}"',
            '"$((N * 2 + 1))" ',
            "$((N > 2 ? 10 : 20))",
            "{1..3}",
            "p{a,b}s",
            f'"$(echo ${name})"',
            f'"$(basename -- "${{{name}:-x}}")"',
            f'$(dirname -- "${{{name}:-x}}")',
            "$(seq 2)",
            "'lit $A'",
            '\\"q\\"',
        )

    def key(self) -> str:
        """Return a key that is never empty: bash refuses that."""
        return self.pick("prefill", "decode", "'a b'", "k$B", '"$A-k"', "$N", "x-$N", "'q'", "0")

    def words(self, most: int = 3) -> str:
        return " ".join(self.word() for _ in range(self.random.randrange(1, most + 1)))

    def condition(self) -> str:
        name = self.name()
        value = self.quoted(self.pick(*TEXTS))
        number = str(self.random.randrange(5))
        one = self.pick(
            f'[ "${name}" = {value} ]',
            f'[ "${name}" != {value} ]',
            f'[ -z "${name}" ]',
            f'[ -n "${name}" ]',
            f'[ "$N" -lt {number} ]',
            f'[ $N -ge {number} -a -n "${name}" ]',
            f'[ ! -z "${name}" -o "$N" -eq {number} ]',
            f'test "${name}" = {value}',
            f"[[ ${name} == {value} ]]",
            f"[[ ${name} == *a* ]]",
            f'[[ ${name} != "$A" ]]',
            f"[[ -n ${name} && $N -gt {number} ]]",
            f"[[ -z ${name} || ( $N -le {number} && ${name} != x ) ]]",
            f"((N > {number}))",
            f"(( N % 2 == 0 && I < {number} ))",
            f'[[ "${{#ARGS[@]}}" -gt {number} ]]',
            "true",
            "false",
            f"[[ ! ${name} ]]",
            f"[[ ${name} == pre* ]]",
        )
        return f"! {one}" if self.random.random() < 0.15 else one

    def assignment(self) -> str:
        name, array = self.pick("A", "B", "LONG_NAME"), self.pick(*ARRAYS)
        simple = self.pick(*TEXTS)
        return self.pick(
            f"{name}={self.quoted(simple)}",
            f'{name}="${self.name()} y"',
            f"{name}+={self.quoted(self.pick('q', 'r s'))}",
            f"{name}=${{{self.name()}:-{self.pick('d', 'e')}}}",
            f'{name}="$(echo {self.pick("u", "v w")})"',
            f"{array}+=({self.words()})",
            f"{array}=({self.words()})",
            f"{array}=()",
            f"{array}=([1]={self.quoted(simple)} [0]=z)",
            f"T[{self.key()}]={self.quoted(simple)}",
            f"T[{self.key()}]+=more",
            f"T+=([{self.key()}]=$A [decode]={self.quoted(simple)})",
            f"T=([{self.key()}]={self.quoted(simple)} [b]=1)",
            f"{array}[0]={self.quoted(simple)}",
            "N=$((N + 1))",
            "((N++))",
            "((N += 2, I = N))",
            "let I=I+1",
            "N=4",
            f"IFS={self.pick(',', ', ', '')} read -r {name} B <<< {self.pick(*LINES)}",
            f"read -r {name} <<< {self.pick(*LINES)}",
            f"read -ra {array} <<< {self.pick(*LINES)}",
            f"mapfile -t {array} <<< {self.pick(*LINES)}",
            f"printf -v {name} '%s:%d%%' {self.quoted(simple)} {self.random.randrange(99)}",
            self.pick("IFS=,", "IFS=', '", "IFS=", "IFS=$' \\t\\n'", "unset IFS", "IFS=x-"),
            f'{name}="${{{array}[*]}}"',
            f"{name}=${{{array}[*]}}",
            f"{name}=',a,,b ,c'",
            f"unset {name}; {name}=again",
            f"IFS=, read -ra {array} <<< 'k,l,m n'",
            f"export {name}=exported",
            f"set -- {self.words(2)}",
        )

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
                lines += [
                    f"{self.pick('', '(')}{pattern})",
                    *self.block(inner),
                    self.pick(";;", ";;", ";&"),
                ]
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
                f'for {counter} in "${{!T[@]}}"; do',
            )
            skips = [f'[ "${counter}" = 2 ] && {self.pick("break", "continue")}']
            skips = skips if self.random.random() < 0.3 else []
            return [head, *skips, *self.block(inner), f'sglang_other "${counter}"', "done"]
        if kind == "while" and self.random.random() < 0.4:
            return self.reading(inner)
        if kind == "while":
            self.counters += 1
            counter = f"w{self.counters}"
            test = self.pick(
                f"[ ${counter} -lt 3 ]", f"(({counter} < 2))", f"[[ ${counter} -lt 2 ]]"
            )
            return [
                f"{counter}=0",
                f"while {test}; do",
                f"{counter}=$(({counter} + 1))",
                *self.block(inner),
                "done",
            ]
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

    def reading(self, depth: int) -> list[str]:
        """Return a loop that reads lines."""
        self.counters += 1
        line = f"l{self.counters}"
        body = [*self.block(depth), f'sglang_other "${line}" "$A" "$B"']
        ends = self.pick("", "IFS= ", "IFS=, ", "IFS=', ' ")
        head = f"while {ends}read -r {line} A B; do"
        if self.random.random() < 0.3:
            return [f"echo {self.quoted(self.pick(*TEXTS))} | {head}", *body, "done"]
        if self.random.random() < 0.5:
            return [head, *body, f"done <<< {self.pick(*LINES)}"]
        return [head, *body, "done <<T", "one,two three", "", " $I ,x,y,z,", "T"]

    def block(self, depth: int) -> list[str]:
        return [line for _ in range(self.random.randrange(1, 3)) for line in self.statement(depth)]

    def function(self, name: str) -> list[str]:
        head = self.pick(f"{name}() {{", f"{name}()\n{{", f"function {name} {{", f"{name} () {{")
        lines = [head, "local A=inside v=$1", 'sglang_other "$#" "$@" "$v" "${2:-none}"']
        lines += self.block(2)
        if self.random.random() < 0.4:
            lines += ["shift", 'mooncake_prog "$@"']
        if self.random.random() < 0.4:
            part = self.pick(":2", ":1:1", ":0:0", ":1", ": -1", ":N", ": -2:1", "#a", "/x/y", "^")
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


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
@pytest.mark.parametrize("tenth", range(10))
def test_a_script_starts_what_bash_starts(tenth: int) -> None:
    named = 0
    for seed in range(tenth, SCRIPTS, 10):
        script = Maker(seed).script()
        reading = read_script(script, "launch.sh", {})
        known = not any(note.id == "condition" for note in reading.notes) and not any(
            word.unresolved for command in reading.commands for word in command.words
        )
        if not known:
            named += 1
            continue
        found = [[word.text for word in command.words] for command in reading.commands]
        assert found == as_bash(script), f"seed {seed}:\n{script}"
    # What is left out is named in the words; that is to stay rare where every value is known.
    assert named <= SCRIPTS // 10 // 20


NESTED = {
    "case": "A=$(case x in x) echo 4;; *) echo 5;; esac)\nmooncake_prog $A",
    "case in a heredoc": "A=$(cat <<'T'\ncase \"$x\" in *[!0-9]*|'') exit 1 ;; esac\nT\n)\n"
    'mooncake_prog "$A" end',
    "brackets in a heredoc": 'A=$(cat <<T\n) it\'s "x\nT\n)\nmooncake_prog "$A" end',
    "tabs": 'A=$(cat <<-T\n\t) a\n\tT\n)\nmooncake_prog "$A" end',
    "two heredocs": "A=$(cat <<T; cat <<'U'\n(\nT\n)\nU\n)\nmooncake_prog \"$A\" end",
    "a shift is no heredoc": "A=$((1<<2))\nmooncake_prog $A end",
    "a string is no heredoc": "A=$(cat <<< 'T )')\nmooncake_prog \"$A\" end",
    "a word is no case": "A=$(echo 'case x in a' esac)\nmooncake_prog \"$A\" end",
    "nested": 'A=$(echo $(case y in (y) echo "$(echo 1)";; esac))\nmooncake_prog $A end',
}


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
@pytest.mark.parametrize("script", NESTED.values(), ids=NESTED)
def test_a_substitution_ends_where_bash_ends_it(script: str) -> None:
    """What is known has the same words; what is not is named, and what follows is read."""
    judged = as_bash(script)
    commands = read_script(script, "launch.sh", {}).commands
    (command,) = (one for one in commands if one.words[0].text == "mooncake_prog")
    if any(word.unresolved for word in command.words):
        assert [word.text for word in command.words][-1:] == judged[0][-1:]
    else:
        assert [[word.text for word in command.words]] == judged


OPTIONS = """\
A=unset
set -- {given}
T=unset
while getopts "{spec}" opt {more}; do
  case "$opt" in
    a) A=1 ;;
    t) T=$OPTARG ;;
    *) mooncake_prog bad "$opt" "${{OPTARG-none}}" ;;
  esac
  mooncake_prog "$opt" "${{OPTARG-none}}" "$OPTIND"
done
shift $((OPTIND - 1))
mooncake_prog "$A" "$T" "$opt" "$@"
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
def test_getopts_takes_what_bash_takes() -> None:
    made = random.Random(5)
    for _ in range(600):
        pieces = ("-a", "-t", "8", "-t8", "-ab", "-bt", "-at9", "--", "-", "x", "-:", "-z", "''")
        given = " ".join(made.choice(pieces) for _ in range(made.randrange(6)))
        script = OPTIONS.format(
            given=given,
            spec=made.choice(("abt:", ":abt:", "t:a", "ab")),
            more=made.choice(("", "", "-a -t 7 y")),
        )
        reading = read_script(script, "launch.sh", {})
        found = [[word.text for word in command.words] for command in reading.commands]
        assert found == as_bash(script), script


FILES = (
    "a.json",
    "b.json",
    "B.yaml",
    "c d.json",
    ".hidden.json",
    "x[1].txt",
    "x1.txt",
    "sub/a.json",
)
PATTERNS = (
    *("*.json", "a*", "*", "?.json", "[ab].json", "[!a].json", "[^a].json", "x[1].txt", "sub/*"),
    *("*/a.json", "./*.yaml", '"a"*.json', "'*'.json", '"*.json"', "\\*.json", "c*d.json", "*/"),
    *(
        "${P}.json",
        "$P",
        '"$P"',
        "$D/*.json",
        '"$D"/*.json',
        "x[0-9].txt",
        "x[[]1].txt",
        "[a].json",
    ),
    *(
        "{a,b}*.json",
        "pre[1]",
        "--flag=*",
        "http://host/x?y=1",
        ".*.json",
        "s*/[a]*",
        "../*/a.json",
    ),
)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
def test_patterns_become_the_files_that_bash_finds(tmp_path: Path) -> None:
    """In words, arrays, loops and variables, in this folder and others; none that is not there."""
    folder = tmp_path / "launch"
    (folder / "sub").mkdir(parents=True)
    for name in FILES:
        (folder / name).touch()
    made, known = random.Random(15), 0
    path = folder / "launch.sh"
    for _ in range(400):
        one, two = made.choice(PATTERNS), made.choice(PATTERNS)
        lines = [f"P='{made.choice(('*', 'a', '[ab]', 'b*'))}'", "D=sub", "mooncake_prog start"]
        first = (
            "",
            "",
            "",
            "cd sub",
            "set -f",
            "cd sub; cd ..",
            "set -e -f",
            "(set -f)",
            "X=$(set -f)",
        )
        lines.append(made.choice(first))
        lines += made.choice(
            (
                [f"mooncake_prog {one} --x {two}"],
                [f"A=({one} {two})", 'mooncake_prog "${#A[@]}" "${A[@]}"'],
                [f"for i in {one} {two}; do", 'mooncake_prog "$i"', "done"],
                [f"A={one}", 'mooncake_prog $A "$A"'],
                [f'f() {{ mooncake_prog $# "$@"; }}; f {one}'],
                [f'set -- {one}; mooncake_prog "$@"; set +f; mooncake_prog {two}'],
            )
        )
        path.write_text("\n".join([*lines, ""]))
        reading = read_source(str(path), {})
        started = reading.commands
        if any(word.unresolved for command in started for word in command.words):
            continue  # named as not known
        known += 1
        found = [[word.text for word in command.words] for command in started]
        assert found == as_bash(path.read_text(), folder), path.read_text()
    assert known > 250


def test_a_pattern_that_matches_nothing_here_is_not_known(tmp_path: Path) -> None:
    """The file may lie where the launch is started, or be made before; a shell option may help."""
    (tmp_path / "a.json").touch()
    path = tmp_path / "launch.sh"
    for line in (
        "mooncake_prog b*.json",
        "mooncake_prog /models/*",
        "cd /opt/x; mooncake_prog *.json",
        "shopt -s nullglob; mooncake_prog *.json",
        "GLOBIGNORE=x; mooncake_prog *.json",
        "bash -c 'mooncake_prog *.json'",
        "rm -f a.json; mooncake_prog *.json",
        "touch c.json; mooncake_prog *.json",
        "echo x > d.json; mooncake_prog *.json",
        "shopt -s failglob; mooncake_prog mlx5_[0-3]",
        "mooncake_prog a[[:digit:]].json",
        "mooncake_prog " + "*/" * 3000,
    ):
        path.write_text(line + "\n")
        command = read_source(str(path), {}).commands[-1]
        assert command.words[1].several, line
        assert "what " in command.words[1].unresolved[0], line


ATOMS = (
    *("a", "b", "0", ".", "^", "$", "*", "+", "?", "|", "(", ")", "[0-9]", "[^a]", "[[:digit:]]"),
    *("[[:alpha:]_]", "{2}", "{1,2}", "\\.", "-", "x", "/", "[a-c]"),
)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
def test_a_regular_expression_finds_what_bash_finds() -> None:
    made = random.Random(16)
    texts = ("", "a", "ab", "0", "10", "a.b", "b0", "aab", "a-b", "/a", "xx", "x.1", "_")
    asked = [
        ("".join(made.choice(ATOMS) for _ in range(made.randrange(1, 6))), made.choice(texts))
        for _ in range(3000)
    ]
    script = "".join(f"r='{one}' t='{text}'; [[ $t =~ $r ]]; echo $?\n" for one, text in asked)
    ran = subprocess.run(
        ["bash", "--norc"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    wrong, read = [], 0
    for (one, text), says in zip(asked, ran.stdout.split(), strict=True):
        if (found := expression([(one, False)])) is not None:
            read += 1
            if (found.search(text) is None) != (says == "1"):
                wrong.append((one, text, says))
    assert wrong == []
    assert read > 1000


@pytest.mark.parametrize(
    "test",
    ["$V =~ ^8", '"$V" =~ ^[0-9]+$', '"$V" =~ "8"', "! $V =~ x", "$V =~ ^8$ && -n $V", "$V =~ $R"],
)
def test_a_regular_expression_decides(test: str) -> None:
    script = f"V=8; R='^[[:digit:]]+$'; if [[ {test} ]]; then T=1; else T=2; fi; mooncake_prog $T\n"
    reading = read_script(script, "launch.sh", {})
    assert [[word.text for word in one.words] for one in reading.commands] == [
        ["mooncake_prog", "1"]
    ]
    assert not reading.notes


TOLD = {
    "no case": "shopt -s extglob nocasematch; [[ ABC == abc ]] && mooncake_prog 1; mooncake_prog 2",
    "no case in an expression": "shopt -s nocasematch; [[ ABC =~ abc ]] && mooncake_prog 1",
    "what was found": '[[ n =~ n ]]; if [ -n "$BASH_REMATCH" ]; then mooncake_prog 1; fi',
    "letters": "[[ é =~ ^[[:alpha:]]$ ]] && mooncake_prog 1",
    "find": "find . -name 'x' -exec mooncake_client {} \\;",
    "trap": "trap 'mooncake_client' EXIT; mooncake_prog 1",
}


@pytest.mark.parametrize("script", TOLD.values(), ids=TOLD)
def test_what_is_not_followed_is_told(script: str) -> None:
    reading = read_script(f"{script}\n", "launch.sh", {})
    doubts = [doubt for command in reading.commands for doubt in command.doubts]
    assert doubts or any(note.id == "script-not-read" for note in reading.notes)


def test_mapfile_cuts_at_line_ends_alone() -> None:
    script = "mapfile -t A <<< $'a\\rb\\fc\\nd'; mooncake_prog ${#A[@]}\n"
    (command,) = read_script(script, "launch.sh", {}).commands
    assert [[word.text for word in command.words]] == as_bash(script)


TWO_WAYS = ("(a|aa)" * 32 + "b", r"\<x", "[:alpha:]", "(a+)+$", "(a|aa)*b", ".*.*.*.*x", "a{1000}")


@pytest.mark.parametrize("pattern", [*TWO_WAYS, "a**", r"\bx"])
def test_an_expression_that_may_take_long_or_is_read_in_two_ways_is_left_open(pattern: str) -> None:
    assert expression([(pattern, False)]) is None
