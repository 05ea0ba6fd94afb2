"""Scripts that a shell is given: behind ssh, in a heredoc, through a pipe; bash says what runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from preflight.launches.launchers import RemoteWords, remote_words
from preflight.launches.shell_script import read_script
from tests.builders.launched import ids
from tests.tables import each_row

# Stand-ins for what reaches another host or container: they hand their words, or standard input,
# to a shell as the real ones do. A program prints its words, each behind a NUL, and then a \1.
STAND_INS = {
    "ssh": """\
while [ $# -gt 0 ]; do case $1 in
  --) shift; break ;;
  -[BbcDEeFIiJLlmOopQRSWw]) shift 2 ;;
  -*) shift ;;
  *) if [ -n "$host" ]; then break; fi; host=$1; shift ;;
esac; done
if [ $# -gt 0 ]; then exec bash -c "$*"; else exec bash; fi""",
    "docker": 'while [ "$1" != box ]; do shift; done; shift; exec "$@"',
    "sudo": 'case $1 in -s|-i) exec bash ;; esac; exec "$@"',
    "su": 'for word; do [ "$before" = -c ] && exec bash -c "$word"; before=$word; done; exec bash',
    "mooncake_prog": "printf '%s\\0' mooncake_prog \"$@\"; printf '\\1'",
}
SERVES = "mooncake_prog --name 'a b' --json '{\"a\": 1}' --home $HOME $1 "
LINES = [
    "ssh n1 mooncake_prog -a 1 'b c' '{\"a\": \"b\"}'",
    "ssh -p 22 -o A=b user@n1 -q 'cd / && mooncake_prog -a 1'",
    "ssh n1 -- mooncake_prog -a",
    "ssh n1 bash -c \"'mooncake_prog one two'\"",
    "ssh n1 bash -uc \"'cd / && mooncake_prog one'\"",
    "ssh n1 'A=1; mooncake_prog $A; for i in 1 2; do mooncake_prog $i; done'",
    "A='x y'; ssh n1 \"mooncake_prog '$A' $A\"",
    "ssh n1 sudo mooncake_prog 'a;b'",
    "ssh n1 ssh n2 mooncake_prog \"'a  b'\"",
    f"ssh n1 <<'EOF'\n{SERVES}\nEOF",
    "A=7\nssh n1 <<EOF\nmooncake_prog $A \\$HOME\nEOF",
    f"ssh n1 bash -s <<'EOF'\n{SERVES}\nEOF",
    f"ssh n1 'bash -s' -- one two <<'EOF'\n{SERVES}\nEOF",
    "for h in n1 n2; do ssh $h bash -s -- $h <<'EOF'\nmooncake_prog $1\nEOF\ndone",
    f"cat <<'EOF' | ssh n1 bash\n{SERVES}\nEOF",
    "echo 'mooncake_prog one' | ssh n1",
    "echo mooncake_prog one | bash -s",
    "ssh n1 'cd / && bash -s' < start.sh",
    "ssh n1 < start.sh",
    "cat start.sh | bash",
    "bash < start.sh",
    "bash -o pipefail -s x < start.sh",
    "bash start.sh one < /dev/null",
    "bash < /dev/null; mooncake_prog after",
    f"bash <<'EOF'\n{SERVES}\nEOF\nmooncake_prog after",
    f"sudo bash <<'EOF'\n{SERVES}\nEOF",
    f"sudo -s <<'EOF'\n{SERVES}\nEOF",
    f"sudo -i <<'EOF'\n{SERVES}\nEOF",
    f"su - svc <<'EOF'\n{SERVES}\nEOF",
    "su svc -c 'mooncake_prog one' <<'EOF'\nmooncake_prog two\nEOF",
    f"docker exec -i box bash <<'EOF'\n{SERVES}\nEOF",
    "bash <<< 'mooncake_prog one'",
    "bash -c 'mooncake_prog one; bash' <<< 'mooncake_prog two'",
    "cat > f.sh <<'EOF'\nmooncake_prog \"$@\"\nEOF\nbash f.sh 'a b' c; bash -s d < f.sh",
    "read -r A B <<< '1 2'; mooncake_prog $A \"$B\"",
    "echo one > f; read -r A < f; mooncake_prog $A",
]


START = 'mooncake_prog from a file "$@"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-ins and a script to start."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, text in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "start.sh").write_text(START)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
@pytest.mark.parametrize("line", LINES)
def test_what_a_shell_is_given_starts_what_bash_starts(line: str, folder: Path) -> None:
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/root"}
    reading = read_script(line, "s", environment, beside={"start.sh": START}.get)
    run = ["bash", "-c", line]
    done = subprocess.run(
        run, cwd=folder, env=environment, input="", capture_output=True, text=True, timeout=20
    )
    real = [text.split("\0")[:-1] for text in done.stdout.split("\1")[:-1]]
    assert real, done.stderr
    read = [[word.text.replace("$HOME", "/root") for word in one.words] for one in reading.commands]
    assert [words for words in read if words[0] == "mooncake_prog"] == real
    assert not [note for note in reading.notes if note.id == "script-not-read"]


INSTALLER = "curl -fsSL https://astral.sh/uv/install.sh | sh"


@pytest.mark.parametrize("line", ["ssh n1", "bash", INSTALLER, "sudo -i", "su - svc"])
def test_a_shell_that_is_given_nothing_is_no_script(line: str) -> None:
    """Nor is what an installer brings along from the network."""
    assert "script-not-read" not in ids(read_script(line, "s", {}))


def test_each_server_of_a_heredoc_has_its_own_line() -> None:
    text = "A=1\nssh n1 <<'EOF'\nmooncake_master\nmooncake_client\nEOF\n"
    reading = read_script(text, "s", {})
    assert [str(command.origin) for command in reading.commands] == ["s:3", "s:4"]


@each_row(
    ("line", "found"),
    [
        ("/usr/bin/ssh -p 22 -q me@n1 -v ls -l", RemoteWords("n1", 6)),
        ("ssh -oA=b n1 -- ls", RemoteWords("n1", 4)), ("ssh n1", RemoteWords("n1", 2)),
        ("ssh -p", RemoteWords("", 2)), ("pdsh -w n1,n2 ls", None), ("scp a n1:b", None),
        ("", None),
    ],
)  # fmt: skip
def test_where_the_words_for_another_host_begin(line: str, found: RemoteWords | None) -> None:
    assert remote_words(line.split()) == found
