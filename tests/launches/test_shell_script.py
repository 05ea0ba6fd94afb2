"""Scripts are read as bash reads them, and none of their commands is run."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from checks.framework.unknown import Unknown
from preflight.launches.shell_script import read_script
from preflight.launches.source import file_reader
from tests.builders.launched import argv, argvs, ids, programs, variables
from tests.tables import each_row


def words(text: str, **environment: str) -> list[list[str]]:
    return argvs(read_script(text, "launch.sh", environment))


# Settings first, then the words; nothing in them executes anything.
AS_BASH = [
    "a b  c", "'a b' \"c d\" e\\ f", "a'b'\"c\"d", "'' \"\" x",
    '"a\\"b" "a\\\\b" "a\\$b" "a\\b" "a\\\'b"', "a\\\nb", "a \\\n  b", "a\\\n  b", '"a\\\nb"',
    "'a\\\nb'", "a#b # c", "a '#' \\# \"#\"", "$'a\\tb\\nc\\'d'", "a$ b $", '"$"', '$"text"',
    "[model_path] a=b --x=y", '--json \'{"a": [1, "b c"]}\'', "\\ # Enable it", "a \\ ", "-x{} {}",
    "a\tb", '"multi\nline"', "~+x a~b '~'", "\u00e9 \u00a0x\u2003y", "--x=a,b;", "a 2>/dev/null b",
    "a2</dev/null b", "a 0</dev/null b 2>&1 c", "=x == \\= '='", "\\a\\b\\c", "\\'a\\'", "a'\\'b",
    "a!b", "%s %%", "'a'\\''b'",
]  # fmt: skip
AS_BASH_WITH_VARIABLES = [
    ("A='x  y'", '$A "$A" ${A} "${A}z" a$A\'b\''),
    ("A=' x y '", 'a$A"b" $A'),
    ("A=", '$A "$A" a$A ${A:-d} ${A-d} "${A:+p}" ${A+p}'),
    ("unset A", '$A "$A" a$A ${A:-d} ${A-d} ${A:+p} "${A+p}"'),
    ("unset A", '${A:-x y} "${A:-x y}" ${A:-"x y"} ${A:-\'x y\'} "${A:-\'q\'}"'),
    ("A=1; unset B", "${B:-${A:-2}} ${B:-${C:-3}} ${B:=4} $B"),
    ("A=1; A+=2; A+='3 4'", '"$A"'),
    ("A=$'x\\ny'", '$A "$A"'),
    ("A=(a 'b c' d); A+=(e)", '"${A[@]}" ${A[@]} "${A[*]}" "x${A[@]}y"'),
    ("A=()", '"${A[@]}" x'),
    ("A=5", "$((A * 2 + 1)) $(( (A * 30) - 7 )) $((-7 / 2)) $((-7 % 2)) $((${A}%3))"),
    ('A=x; readonly B="$A y"', '"$B"'),
    ("A='* ?'", '"$A"'),
    ("A=a; B=$A$A; A=c", '"$B" "$A"'),
    ("A='a b'; export B=$A", '"$B"'),
    ("HOME=/h; A=~/m", "$A ~/x '~/x' a~/x"),
]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
@each_row(("settings", "text"), [*(("", text) for text in AS_BASH), *AS_BASH_WITH_VARIABLES])
def test_words_are_split_as_bash_splits_them(settings: str, text: str) -> None:
    script = f"{settings}\n/usr/bin/printf '%s\\0' begin {text}"
    shell = ["bash", "--norc", "-c", script.replace("/usr/bin/printf", "builtin printf", 1)]
    ran = subprocess.run(shell, capture_output=True, check=False, env={"LC_ALL": "C.UTF-8"})
    expected = [word.decode() for word in ran.stdout.split(b"\0")[:-1]]
    assert words(script)[0][2:] == expected


@each_row(
    ("text", "wrappers"),
    [
        ("numactl --membind=0 -N 1 x -a", [("numactl", "--membind=0", "-N", "1")]),
        ("numactl --membind 0 -- x -a", [("numactl", "--membind", "0", "--")]),
        ("sudo -E -u root nohup x -a", [("sudo", "-E", "-u", "root"), ("nohup",)]),
        ("exec nice -n 5 x -a", [("exec",), ("nice", "-n", "5")]),
        ("nice -5 ionice -c2 -n 7 x -a", [("nice", "-5"), ("ionice", "-c2", "-n", "7")]),
        ("taskset -c 0-3 chrt -f 10 x -a", [("taskset", "-c", "0-3"), ("chrt", "-f", "10")]),
        ("timeout -k 5 1h stdbuf -oL x -a", [("timeout", "-k", "5", "1h"), ("stdbuf", "-oL")]),
        ("setsid -f time -p command x -a", [("setsid", "-f"), ("time", "-p"), ("command",)]),
        ("/usr/bin/env -i A=1 x -a", [("/usr/bin/env", "-i", "A=1")]),
        ("bash -lc 'x -a'", [("bash", "-lc")]),
        ("sudo sh -e -c 'exec x -a'", [("sudo",), ("sh", "-e", "-c"), ("exec",)]),
        ("eval 'x -a'", []),
    ],
)
def test_wrappers(text: str, wrappers: list[tuple[str, ...]]) -> None:
    (command,) = read_script(text, "launch.sh", {"PATH": "/bin"}).commands
    assert argv(command) == ["x", "-a"]
    assert list(command.wrappers) == wrappers


def test_env_changes_the_environment() -> None:
    reading = read_script(
        "export A=1 B=2\nenv -u A C=3 x\nenv -i C=3 y\nsudo D=4 z", "launch.sh", {"PATH": "/bin"}
    )
    assert variables(reading.commands[0]) == {"PATH": "/bin", "B": "2", "C": "3"}
    assert variables(reading.commands[1]) == {"C": "3"}
    assert variables(reading.commands[2]) == {"PATH": "/bin", "D": "4"}


def test_a_broken_continuation_is_read_as_bash_runs_it() -> None:
    reading = read_script("x --a \\ # Enable it\n--b 1\ny \\  \nz\n", "launch.sh", {})
    assert argvs(reading) == [
        ["x", "--a", " #", "Enable", "it"],
        ["y", " "],
        ["z"],
    ]
    assert [(note.id, note.origin.line) for note in reading.notes] == [
        ("continuation-broken", 1),
        ("continuation-broken", 3),
        ("not-a-program", 2),
    ]
    assert ids(read_script("x a\\ b\\ #c\n", "launch.sh", {})) == []  # a name with blanks


def test_branches_that_nothing_decides_are_all_read() -> None:
    reading = read_script(
        'if [ "$A" = 1 ]; then\n  a\nelif x1; then b; else c; fi > log\n'
        "for i in 0 1; do X=$i d $i & done\nfor ((i = 0; i < 2; i++)); do e; done\n"
        "while true; do f; done\ncase $R in\n  a|b) g;;\n  (c) h ;;\n  *) i\nesac\n{ j; }; ! k\n",
        "launch.sh",
        {},
    )
    assert programs(reading) == ["a", "x1", "b", "c", "d", "d", "e", "e", *"fghijk"]
    loops = [command for command in reading.commands if command.words[0].text == "d"]
    assert [loop.environment["X"].text for loop in loops] == ["0", "1"]
    doubted = [command.words[0].text for command in reading.commands if command.doubts]
    assert doubted == ["a", "x1", "b", "c", "g", "h", "i"]
    lines = [note.origin.line for note in reading.notes if note.id == "condition"]
    assert lines == [1, 7]


@each_row(
    ("script", "arguments", "doubts"),
    [
        # What nothing decides, and the name that would.
        ('A=(1); if [ "$X" = y ]; then A+=(2); fi; x "${A[@]}"', ["1", "2"], ["X is not set"]),
        ("A=1; if grep -q a b; then A=2; fi; x $A", ["2 or 1"], ["that program is not run here"]),
        ('A=1; [[ $X == y* ]] && A=2; x "$A"', ["2 or 1"], ["X is not set"]),
        ('case "$R" in a) A=1;; b) A=2;; esac; x "$A"', ["1 or 2 or nothing"], ["R is not set"]),
        # Both ways end alike.
        ("if grep -q a b; then A=2; else A=2; fi; x $A", ["2"], []),
        (
            'if grep -q a b; then A=2; fi; if [ "$X" = y ]; then A=2; fi; x ${A:-1}',
            ["2 or nothing"],
            ["that program is not run here", "X is not set"],
        ),
        # What a variable is made of is what is not set.
        ('m=$MODE; if [ "$m" = y ]; then A=2; fi; x $A', ["2 or nothing"], ["MODE is not set"]),
        (
            'm=$(cat f | wc -l); if [ "$m" = 3 ]; then A=2; fi; x $A',
            ["2 or nothing"],
            ["it is known only when the script runs"],
        ),
        # A variable that nothing sets is not known, however it is asked for.
        ('A=1; if [ -n "$X" ]; then A=2; fi; x $A', ["2 or 1"], ["X is not set"]),
        ('A=1; [ "${X:-}" = y ] && A=2; x $A', ["2 or 1"], ["X is not set"]),
        # But for a default, which is one as ${X:-3} is.
        ('[ -z "$X" ] && X=3; x "$X"', ["3"], []),
        ('if [ -z "${X:-}" ]; then export X=3; fi; x "$X"', ["3"], []),
        ('[ -n "$X" ] || X=3; x "$X"', ["3"], []),
        ('[[ ${X:-off} = on ]] && A=2 || A=4; x "$A"', ["4"], []),
        ('if [[ -n "${X:-}" ]]; then echo own; else X=3; fi; x "$X"', ["3"], []),
        ('if [ -n "$X" ]; then A=1; else export X=3; fi; x "$X"', ["3"], []),
        ('if [[ -z "$X" ]]; then echo X; X=3; P=8; fi; x "$X" "${P:-9}"', ["3", "8"], []),
        # But not where more is done than to set variables.
        (
            'if [ -z "$X" ]; then X=3; get y; P=8; fi; x "$P"',
            ["8 or nothing"],
            ["X is not set"],
        ),
        ('if [ -z "$X" ]; then echo X=3; fi; x "$X"', ["X"], []),
        # Who asks so, and leaves, expects it to be set.
        ('if [ -z "$X" ]; then echo usage; exit 1; fi; x 5', ["5"], []),
        ('[ -n "$X" ] || exit 1; x 5', ["5"], []),
        (
            "if [ $# -lt 1 ]; then exit 1; fi; while [ $# -gt 0 ]; do A=$1; shift; done; x 5",
            ["5"],
            [],
        ),
        ("if ! command -v nvcc; then exit 1; fi; x 5", ["5"], []),
        ('case "$R" in a) A=1;; *) exit 1;; esac; x "$A"', ["1"], []),
        ('case "$R" in "") exit 1;; *) A=1;; esac; x "$A"', ["1"], []),
        ('A=1; case "$R" in "") A=2;; *) A=3;; esac; x "$A"', ["2 or 3"], ["R is not set"]),
        # Of flags in an array, each way's stand, with values that are not known.
        (
            'A=(--x 1); [ "$R" = a ] && A=(--y 2); z "${A[@]}"',
            ["--y", "2 or nothing", "--x", "1 or nothing"],
            ["R is not set"] * 4,
        ),
    ],
)
def test_what_nothing_decides_is_doubted(
    script: str, arguments: list[str], doubts: list[str]
) -> None:
    command = read_script(script, "launch.sh", {}).commands[-1]
    shown = [" ".join(word.unresolved) or word.text for word in command.words[1:]]
    assert shown == arguments
    said = [note.text for word in command.words for note in word.doubts]
    assert [text.rpartition(": ")[2].partition(";")[0] for text in said] == doubts


@each_row(
    ("script", "started"),
    [
        ("x; exit; y", ["x"]),
        ("exec x; y", ["x"]),
        ("exec x & y", ["x", "y"]),
        ("exec > log; x", ["x"]),
        ("for i in 1 2; do for j in 1 2; do x; continue 2; done; y; done", ["x", "x"]),
        ("i=0; until [ $i -ge 3 ]; do x; i=$((i+1)); done", ["x", "x", "x"]),
        ("while true; do x; sleep 5; done; y", ["x", "y"]),  # started again once it has ended
        ("for h in $HOSTS; do x; done", ["x"]),
        ("x || exit 1; y", ["x", "y"]),
        ("mkdir -p a && x", ["mkdir", "x"]),
    ],
)
def test_what_runs_and_how_often(script: str, started: list[str]) -> None:
    reading = read_script(script, "launch.sh", {})
    assert programs(reading) == started


@pytest.mark.parametrize("asked", ["if ! up; then exit 1; fi", "up || exit 1"])
def test_how_a_function_ends_is_not_known_where_nothing_decides_its_return(asked: str) -> None:
    """A function that waits for a server: what stands behind its loop is not how it ends."""
    wait = "for i in 1 2; do if curl -sf $URL; then return 0; fi; sleep 1; done; return 1"
    script = f"mooncake_master &\nup() {{ {wait}; }}\n{asked}\ny\n"
    found = read_script(script, "launch.sh", {}).commands
    assert [command.words[0].text for command in found][-1] == "y"


def test_a_function_without_a_call_is_named_where_nothing_else_starts() -> None:
    alone = read_script("serve() { mooncake_master --rpc_port $1; }\n", "launch.sh", {})
    assert ids(alone) == ["script-not-read"]
    assert "nothing here calls the function serve" in alone.notes[0].text
    beside = read_script("serve() { mooncake_master; }\nmooncake_client\n", "launch.sh", {})
    assert programs(beside) == ["mooncake_client"]


@each_row(
    ("script", "word"),
    [
        ('D=$(cd "$(dirname "$0")" && pwd); x "$D/a.json"', "/srv/launches/a.json"),
        ('D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"; x $D', "/srv"),
        ('D=`dirname $0`; x "$D"', "/srv/launches"),
        ('A=$(cat <<EOF\nline $HOME\nEOF\n); x "$A"', "line /root"),
        ("echo 7 > n; x $(cat n)", "7"),
        ("x $(date +%s)", "$(date +%s)"),
        ("x $(f; g)", "$(f; g)"),
    ],
)
def test_what_a_substitution_writes(script: str, word: str) -> None:
    reading = read_script(script, "/srv/launches/run.sh", {"HOME": "/root"})
    assert reading.commands[-1].words[1].text == word


@each_row(
    ("script", "said"),
    [
        ('cd /opt/app; x "$PWD/a.json"', "/opt/app/a.json"),
        ("cd /opt; cd app/../b; x $PWD $OLDPWD", "/opt/b /opt"),
        ("cd /opt; cd -; x $PWD $OLDPWD", "/srv /opt"),
        ("cd; x $PWD", "/root"),
        ("(cd /opt; y); x $PWD $(pwd)", "/srv /srv"),
        ("cd sub || exit 1; x $(pwd)", "/srv/sub"),
        ('cd "$WORK"; x $PWD/a', "$WORK/a"),
        ("pushd /opt >/dev/null; x $PWD", "/opt"),
        ("pushd /opt; popd; x $PWD", "$PWD"),
    ],
)
def test_cd_changes_pwd(script: str, said: str) -> None:
    reading = read_script(script, "launch.sh", {"PWD": "/srv", "HOME": "/root"})
    assert " ".join(word.text for word in reading.commands[-1].words[1:]) == said


@pytest.mark.parametrize(
    ("writes", "reads"),
    [
        ("a.json", "$PWD/a.json"),
        ("./a.json", "$(pwd)/a.json"),
        ("$PWD/a.json", "a.json"),
        ("/tmp/a.json", "/tmp/a.json"),
    ],
)
def test_a_written_file_is_the_same_by_either_name(writes: str, reads: str) -> None:
    text = f"cat > {writes} <<EOF\n{{}}\nEOF\nx {reads}\n"
    reading = read_script(text, "launch.sh", {"PWD": "/srv"})
    read_file = file_reader(reading.files, lambda name: Unknown(f"{name} is not there"))
    assert read_file(reading.commands[-1].words[1].text) == "{}\n"


@each_row(
    ("script", "words"),
    [
        ("f() { shift 3; x $1; }; f a b", ["x", "a"]),  # shift fails, and takes nothing
        ("bash -c 'x \"$@\" $1' _ a b", ["x", "a", "b", "a"]),
        ('f() { x "$@"; }; f "$@"', ["x", "$@"]),  # those of the script itself stay
        ('f() { while x "$@"; do shift; done; }; f a', ["x", "a"]),
        ("f() { x ${2:-z}; }; f $U a", ["x", "$2"]),
        # In quotes it is one word, whatever it is.
        ('f() { shift 2; x "$@" $#; }; f "$U" a "$V" b', ["x", "$V", "b", "2"]),
        ('f() { x "${*: -2:1}" "${@:0}"; }; f a b', ["x", "a", "launch.sh", "a", "b"]),
        ('f() { x "${@:2}" ${#@}; }; f "$U" "$V" b', ["x", "$V", "b", "3"]),
        ('f() { x ${2:-z} "$3"; }; f "$U" a b', ["x", "a", "b"]),
        ('f() { local all=("$@"); x "${all[@]:1}"; }; f "$U" a "$V"', ["x", "a", "$V"]),
        ("f() { shift; x $1; }; f $U a", ["x", "$1"]),
        ("f() { shift; x $1; }; f a$U b", ["x", "$1"]),
        ('f() { g "$@"; }; g() { shift; x $1; }; f $U a', ["x", "$1"]),
        ('set -- $MORE; x "${@:2}"', ["x", "${@:2}"]),
    ],
)
def test_what_a_function_is_called_with_is_known_in_it(script: str, words: list[str]) -> None:
    """As bash hands it over, held against bash with random functions."""
    command = read_script(script, "launch.sh", {}).commands[0]
    assert argv(command) == words


@each_row(
    ("script", "counted"),
    [
        ('f() { for p in "$@"; do x $p; done; }; f $PORTS', False),
        ("f() { for p; do x $p; done; }; f $PORTS", False),
        ('f() { for p; do x $p; done; }; f "$PORT"', True),
        ("set -- $MORE; for p; do x $p; done", False),
        ('for p in "$ONE"; do x $p; done', True),
        ('A=("$ONE"); for p in "${A[@]}"; do x $p; done', True),
        ('A=($MORE); for p in "${A[@]}"; do x $p; done', False),
        ('for p in "${MORE:-$ALL}"; do x $p; done', True),
        ("for p in ${MORE:-$ALL}; do x $p; done", False),
    ],
)
def test_a_loop_over_what_may_be_several_words_is_not_counted(script: str, counted: bool) -> None:
    reading = read_script(script, "launch.sh", {})
    doubts = [note.id for note in reading.commands[-1].doubts]
    assert doubts == ([] if counted else ["loop-not-counted"])


def test_a_function_that_calls_itself_is_read_a_bounded_number_of_times() -> None:
    reading = read_script('f() { x; f "$1" "$@"; f b "$@"; }\nf a', "launch.sh", {})
    assert 1 < len(reading.commands) <= 2 * 16


def test_a_variable_in_front_of_a_program_does_not_hide_it() -> None:
    """bash makes no word of a variable that is not set: the program behind it runs."""
    reading = read_script("$NUMA python3 -m sglang.launch_server\n", "launch.sh", {})
    assert argv(reading.commands[0])[:2] == ["python3", "-m"]
    assert ids(reading) == ["wrapper-not-set"]


def test_heredocs_are_data() -> None:
    text = (
        'P=/m\ncat > config.json <<EOF\n{"path": "$P", "x": "$Q"}\nEOF\n'
        "tee b.json <<-'END' >/dev/null\n\t$P\n\tEND\nx --config config.json <<<y\n"
    )
    files = read_script(text, "launch.sh", {}).files
    assert {name: word.text for name, word in files.items()} == {
        "config.json": '{"path": "/m", "x": "$Q"}\n',
        "b.json": "$P\n",
    }
    assert words(text) == [["cat"], ["tee", "b.json"], ["x", "--config", "config.json"]]


@pytest.mark.parametrize(
    "text", ["x\ny 'a", 'x\ny "a', "x\ny $(a", "x\ny ${a", "x\ny `a", "x\nA=(y"]
)
def test_from_an_open_quote_on_nothing_is_read(text: str) -> None:
    reading = read_script(text, "launch.sh", {})
    assert programs(reading) == ["x"]
    assert {(note.id, note.origin.line) for note in reading.notes} == {("script-not-read", 2)}


def test_values_that_double_are_cut_off() -> None:
    reading = read_script("A=xxxxxxxx\n" + "A=$A$A\n" * 60 + 'x "$A"', "launch.sh", {})
    assert len(reading.commands[0].words[1].text) < 2**21
    assert reading.commands[0].words[1].unresolved == ("A",)


def test_an_assignment_in_front_of_a_keyword_or_a_builtin_stays_apart() -> None:
    """What looks like a plain command behind an assignment is still read by its first word."""
    reading = read_script("A=1 eval 'x'; B=2 : ; C=3 sudo -E y; D=4 E=5 z", "s", {})
    assert [variables(reading.commands[index]) for index in range(3)] == [
        {},
        {"C": "3"},
        {"D": "4", "E": "5"},
    ]


@pytest.mark.slow
@each_row(
    ("opens", "closes"),
    [
        ("( ", " )"), ("{ ", "; }"), ("if ", "; then x; fi"), ("while x; do ", "; done"),
        ("y $(", ")"), ("y ${A:-", "}"), ("y $((", "))"), ("y `", "`"),
    ],
)  # fmt: skip
@each_row("depth", [300, 6000])
def test_what_is_nested_deeper_than_anybody_writes_is_named(
    opens: str, closes: str, depth: int
) -> None:
    reading = read_script(f"{opens * depth}x{closes * depth}\nz\n", "s", {})
    named = any(word.unresolved for command in reading.commands for word in command.words)
    assert named or {"script-not-read", "condition"} & set(ids(reading))


@each_row(
    "asks",
    [
        'if [ -z "${X:-}" ]; then echo no X; exit 1; fi',
        'X=${X:-}\nif [ -z "$X" ]; then exit 2; fi',
        '[[ -z "${X:-}" ]] && { echo no X; exit 1; }',
        'case "${X:-}" in h|i) ;; *) exit 1;; esac',
        'uv pip install vllm-router\nif [ -z "${X+x}" ]; then exit 1; fi',
        'python3 -m pip install sglang\ncd sglang\ngit pull sglang\n[ -n "${X:-}" ] || exit 1',
    ],
)
def test_a_script_that_ends_for_want_of_a_variable_is_read_on_and_doubted(asks: str) -> None:
    reading = read_script(f"pkill -9 sglang\n{asks}\nmooncake_client --host $X\n", "s", {})
    client = reading.commands[-1]
    assert client.words[0].text == "mooncake_client"
    assert [note.id for note in client.doubts] == ["condition"]
    given = read_script(f"{asks}\nmooncake_client --host $X\n", "s", {"X": "h"})
    assert (given.commands[-1].words[2].text, given.commands[-1].doubts) == ("h", ())


def test_a_script_whose_every_way_ends_says_what_decided_it() -> None:
    """Nothing that it starts was read: without the note, nothing would be unknown about it."""
    text = 'case "$X" in a) exit 0;; *) exit 1;; esac\nmooncake_master\n'
    reading = read_script(text, "s", {})
    assert (reading.commands, ids(reading)) == ((), ["condition"])


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ('eval "$(conda shell.bash hook)"', "source-environment"),
        ('eval "$(micromamba shell hook --shell bash)"', "source-environment"),
        ('eval "$(cat settings.txt)"', "source-not-read"),
        ("source ~/.bashrc", "source-environment"),
        ("source /usr/local/Ascend/opp/vendors/customize/bin/set_env.bash", "source-environment"),
    ],
)
def test_what_sets_up_a_shell_is_no_program(line: str, note: str) -> None:
    reading = read_script(f"{line}\nmooncake_client\n", "s", {}, beside=lambda name: None)
    assert programs(reading) == ["mooncake_client"]
    assert ids(reading) == [note]


def test_an_element_of_an_array_whose_place_is_a_variable() -> None:
    text = "A=()\nfor i in 0 1; do A[$i]=h$i; done\nA[$((1+1))]+=z\nx ${A[@]}\n"
    (command,) = read_script(text, "s", {}).commands
    assert argv(command) == ["x", "h0", "h1", "z"]


@pytest.mark.parametrize("line", ["<<< x", "A=1 <<< x", "> f <<< x", "< f"])
def test_a_line_that_starts_nothing_reads_nothing(line: str) -> None:
    assert not read_script(f"{line}\n", "s", {}).commands


@pytest.mark.parametrize(
    ("body", "started"),
    [
        ("pgrep x$i && continue; mooncake_master --port $i &", 3),
        ("pgrep x$i && break; mooncake_master --port $i &", 3),
        ("mooncake_master --port $i & curl x && break", 1),
        ("curl -s x && break; sleep 1", 0),
    ],
)
def test_a_loop_goes_on_behind_what_may_leave_it_where_more_starts(body: str, started: int) -> None:
    commands = read_script(f"for i in 1 2 3; do {body}; done\n", "s", {}).commands
    assert sum(one.words[0].text == "mooncake_master" for one in commands) == started
    waits = sum(one.words[0].text == "curl" for one in commands)
    assert waits < 2  # a wait is gone through once


def test_what_is_started_before_a_script_may_be_left_is_doubted() -> None:
    text = "nvidia-smi && exec mooncake_client --port 4\nmooncake_master\n"
    commands = read_script(text, "s", {}).commands
    named = [one.words[0].text for one in commands if one.doubts]
    assert named == ["mooncake_client"]
    assert commands[-1].words[0].text == "mooncake_master"


@pytest.mark.parametrize("line", ["salloc -N2 bash drive.sh", "salloc ./drive.sh", "oarsub 'x.sh'"])
def test_what_a_job_starts_is_told(line: str) -> None:
    reading = read_script(f"{line}\n", "s", {})
    assert any(note.id == "script-not-read" for note in reading.notes)
