"""200 secrets of 40 kinds in five places: none is in a capture, a manifest, a report or a page."""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from checks.base.archive import read_archive
from checks.capture.secret_names import is_secret
from checks.capture.secrets import (
    REMOVED,
    beginning,
    clean_text,
    clean_words,
    looks_drawn,
    public,
)
from preflight.base.one_line import shortened
from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from preflight.inputs.host_source import open_host
from preflight.inputs.launch_words import LaunchWords
from preflight.inputs.public_launch import public_file, public_json
from preflight.settings.dialects import FORMATS
from tests.builders.synthetic import build_host, gpu_host
from tests.paths import ROOT

_ANY = string.ascii_letters + string.digits
# The line that has it, {} being the secret; what stands in front of it; its characters, how many.
KINDS: dict[str, tuple[str, str, str, int]] = {
    "Hugging Face": ("export HUB={}", "hf_", _ANY, 34),
    "a token by its name": ("export HF_TOKEN={}", "", string.ascii_lowercase, 12),
    "AWS secret": ("export AWS_SECRET_ACCESS_KEY={}", "", _ANY + "+/", 40),
    "AWS key": ("echo {} >> keys", "AKIA", string.ascii_uppercase + string.digits, 16),
    "bearer": ("curl -H 'Authorization: Bearer {}' http://a.b/", "", string.hexdigits[:16], 24),
    "basic": ("curl -H 'Authorization: Basic {}' http://a.b/", "", _ANY, 20),
    "key in a header": ("curl -H 'X-API-Key: {}' http://a.b/", "", string.ascii_lowercase, 14),
    "cookie": ("curl -H 'Cookie: session={}' http://a.b/", "", string.digits, 18),
    "curl's user": ("curl -u robot:{} http://a.b/x", "", string.ascii_lowercase, 10),
    "curl's long user": ("curl --user robot:{} http://a.b/", "", string.ascii_lowercase, 10),
    "docker login": ("docker login -u robot -p {} registry.b", "", string.ascii_lowercase, 12),
    "docker password": ("docker login --password {} registry.b", "", string.ascii_lowercase, 12),
    "aws configure": ("aws configure set aws_secret_access_key {}", "", string.ascii_lowercase, 20),
    "literal": ("kubectl create secret generic x --from-literal=password={}", "", _ANY, 10),
    "query": ("wget http://a.b/model?token={}", "", string.ascii_lowercase, 16),
    "later query": ("wget 'http://a.b/model?x=1&api_key={}'", "", string.ascii_lowercase, 16),
    "signed address": ("wget 'http://a.b/m?se=2030&sig={}'", "", _ANY, 30),
    "user in an address": ("git clone https://robot:{}@git.b/x", "", string.ascii_lowercase, 12),
    "token as user": ("git clone https://{}@git.b/x", "", string.ascii_lowercase, 24),
    "redis address": ("export CACHE=redis://:{}@redis.b:6379/0", "", string.ascii_lowercase, 12),
    "Redis password": ("export MC_REDIS_PASSWORD={}", "", string.ascii_lowercase, 12),
    "short Redis password": ("export MC_REDIS_PWD={}", "", string.ascii_lowercase, 12),
    "database": ("export PGPASSWORD={}", "", string.ascii_lowercase, 12),
    "password file": ("echo DB_PASS={} >> .env", "", string.ascii_lowercase, 12),
    "mysql": ("mysql -uroot -p{} -e 'select 1'", "", string.ascii_lowercase, 12),
    "sshpass": ("sshpass -p {} ssh node1 true", "", string.ascii_lowercase, 12),
    "GitHub": ("gh_token() {{ echo {}; }}", "ghp_", _ANY, 36),
    "fine GitHub": ("echo {}", "github_pat_", _ANY, 40),
    "GitLab": ("echo {}", "glpat-", _ANY, 20),
    "Slack": ("echo {}", "xoxb-", string.digits, 24),
    "Slack's hook": ("curl https://hooks.slack.com/services/{}", "T0", _ANY, 30),
    "Google": ("echo {}", "AIza", _ANY, 35),
    "OpenAI": ("echo {}", "sk-", _ANY, 40),
    "Stripe": ("echo {}", "sk_live_", _ANY, 24),
    "JWT": ("echo {}", "eyJhbGciOiJIUzI1NiJ9.", _ANY, 40),
    "NVIDIA": ("echo {}", "nvapi-", _ANY, 50),
    "Vault": ("vault login {}", "hvs.", _ANY, 24),
    "W&B": ("wandb login {}", "", string.hexdigits[:16], 40),
    "drawn": ("some-tool {}", "", _ANY, 40),
    "drawn in hexadecimal": ("some-tool {}", "", string.hexdigits[:16], 48),
}
SERVER = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 "
    "--enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend mooncake"
)
SETTINGS = {"MC_STORE_USE_HUGEPAGE": "1", "MOONCAKE_MASTER": "127.0.0.1:1"}


def _secrets(place: str) -> dict[str, str]:
    """One of each kind, that no other place has."""
    drawn = random.Random(place)
    found = {}
    for kind, (_, start, letters, count) in KINDS.items():
        secret = start + "".join(drawn.choices(letters, k=count))
        while count >= 30 and kind == "drawn" and not looks_drawn(secret):
            secret = "".join(
                drawn.choices(letters, k=count)
            )  # the net has holes: see _MOST_CHANGES
        found[kind] = secret
    return found


def _lines(place: str) -> list[str]:
    return [KINDS[kind][0].format(secret) for kind, secret in _secrets(place).items()]


