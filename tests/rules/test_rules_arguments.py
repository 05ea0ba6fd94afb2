"""Rules about words that the launch leaves open, each in a script as one would write it."""

from __future__ import annotations

from preflight.launches.shell_script import read_script
from preflight.launches.source import Command, Origin, Word
from preflight.processes.processes import LaunchProcess, understand
from preflight.rules.launch_rules import findings
from tests.builders.launch_text import SERVICE, STORE, service
from tests.tables import each_row

CLIENT = "mooncake_client --global_segment_size=1GB"
IDS = ("arguments-not-set", "script-arguments")


def processes(script: str, **environment: str) -> tuple[LaunchProcess, ...]:
    commands = read_script(script, "launch.sh", environment).commands
    return understand(commands, lambda _: service())


def said(script: str, **environment: str) -> list[str]:
    found = findings(processes(script, **environment))
    return [f"{f.rule.id}: {f.text}" for f in found if f.rule.id in IDS]


@each_row("program", [STORE, CLIENT, f"{SERVICE} --config=/c.json"])
@each_row(
    ("word", "text"),
    [
        ("$EXTRA", "$EXTRA: EXTRA is not set"),
        ('"${ARGS[@]}"', "${ARGS[@]}: ARGS is not set"),
        ('"$@"', "$@ passes them on"),
        ("$*", "$* passes them on"),
    ],
)
def test_a_word_that_may_hold_flags_is_named(program: str, word: str, text: str) -> None:
    assert [line.partition(": ")[2].partition(": ")[2] for line in said(f"{program} {word}")] == [
        text
    ]


@each_row(
    "script",
    [
        f"{STORE} $(flags)",  # what a command writes is named as not read; nobody sets it
        f"{STORE} ${{EXTRA:-}}",
        f"{STORE} ${{EXTRA:---tp 4}}",
        f"{STORE} --max-total-tokens $N",  # a flag's value: unknown where it decides
        f"{CLIENT} --local_buffer_size $N",
        f"EXTRA=; {STORE} $EXTRA",
        f"unset EXTRA; {STORE} $EXTRA",
        f'ARGS=(); {STORE} "${{ARGS[@]}}"',
        f'f() {{ {STORE} "$@"; }}; f --tp 4',
        "other $EXTRA",
    ],
)
def test_what_is_known_or_another_flags_value_is_not(script: str) -> None:
    assert said(script) == []


def test_the_callers_environment_gives_it() -> None:
    assert said(f"{STORE} $EXTRA", EXTRA="--tp 4") == []
    (server,) = processes(f"{STORE} $EXTRA", EXTRA="--tp 4")
    assert server.server
    assert server.server.value("tp_size") == 4


def test_a_flag_that_no_release_has_is_refused_whatever_its_value() -> None:
    found = findings(processes(f"{STORE} --no-such=$N"))
    assert [f.rule.id for f in found if "no-such" in f.text] == ["argument-unknown"]


def test_a_python_that_is_not_set_still_starts_the_server() -> None:
    (server,) = processes("$PYTHON -m sglang.launch_server --model-path m")
    assert server.server is not None


REFUSED, UNKNOWN = "arguments-refused", "argument-unknown"
WRITE = "in launch.sh:2 write {} instead of {}"
# The beginning of two since the alias went, as the parsers of 0.5.19 and 0.5.20 say.
TWO_MEANT = WRITE.format(
    "--cuda-graph-max-bs-decode or --cuda-graph-max-bs-prefill", "--cuda-graph-max-bs"
)
TWO_LINES = "python3 -m sglang.launch_server --model-path m \\\n  {}"


@each_row(
    ("flag", "release", "rule", "remedy"),
    [
        # No known release has it, and it is another's name with one mistake: certain.
        ("--hicache-sise 9", None, REFUSED, WRITE.format("--hicache-size", "--hicache-sise")),
        ("--hicache_size=9", None, REFUSED, WRITE.format("--hicache-size", "--hicache_size")),
        ("--hicache-szie 9", None, REFUSED, WRITE.format("--hicache-size", "--hicache-szie")),
        ("--hicache-sise 9", "0.5.9", REFUSED, WRITE.format("--hicache-size", "--hicache-sise")),
        # No known release has it, and a newer one may: new names are as near to old ones.
        ("--fp6-gemm-backend x", None, UNKNOWN, ""),
        ("--enable-inc-tokenizer", None, UNKNOWN, ""),
        # Another release has it.
        (
            "--disaggregation-decode-tp 2",
            None,
            UNKNOWN,
            "in launch.sh:2 remove --disaggregation-decode-tp, or give --sglang-version if it is "
            "one of 0.5.2 to 0.5.9",
        ),
        (
            "--disaggregation-decode-tp 2",
            "0.5.23",
            REFUSED,
            "in launch.sh:2 remove --disaggregation-decode-tp, or run one of SGLang 0.5.2 to 0.5.9",
        ),
        # A value that the parser refuses.
        (
            "--hicache-mem-layout page_frist",
            "0.5.23",
            REFUSED,
            WRITE.format("--hicache-mem-layout page_first", "--hicache-mem-layout page_frist"),
        ),
        (
            "--enable-metrics --tp 4x",
            "0.5.23",
            REFUSED,
            "in launch.sh:2 write a whole number behind --tp, not 4x",
        ),
        (
            "--cuda-graph-max-bs 8",
            "0.5.23",
            REFUSED,
            f"{TWO_MEANT}, or run one of SGLang 0.5.2 to 0.5.19",
        ),
        (
            "--cuda-graph-max-bs=8",
            None,
            UNKNOWN,
            f"{TWO_MEANT}, or give --sglang-version if it is one of 0.5.2 to 0.5.19",
        ),
        ("--hicache-s 9", "0.5.23", REFUSED, ""),
    ],
)
def test_a_refused_flag_is_a_failure_where_that_is_certain_and_says_the_edit(
    flag: str, release: str | None, rule: str, remedy: str
) -> None:
    commands = read_script(TWO_LINES.format(flag), "launch.sh", {}).commands
    found = findings(understand(commands, lambda _: service(), release))
    said = [f for f in found if f.rule.id in (REFUSED, UNKNOWN)]
    assert [(f.rule.id, f.remedy) for f in said] == ([(rule, remedy)] if rule else [])
    assert all(str(f.origin) == "launch.sh:2" for f in said)


def test_a_missing_model_and_a_command_line_are_told_as_one_types_them() -> None:
    origin = Origin("command line")
    words = ("python3", "-m", "sglang.launch_server", "--hicache-sise", "9")
    command = Command(tuple(Word(text, origin) for text in words), {}, (), origin)
    found = findings(understand([command], lambda _: service()))
    assert [one.remedy for one in found if one.rule.id == REFUSED] == [
        "on the command line add --model-path and the model's name or folder",
        "on the command line write --hicache-size instead of --hicache-sise",
    ]