def _script(lines: list[str], settings: Mapping[str, str]) -> str:
    exports = [f"export {name}={value}" for name, value in settings.items()]
    return "\n".join([*lines, *exports, SERVER, ""])


def _in_script(place: str) -> dict[str, str]:
    return {"launch.sh": _script(_lines(place), SETTINGS)}


def _in_document(place: str) -> dict[str, str]:
    """Comments, and what a script writes to a file."""
    lines = _lines(place)
    half = len(lines) // 2
    text = [*(f"# {line}" for line in lines[:half]), "cat > notes <<EOF", *lines[half:], "EOF"]
    return {"launch.sh": _script(text, SETTINGS)}


def _in_compose(place: str) -> dict[str, str]:
    variables = {f"NOTE_{number}": line for number, line in enumerate(_lines(place))}
    service = {"image": "a/b", "environment": {**SETTINGS, **variables}, "command": SERVER.split()}
    return {"compose.yaml": json.dumps({"services": {"server": service}}, indent=1)}


def _in_pod(place: str) -> dict[str, str]:
    container = {
        "name": "server",
        "image": "a/b",
        "command": ["bash", "-c"],
        "args": [_script(_lines(place), {})],
        "env": [{"name": name, "value": value} for name, value in SETTINGS.items()],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    return {"pod.yaml": json.dumps({**pod, "spec": {"containers": [container]}}, indent=1)}


def _in_variables(place: str) -> dict[str, str]:
    """An env file, and a configuration that the launch names."""
    lines = _lines(place)
    half = len(lines) // 2
    notes = {f"note_{number}": line for number, line in enumerate(lines[half:])}
    variables = [f"NOTE_{number}={line}" for number, line in enumerate(lines[:half])]
    settings = {"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": "store.json"}
    return {
        "launch.sh": _script([], settings),
        "more.env": "\n".join([*variables, ""]),
        "store.json": json.dumps({"master_server_address": "127.0.0.1:1", **notes}),
    }


PLACES: dict[str, Callable[[str], dict[str, str]]] = {
    "script": _in_script,
    "document": _in_document,
    "compose": _in_compose,
    "pod": _in_pod,
    "variables": _in_variables,
}


# Options of programs whose names say nothing, and forms and places that no place above has.
FURTHER = (
    "etcdctl --user root:{} get x",
    "export ETCDCTL_USER=root:{}",
    "smbclient //s.b/m -U a%{}",
    "ldapsearch -x -D cn=a -w {} -b dc=b",
    "lftp -u a,{} ftp.b",
    "unzip -P {} models.zip",
    "7z x -p{} models.7z",
    "ssh-keygen -N {} -f k",
    "htpasswd -bc /etc/x u {}",
    "useradd -p {} u",
    "curl -b sessionid={} https://a.b",
    "ngrok authtoken {}",
    "ossutil config -e e.b -i id -k {}",
    "curl https://x.webhook.office.com/webhookb2/{}/IncomingWebhook/1",
    "curl https://api.telegram.org/bot123456789:AA{0}{0}/sendMessage",
)
PIPED = (
    "echo 'root:{}' | chpasswd",
    "echo {} | docker login -u a --password-stdin r.b",
    "echo {} | sudo -S true",
    "printf '%s\\n' {} | docker login -u a --password-stdin r.b",
    'printf %s "{}" | sudo -S true',
    "printf 'root:%s' '{}' | chpasswd",
    "cat > c.ini <<EOF\npassword = {}\nEOF",
    'cat > c.toml <<EOF\ntoken = "{}"\nEOF',
    "cat > c.xml <<EOF\n<password>{}</password>\nEOF",
)


# Lines of launches whose program or quotes are lost, and what expect and munge are given.
CUT = (
    "expect -c 'send \"{}\\r\"'",
    'expect -c \'spawn ssh a; expect "assword:"; send -- "{}\\r"; send {}\\r\'',
    "munge -s {}",
    "munge --string={}",
    "server -U user%{}",
    "-U 'DOMAIN\\user%{}'",
    "root:{} | chpasswd",
    "root:{} '|' chpasswd",
    "{} | sudo -S true",
    "chpasswd <<< root:{}",
    "echo {} | sudo -k -S true",
    "yes | echo {} | sudo --stdin true",
    "echo {} | passwd --stdin root",
    "passwd --stdin root <<< {}",
    'a variable has blanks in its name: send "{}\\r"',
    "printf 'password = {}\\n' > c.ini",
    'cat > c.toml <<EOF token = "{}" EOF',
    "cat > c.yaml <<EOF password: {} EOF",
    "echo 'password: {}' > c.yaml",
    "printf 'db:\\n  password: {}\\n' > c.yaml",
    'echo \'{{"password": "{}"}}\' > c.json',
    "curl -H 'Cookie: session={}' https://a.b",
    "-pass pass:{}",
    "/models/password={}/Qwen3-14B",
)


@pytest.mark.parametrize("line", CUT)
def test_a_secret_is_known_where_its_line_is_cut_or_its_quotes_are_lost(line: str) -> None:
    """In a launch; in a text of ours; in the words of a command, as they are and cut at spaces."""
    secret = "kuwhfksrekxybnr"
    text = line.format(*[secret] * 2)
    assert secret not in clean_text(text)
    assert secret not in public(f"  error: unrecognized arguments: {text}")
    assert secret not in public("  error: " + text.replace(" ", "\n      "))
    for words in (text.split(), ["bash", "-c", text], ["bash", "-c", f"{text}\n{SERVER}"]):
        for of_host in (False, True):
            assert not any(secret in word for word in clean_words(words, of_host=of_host))


@pytest.mark.parametrize("line", ["send {}\r", "expect -c 'send {}'", 'expect -c "send -- {}\r"'])
def test_what_expect_types_is_gone_where_its_quotes_are_lost(line: str) -> None:
    """A return may be written out, or be the character itself."""
    secret = "kuwhfksrekxybnr"
    assert secret not in clean_text(line.format(secret))
    assert not any(secret in word for word in clean_words(["bash", "-c", line.format(secret)]))


@pytest.mark.parametrize("line", [*FURTHER, *PIPED])
def test_a_secret_is_known_by_the_place_that_it_stands_in(line: str) -> None:
    """In a text; in the words of a command; in a sentence of ours that is broken for its width."""
    secret = "kuwhfksrekxybnr"
    assert secret not in clean_text(line.format(secret))
    if line in FURTHER:
        assert not any(secret in word for word in clean_words(line.format(secret).split()))
        words = line.format(secret).replace(" ", "\n      ")
        assert secret not in public(f"  error: {words}")


def test_a_line_that_is_broken_for_its_width_is_one_line_still() -> None:
    said = "unrecognized arguments: wget --password\n      hunter2-of-mine http://a.b/x"
    assert public(said) == said.replace("hunter2-of-mine", f"'{REMOVED}'")
    kept = "  password: of three words\n      and a second line"
    assert public(kept) == kept


@pytest.mark.parametrize("command", [["read", "--json"], ["read", "-vv"], ["fit"], ["plan"]])
def test_words_of_other_commands_are_in_no_answer(
    command: list[str], host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "kuwhfksrekxybnr"
    script = tmp_path / "launch.sh"
    lines = [line.format(secret) for line in (*FURTHER, "tool --passwd={}", "tool --token {}")]
    script.write_text(_script(lines, SETTINGS))
    words = [*SERVER.split(), *(word for line in lines for word in line.split())]
    for launch in ([str(script)], ["--", *words]):
        run([*command, "--root", host, *launch])
        seen = capsys.readouterr()
        assert secret not in seen.out + seen.err


def test_words_that_are_quoted_in_the_command_of_fit_are_not_shown(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quotes of a shell stand between what belongs together: it is looked for in the words."""
    secret = "kuwhfksrekxybnr"
    words = SERVER.split()
    for line in (*CUT, *PIPED, *FURTHER):
        words += line.format(*[secret] * 2).split()
    for form in ((), ("--json",)):
        run(["fit", *form, "--root", host, "--", *words])
        seen = capsys.readouterr().out
        assert secret not in seen
        assert "--hicache-size" in seen


def test_a_secret_in_the_name_of_a_file_is_in_no_answer(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither where the launch is named, nor where a line of it was seen."""
    secret = "kuwhfksrekxybnr"
    folder = tmp_path / f"password={secret}"
    folder.mkdir()
    script, lock = folder / f"api_key={secret}.sh", tmp_path / "lock.json"
    script.write_text(_script([], SETTINGS).replace("Qwen/", f"/models/token={secret}/"))
    for command in (
        ["check", "-v"],
        ["check", "--json"],
        ["check", "--junit", "-"],
        ["check", "--html", "-"],
        ["diff", "--lock", str(lock)],
        ["read"],
        ["read", "--json"],
        ["plan"],
        ["fit"],
        ["fit", "--json"],
    ):
        run([*command, "--root", host, str(script)])
        seen = capsys.readouterr()
        assert secret not in seen.out + seen.err, command
    assert secret not in lock.read_text()
    for options in ((), ("--keep-launch",)):
        file = tmp_path / "host.tar.gz"
        assert run(["capture", *options, "--root", host, str(file), str(script)]) == 0
        for name, content in read_archive(str(file)).files.items():
            assert secret not in name + content.decode("latin-1"), name


@pytest.mark.slow
def test_a_secret_in_the_name_of_a_file_is_in_no_report_of_exec_and_no_plan(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor that of a store's address, nor in the name of a model, which the first line says."""
    secret = "kuwhfksrekxybnr"
    folder = tmp_path / f"token={secret}"
    folder.mkdir()
    script, report = folder / f"password={secret}.sh", tmp_path / "report.json"
    metadata = f"export MOONCAKE_TE_META_DATA_SERVER=redis://u:{secret}@r.b:1"
    server = SERVER.replace("Qwen/Qwen3-14B", f"/models/hf_{secret * 3}")
    script.write_text(f"{metadata} MOONCAKE_MASTER=127.0.0.1:1\n{server}\n")
    for form in FORMATS:
        run(["plan", "--format", form, "--root", host, str(script)])
        seen = capsys.readouterr()
        assert secret not in seen.out + seen.err, form
    command = [sys.executable, "-m", "mooncake_preflight", "exec", "--report", str(report)]
    ran = subprocess.run(
        [*command, "--", "bash", str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "SGLang" in ran.stderr
    assert secret not in report.read_text() + ran.stdout + ran.stderr


def test_values_of_a_secret_object_are_in_no_capture(host: str, tmp_path: Path) -> None:
    """Whatever they are called: by envFrom, by secretKeyRef, and where a word refers to one."""
    file, pod = tmp_path / "host.tar.gz", tmp_path / "pod.yaml"
    held = {"k0": "kuwhfksrekxybnr", "k1": "hunter2-of-mine", "k2": "brxny"}
    ref = {"secretKeyRef": {"name": "s", "key": "k1"}}
    container = {
        "name": "server",
        "image": "a/b",
        "command": [*SERVER.split(), "--nope", "$(k0)"],
        "envFrom": [{"secretRef": {"name": "s"}}],
        "env": [
            {"name": "ONE", "valueFrom": ref},
            *({"name": name, "value": value} for name, value in SETTINGS.items()),
        ],
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": held}
    rest = {"metadata": {"name": "x"}, "spec": {"containers": [container]}}
    objects = [secret, {"apiVersion": "v1", "kind": "Pod", **rest}]
    pod.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=1))
    for options in ((), ("--keep-launch",)):
        assert run(["capture", *options, "--root", host, str(file), str(pod)]) == 0
        content = read_archive(str(file)).files["/capture.json"].decode()
        assert [value for value in held.values() if value in content] == []
        assert "MOONCAKE_MASTER" in content


def test_what_a_script_writes_to_a_secrets_file_is_in_no_capture(host: str, tmp_path: Path) -> None:
    file, script = tmp_path / "host.tar.gz", tmp_path / "launch.sh"
    lines = ["echo kuwhfksrekxybnr > /run/secrets/redis", "kuwhfksrekxybnr > /models/x.yaml"]
    script.write_text(_script(lines[:1], SETTINGS))
    for options in ((), ("--keep-launch",)):
        assert run(["capture", *options, "--root", host, str(file), str(script)]) == 0
        assert b"kuwhfksrekxybnr" not in read_archive(str(file)).files["/capture.json"]
    # Of a program that nobody here knows nothing is kept by default, nor that it wrote the file.
    script.write_text(_script(lines[1:], SETTINGS))
    assert run(["capture", "--root", host, str(file), str(script)]) == 0
    assert b"kuwhfksrekxybnr" not in read_archive(str(file)).files["/capture.json"]


def test_a_lock_has_no_value_of_a_secret_flag(host: str, tmp_path: Path) -> None:
    script, lock = tmp_path / "launch.sh", tmp_path / "lock.json"
    script.write_text(_script(["tool --passwd=kuwhfksrekxy --token=uhfkwksrekxy"], SETTINGS))
    assert run(["diff", "--root", host, "--lock", str(lock), str(script)]) == 0
    assert "--passwd" in lock.read_text()
    assert "srekxy" not in lock.read_text()


def test_a_word_that_is_dropped_takes_no_part_of_a_name_with_it(host: str, tmp_path: Path) -> None:
    """Else the rest of --passwd is no name of a secret any more, in a note that is kept."""
    script, env, file = tmp_path / "launch.sh", tmp_path / "more.env", tmp_path / "host.tar.gz"
    env.write_text("tool --passwd=kuwhfksrekxy\n")
    script.write_text(_script(["tool -pass", "tool --pass word"], SETTINGS))
    words = ["--env-file", str(env), str(script)]
    assert run(["capture", "--root", host, str(file), *words]) == 0
    assert b"kuwhfksrekxy" not in read_archive(str(file)).files["/capture.json"]


def test_a_variable_whose_name_alone_says_nothing_is_gone_from_a_whole_launch(
    host: str, tmp_path: Path
) -> None:
    script, file = tmp_path / "launch.sh", tmp_path / "host.tar.gz"
    script.write_text(_script(["export ETCDCTL_USER=root:kuwhfksrekxy"], SETTINGS))
    assert run(["capture", "--keep-launch", "--root", host, str(file), str(script)]) == 0
    content = read_archive(str(file)).files["/capture.json"]
    assert b"kuwhfksrekxy" not in content
    assert b"127.0.0.1:1" in content


def test_comments_of_the_hosts_files_are_not_recorded(tmp_path: Path) -> None:
    """They may hold anything; lines stay where they are, and so does who wrote the file."""
    root = build_host(tmp_path / "host", gpu_host())
    drop_in = root / "etc/sysctl.d/99-x.conf"
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    first = "# Generated by mooncake-preflight for run.sh: /etc/sysctl.d/99-x.conf"
    drop_in.write_text(f"{first}\n# of Jane, hunter2\n  ; hunter2\nvm.nr_hugepages = 7\n")
    file = tmp_path / "host.tar.gz"
    assert run(["capture", "--root", str(root), str(file)]) == 0
    found = read_archive(str(file)).files["/etc/sysctl.d/99-x.conf"].decode()
    assert found.splitlines() == [first, "#", "#", "vm.nr_hugepages = 7"]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_host(tmp_path_factory.mktemp("host"), gpu_host()))


@pytest.fixture(params=PLACES)
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """The words of a launch, and its secrets by their kind."""
    place = request.param
    for name, text in PLACES[place](place).items():
        (tmp_path / name).write_text(text)
    first = next(iter(PLACES[place](place)))
    words = [str(tmp_path / first)]
    if place == "variables":
        words = ["--env-file", str(tmp_path / "more.env"), *words]
    return words, _secrets(place)


def _found(text: str, secrets: Mapping[str, str]) -> list[str]:
    return [kind for kind, secret in secrets.items() if secret in text]


@pytest.mark.slow
def test_none_is_in_what_fit_changes(
    planted: tuple[list[str], dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in a line that changes, nor in those around it."""
    words, secrets = planted
    for form in ((), ("--json",)):
        run(["fit", *form, "--memory", "2tb", "--gpus", "8xH800", "--nics", "8xmlx5", *words])
        out = capsys.readouterr().out
        assert _found(out, secrets) == []
        assert "hicache-size" in out


def test_there_are_as_many_as_are_promised() -> None:
    every = {secret for place in PLACES for secret in _secrets(place).values()}
    assert (len(KINDS), len(every)) == (40, 200)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--keep-names",), ("--keep-launch",)])
def test_none_is_in_a_capture(
    planted: tuple[list[str], dict[str, str]], options: tuple[str, ...], host: str, tmp_path: Path
) -> None:
    words, secrets = planted
    file = tmp_path / "host.tar.gz"
    assert run(["capture", *options, "--root", host, str(file), *words]) == 0
    files = read_archive(str(file)).files
    for name, content in files.items():
        assert _found(content.decode("latin-1"), secrets) == [], name
    assert b"Qwen/Qwen3-14B" in files["/capture.json"]
    assert b"MOONCAKE" in files["/capture.json"]


def test_none_is_in_a_record(
    planted: tuple[list[str], dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    words, secrets = planted
    assert run(["read", "--record", *words]) == 0
    out = capsys.readouterr().out
    assert _found(out, secrets) == []
    assert "Qwen/Qwen3-14B" in out


@pytest.mark.slow
def test_none_is_in_a_report(
    planted: tuple[list[str], dict[str, str]],
    host: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Text, JSON, JUnit, page, facts, plan, fit and sizing."""
    words, secrets = planted
    page, junit = tmp_path / "page.html", tmp_path / "junit.xml"
    for command in (
        ["check", "-v", "--html", str(page), "--junit", str(junit)],
        ["check", "--json"],
        ["plan"],
        ["plan", "--format", "docker"],
        ["plan", "--format", "json"],
        ["facts", "--json"],
        ["capacity"],
        ["fit"],
        ["fit", "--json"],
        ["read"],
    ):
        run([*command, "--root", host, *words])
        seen = capsys.readouterr()
        assert _found(seen.out + seen.err, secrets) == [], command
    run_sizing(["--json", "--explain", "--root", host, *words])
    seen = capsys.readouterr()
    written = page.read_text() + junit.read_text()
    assert _found(seen.out + seen.err + written, secrets) == []


@pytest.mark.slow
def test_none_of_what_is_understood_is_in_a_report(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values of settings that are read, and shown where they are wrong."""
    secrets = _secrets("settings")
    extra = {
        "redis_password": secrets["database"],
        "auth_token": secrets["mysql"],
        "master_server_address": f"https://u:{secrets['sshpass']}@h.b:1?token={secrets['query']}",
    }
    metadata = f"http://r:{secrets['redis address']}@m.b/x?sig={secrets['signed address']}"
    script = tmp_path / "launch.sh"
    script.write_text(
        f"export MC_REDIS_PWD={secrets['drawn']} MC_STORE_USE_HUGEPAGE={secrets['Slack']}\n"
        f"export MOONCAKE_TE_META_DATA_SERVER='{metadata}' MC_BOGUS={secrets['Stripe']}\n"
        f"{SERVER} --api-key {secrets['OpenAI']} --nope={secrets['GitHub']} "
        f"--hicache-storage-backend-extra-config '{json.dumps(extra)}'\n"
    )
    for command in (
        ["check", "-v"],
        ["check", "--json"],
        ["check", "--html", "-"],
        ["check", "--junit", "-"],
        ["facts"],
        ["facts", "--json"],
        ["capacity"],
        ["topology", "--json"],
        ["fit"],
        ["fit", "--json"],
        ["read", "--json"],
        *(["plan", "--format", form] for form in FORMATS),
    ):
        run([*command, "--root", host, str(script)])
        seen = capsys.readouterr()
        assert _found(seen.out + seen.err, secrets) == [], command
    for options in ((), ("--json", "--explain")):
        run_sizing([*options, "--root", host, str(script)])
        seen = capsys.readouterr()
        assert _found(seen.out + seen.err, secrets) == []
    file = tmp_path / "host.tar.gz"
    assert run(["capture", "--root", host, str(file), str(script)]) == 0
    for content in read_archive(str(file)).files.values():
        assert _found(content.decode("latin-1"), secrets) == []


@pytest.mark.slow
def test_none_is_in_the_report_of_exec(tmp_path: Path) -> None:
    """Of flags of the server itself, known and unknown ones."""
    secrets = _secrets("exec")
    words = [*SERVER.split(), "--api-key", secrets["drawn"], f"--extra={secrets['GitHub']}"]
    words += [f"--{kind.split()[0].lower()}={secret}" for kind, secret in secrets.items()]
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "mooncake_preflight", "exec", "--report", str(report), "--"]
    ran = subprocess.run(
        [*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    formed = {kind: secret for kind, secret in secrets.items() if KINDS[kind][1]}
    formed["drawn"] = secrets["drawn"]
    assert _found(report.read_text() + ran.stdout + ran.stderr, formed) == []


# What stays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kept",
    [
        SERVER,
        "export MC_PKEY_INDEX=3 MAX_TOTAL_TOKENS=131072",
        "image: registry.b/x@sha256:" + "0123456789abcdef" * 4,
        "--revision 0123456789abcdef0123456789abcdef01234567",
        "Qwen3NextForCausalLM Qwen/Qwen3-Next-80B-A3B-Instruct MiniMaxM2ForCausalLM",
        # Names of models are short parts; together they change as often as a key does.
        "--model-path Qwen/Qwen3-235B-A22B-FP8 --served-model-name MiniMaxAI/MiniMax-M1-80k",
        "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/opt/nvidia/nsight-compute/2025.1.0/host",
        "docker run --gpus all -p 30000:30000 -u 1000:1000 a/b",
        "mkdir -p /mnt/data && ssh -p 2222 node1",
        "--tokenizer-path /models/x --max-total-tokens 4096 --pin-memory",
        "cd $PWD; OLDPWD=/srv",
        "CUDA_VISIBLE_DEVICES=GPU-8f6ab1c2-0d3e-4f5a-9b8c-7d6e5f4a3b2c",
        "http://127.0.0.1:8080/metadata?key=mooncake-preflight",
        "PASS: 3 of 3 pairs",
        "password sufficient pam_unix.so",
        "a password of three words",
        "cat models.txt | sudo -S tee /etc/motd",
        "kernel.core_pattern = /var/core.%e.%p",
        '[ "$HF_TOKEN" = "" ] && [ $HF_TOKEN = x ]',
        "expect 4 of 8 NICs; send 3 pairs",
        "printf 'cannot send requests: passwd is in /etc\\n'",
        "max_total_tokens = 4096 page_size = 64",
        "python3 -U -m pip install sglang==0.5.4",
        "date -U +%Y-%m-%d",
    ],
)
def test_what_is_no_secret_stays(kept: str) -> None:
    assert clean_text(kept) == kept


@pytest.mark.parametrize(
    "kept",
    [
        "this host has no token: a login would be refused",
        "cannot read the token: permission denied by mlx5_0",
        "no such key: model",
        "PASS: launch.sh on host: nothing stands in the way (N pass, N skip)",
        "PASS: host, without a launch to check it for",
        "- pass: a NIC in use is on the GPU's node, or the host has one node",
        "- pass: compat_mode is Y, or the device is not iWARP",
        "names of secrets (`--api-key`, `password:`), objects of the kind Secret",
        "/kubepods/pod8f6ab1c2/0123456789abcdef0123456789abcdef",
        "a part of this launch is a secret: pass it as you do today",
        "attaching is allowed by --admin-api-key; --hicache-mem-layout layer_first stays",
    ],
)
def test_sentences_and_names_of_containers_stay(kept: str) -> None:
    assert clean_text(kept, of_host=True) == kept


@pytest.mark.parametrize(
    "kept",
    [
        "export HF_TOKEN=$TOKEN_OF_ELSEWHERE\ncurl -u $USER_AND_PASSWORD http://a.b/\n",
        "HF_TOKEN=${HF_TOKEN:-} PASSWORD=${PASSWORD:?set it first} TOKEN=${TOKEN:-$OTHER}",
        'PASSWORD="$(cat /run/secrets/x)" TOKEN=$(cat /run/x) COOKIE=`cat /run/y`',
        "password: ${PASSWORD}",
        "password: ${{ secrets.PASSWORD }}",
        '--api-key "$KEY" --token=${TOKEN}',
        "ENABLE_AUTH=${ENABLE_AUTH:-false}",
    ],
)
def test_a_reference_to_a_secret_stays(kept: str) -> None:
    assert clean_text(kept) == kept


@pytest.mark.parametrize(
    "line",
    [
        "PASSWORD=${{PASSWORD:-{}}}",
        'export DB_PASSWORD="${{DB_PASSWORD:-{}}}"',
        "password: ${{PW:-{}}}",
        "--api-key ${{KEY:-{}}}",
        "PASSWORD=$(echo {})",
        'PASSWORD="$(printf %s {})"',
        "PASSWORD=`echo {}`",
        'PASSWORD="$A-{}"',
        "useradd -p '$6$salt${}' u",
        "export OPENAI_API_KEYS={},b",
        '-H "Bearer {}"',
        'auth "bearer {}"',
    ],
)
def test_a_secret_beside_a_reference_is_gone(line: str) -> None:
    """What stands where a variable is not set, what a command prints, a digest of a password."""
    text = line.format("hunter2-of-mine")
    for shown in (clean_text(text), clean_text(text, of_host=True), *clean_words(["-c", text])):
        assert "hunter2" not in shown


@pytest.mark.parametrize(
    "line",
    [
        'export PASSWORD="{}"',
        'token = "{}"',
        'tool --api-key "{}"',
        "export SSHPASS=of-mine\nunzip -P {} x.zip",
        "tool --token of-mine\nldapsearch -x -D cn=a -w {} -b dc=b",
        "docker login -u a -p of-mine\nzip -P {} x.zip",
    ],
)
def test_a_script_that_is_a_text_in_json_has_none(line: str) -> None:
    """Its quotes have a backslash in front, and its lines end with one and an n."""
    text = json.dumps({"args": ["bash", "-c", f"{line.format('hunter2')}\n{SERVER}"]})
    shown = clean_text(text)
    assert "hunter2" not in shown
    assert SERVER in shown


@pytest.mark.parametrize("text", ["PASS: hunter2", '{"x": "PASS: hunter2", "y": 1}'])
def test_a_word_alone_behind_pass_is_a_password(text: str) -> None:
    assert "hunter2" not in clean_text(text, of_host=True)


def test_two_words_that_begin_no_sentence_are_a_password() -> None:
    assert clean_text("password: abc and", of_host=True) == f"password: '{REMOVED}'"


# What names settings of servers, libraries and tools, which have KEY, TOKEN or the like in them.
SETTINGS_TO_KEEP = """
key_cache_dtype = "fp8_e4m3"
kv_cache_key_dtype: fp8_e5m2
--kv-cache-key-dtype fp8_e4m3
storage_key = mooncake
cache-key = fp8_e4m3
token_limit=4096000
token_limit: 100k
max_tokens=8192000
max_tokens_per_batch: 32k
max_token_len: 131072
MAX_TOTAL_TOKENS=4096000
--max-total-tokens 4096000
bytes_per_token=163840
num_token: 262144
tokens_per_block: many
token_to_kv_pool = mla
req_to_token_pool: 262144
SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token
SGLANG_INIT_NEW_TOKEN_RATIO=0.7000001
--speculative-token-map /models/map.pt
inter_token_latency = 12345ms
first_token_latency: 12345ms
token_bucket = leaky
TOKEN_PREFIX=mooncake
tokenLimit: 100k
signature_version = s3v4
signature-algorithm = rsa-sha256
--api-key-file /run/keys/api
--api-key-file=/run/keys/api
API_KEY_FILE=/run/keys/api
--token-file ~/token
tokenPath: /var/run/token
password_file = /etc/redis.pass
--ssl-keyfile /etc/ssl/server.key
--ssl-keyfile=/etc/ssl/server.key
SSL_KEY_PATH=/etc/ssl/server.key
secret-dir: /run/secrets
--password-stdin registry.b
secretName: regcred
secret_name = regcred
secretKeyRef: regcred
secretRef: regcred
imagePullSecrets: regcred
--image-pull-secret regcred
auth_type = kerberos
auth_mode: kerberos
AUTH_METHOD=kubernetes
authProvider: oidc-of-mine
auth_backend = ldap
key_dtype = bf16
key_dim: 128x2
qk_key_norm = rmsnorm
key_prefix=mooncake/v1
cache_key_prefix: mooncake/v1
key_format = pem
key_type: ed25519
key_algorithm = ed25519
key_size: 4096bit
key_version = v2-of-mine
key_name: server-of-mine
key_index = 12-of-34
key_ttl: 3600s
keyLength: 4096bit
cookie_name = session
password_policy = strong
password_length: 16-to-64
webhook_port = http-alt
credential_provider: instance
passwordEnabled: maybe
bos_token = "<s>"
eos_token: </s>
pad_token = "[PAD]"
image_token: <image>
mask_token=<mask>
eos_token_id: 151645
partition_key = tenant
sort_key: created
shard_key=tenant
lookup_key: prefix
object_key = pages
public_key = ssh-ed25519
pkey: 0xffff
P_Key = 0x8001
pkey_table=0xffff,0x7fff
rkey: 0x181bd
lkey=0x181bd
qkey: 0x11111111
CREATE_MKEY: 0x200abc
hotkey = F9-of-mine
monkey = banana
keyboard: us-intl
keyspace = production
keyword: hugepages
keymap = us-intl
tokenizer_path: /models/x
--tokenizer-mode auto
--detokenizer-worker-num many
author = sglang-team
authors: the-team
certificate-authority: /etc/ca.pem
bypass: some-of-them
compass = north-west
num_passes = several
passthrough: vfio-pci
--skip-tokenizer-init
OLDPWD=/srv/models
basic check of the host's memory
a basic authentication scheme is enough
Basic example of a deployment
bearer tokens are not printed
the bearer certificate expires
SGLANG_PREFILL_DELAYER_TOKEN_USAGE_LOW_WATERMARK=0.3of1
kv_events_emit_object_key: sometimes
""".strip().splitlines()


def test_there_are_a_hundred_of_them() -> None:
    assert len(set(SETTINGS_TO_KEEP)) >= 100


@pytest.mark.parametrize("line", SETTINGS_TO_KEEP)
def test_a_setting_that_is_no_secret_stays(line: str) -> None:
    assert clean_text(line) == line
    assert clean_text(line, of_host=True) == line
    assert clean_words(line.split()) == line.split()


def test_which_names_of_servers_and_stores_are_secrets() -> None:
    """Of all flags, keys and variables that are known here: those of credentials, and no more."""
    from preflight.inputs.public_launch import _known_words
    from preflight.rules.variables import known_variables

    found = {name for name in (*_known_words(), *known_variables()) if is_secret(name)}
    assert found == {
        *("admin_api_key", "api_key", "ssl_keyfile_password"),
        "model_key",  # TensorRT-LLM's, of an entry: as likely another's own
        *("MC_METADATA_HTTP_TOKEN", "MC_REDIS_PASSWORD", "MOONCAKE_OSS_SECURITY_TOKEN"),
        *(
            f"{service}_{end}"
            for service in ("MOONCAKE_AWS", "MOONCAKE_S3", "SGLANG_S3", "MOONCAKE_OSS")
            for end in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
            if (service, end) != ("MOONCAKE_OSS", "SECRET_ACCESS_KEY")
        ),
        *("MOONCAKE_S3_SESSION_TOKEN", "SGLANG_PRECISION_HF_TOKEN", "SGLANG_DIFFUSION_SLACK_TOKEN"),
        # Switches, whose values are no secrets.
        *("SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE", "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"),
        "SGLANG_ROUTING_KEY_POLICY_DEBUG_LOG",
    }


def test_no_half_of_a_secret_stays_where_a_text_is_cut() -> None:
    """What is behind the cut shows that it is one."""
    secret = "hunter2" * 12
    for most in range(20, 120, 7):
        for text in (
            f'{{"x": "a long word of a setting", "redis_password": "{secret}", "y": 1}}',
            f"echo {secret} | tee some/file | chpasswd",
            f"a long word of a setting --api-key '{secret}' and more",
        ):
            assert "hunter2" not in beginning(text, most)
            assert "hunter2" not in shortened(text, most)


def test_a_program_that_is_a_users_password_is_in_no_answer(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line lost what it was printed with: root:x | chpasswd."""
    script, secret = tmp_path / "launch.sh", "kuwhfksrekxybnr"
    lines = [
        f"root:{secret} | chpasswd\n'$USER:{secret}' | chpasswd",
        f"start_vllm --x '{secret}' --password {secret} serve",
    ]
    script.write_text(_script([lines[0], lines[1].replace(f"--x '{secret}'", "--x 1")], SETTINGS))
    for command in (["read"], ["read", "-vv"], ["read", "--json"], ["check", "--json"]):
        run([*command, "--root", host, str(script)])
        seen = capsys.readouterr()
        assert secret not in seen.out + seen.err, command


@pytest.mark.parametrize("release", [(), ("--sglang-version", "0.5.10")])
def test_the_value_of_a_flag_that_nobody_has_is_not_repeated(
    release: tuple[str, ...], host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang names it in its refusal, and so does the finding: the flag is what is to be mended."""
    secret, lock = "kuwhfksrekxybnr", tmp_path / "lock.json"
    words = [*SERVER.split(), f"--string={secret}", "--nope", secret, "--hicache-sise=31"]
    for command in (
        ["check", "--json", *release],
        ["check", "--html", "-", *release],
        ["diff", "--lock", str(lock)],
    ):
        run([*command, "--root", host, "--", *words])
        seen = capsys.readouterr()
        assert secret not in seen.out + seen.err, command
        if "--json" in command:
            assert "--string=..." in seen.out
            assert "--hicache-sise=31" in seen.out
    assert secret not in lock.read_text()


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("MC_REDIS_PWD", True),
        ("PWD", False),
        ("DB_PASS", True),
        ("MYPASS", True),
        ("redispass", True),
        ("ROOTPW", True),
        ("JWT", True),
        ("bypass", False),
        ("COMPASS", False),
        ("num_passes", False),
        ("--pin-memory", False),
    ],
)
def test_short_names_of_secrets_are_whole_words(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_settings_of_a_configuration_stay_and_others_go() -> None:
    text = json.dumps({"protocol": "rdma", "redis_password": "a" * 9, "x": "why", "n": 5})
    assert json.loads(public_json(text)) == {
        "protocol": "rdma",
        "redis_password": REMOVED,
        "x": REMOVED,
        "n": 5,
    }
    assert public_json("{not json") == REMOVED
    lines = "protocol: rdma\n# old password: hunter2\nowner: me\ntp-size: 4\n"
    assert public_file(lines) == 'protocol: rdma\n\nowner: "(removed)"\ntp-size: 4\n'


@pytest.mark.slow
def test_what_refuses_a_launch_still_does_in_its_capture(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that is not understood is gone, and that there was one is not: else it would pass."""
    file, script = tmp_path / "host.tar.gz", tmp_path / "launch.sh"
    script.write_text(f"{SERVER} --no-such-flag hunter2-of-mine\n")
    assert run(["capture", "--root", host, str(file), str(script)]) == 0
    capsys.readouterr()
    run(["check", "--root", str(file), "--json"])
    found = {row["id"]: row["status"] for row in json.loads(capsys.readouterr().out)["findings"]}
    run(["check", "--root", host, "--json", str(script)])
    live = {row["id"]: row["status"] for row in json.loads(capsys.readouterr().out)["findings"]}
    assert "hunter2" not in read_archive(str(file)).files["/capture.json"].decode()
    assert found == live


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve Qwen/Qwen3-14B -tp 8 --nope hunter2 --kv-transfer-config "
        '\'{"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}\'',
        "lmcache server --l1-size-gb 100 --nope hunter2",
        "python3 train.py --hf-checkpoint Qwen/Qwen3-14B --nope hunter2 "
        "--sglang-enable-hierarchical-cache --sglang-hicache-size 30",
        "start_it hunter2 vllm serve Qwen/Qwen3-14B",
    ],
)
def test_other_engines_are_in_a_capture_as_they_were_read(
    line: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its machine did not pass, the capture does not pass, and unknown words are gone."""
    file, script = tmp_path / "host.tar.gz", tmp_path / "launch.sh"
    script.write_text(f"secret-tool hunter2\nmooncake_master --port 5\n{line}\n")
    assert run(["capture", "--root", host, str(file), str(script)]) == 0
    assert b"hunter2" not in read_archive(str(file)).files["/capture.json"]
    found = []
    for words in (["--root", str(file)], ["--root", host, str(script)]):
        capsys.readouterr()
        run(["check", "--json", *words])
        rows = json.loads(capsys.readouterr().out)["findings"]
        found.append(sorted((row["id"], row["status"]) for row in rows))
    assert found[0] == found[1]


def test_hosts_in_addresses_and_mail_addresses_are_replaced(host: str, tmp_path: Path) -> None:
    file, script = tmp_path / "host.tar.gz", tmp_path / "launch.sh"
    script.write_text(
        "export https_proxy=http://proxy7.corp.example:3128\n"
        f"export MOONCAKE_TENANT_ID=jane.doe@corp.example\n{SERVER}\n"
    )
    assert run(["capture", "--root", host, str(file), str(script)]) == 0
    content = read_archive(str(file)).files["/capture.json"].decode()
    assert "3128" in content
    for name in ("proxy7", "corp.example", "jane"):
        assert name not in content


def test_the_launch_of_a_host_that_is_open_is_whole(host: str) -> None:
    """What is removed is removed in what is written: a check itself sees all."""
    from preflight.inputs.host_source import size_and_needs

    words = (*SERVER.split(), "--api-key", "abcdefgh")
    sized = size_and_needs(LaunchWords(words, is_command=True), open_host(host))
    assert sized is not None
    assert sized.launch.reading.commands[0].words[-1].text == "abcdefgh"
