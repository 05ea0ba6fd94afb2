"""No text of a launch is kept, nor any secret: planted in many places, none is in a capture."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from checks.framework.archive import read_archive
from checks.host_snapshot.secrets import (
    REMOVED,
    beginning,
    clean_text,
    clean_words,
    is_secret,
    public,
)
from preflight.base.one_line import shortened
from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from preflight.command_inputs.launch_record import public_file, public_json
from preflight.host_tuning.dialects import FORMATS
from tests.builders.examples import some
from tests.builders.synthetic import build_host, gpu_host
from tests.paths import ROOT
from tests.tables import each_row

# Every secret and every word that nobody understands has this in it.
MARK = "kuwhfksrekxy"
SERVER = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 "
    "--enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend mooncake"
)
SETTINGS = {"MC_STORE_USE_HUGEPAGE": "1", "MOONCAKE_MASTER": "127.0.0.1:1"}


def _script(*lines: str, server: str = SERVER, **settings: str) -> dict[str, str]:
    exports = [f"export {name}={value}" for name, value in {**SETTINGS, **settings}.items()]
    return {"launch.sh": "\n".join([*lines, *exports, server, ""])}


def _compose(**service: object) -> dict[str, str]:
    variables = {**SETTINGS, "NOTE": MARK, "HF_TOKEN": MARK, "MC_REDIS_PASSWORD": f"2{MARK}"}
    whole = {"image": "a/b", "environment": variables, "command": SERVER.split(), **service}
    return {"compose.yaml": json.dumps({"services": {"server": whole}}, indent=1)}


def _pod() -> dict[str, str]:
    """A Secret by envFrom and by name, a ConfigMap that is mounted, a script."""
    held = {"k0": f"0{MARK}", "k1": f"1{MARK}", "MC_REDIS_PASSWORD": f"2{MARK}"}
    reference = {"secretKeyRef": {"name": "s", "key": "k1"}}
    container = {
        "name": "server",
        "image": "a/b",
        "command": ["bash", "-c"],
        "args": [f"tool {MARK}\n{SERVER} --nope $(k0) --api-key $(k1)"],
        "envFrom": [{"secretRef": {"name": "s"}}],
        "env": [
            {"name": "ONE", "valueFrom": reference},
            {"name": "HF_TOKEN", "value": MARK},
            *({"name": name, "value": value} for name, value in SETTINGS.items()),
        ],
        "volumeMounts": [{"name": "v", "mountPath": "/store"}],
    }
    spec = {"containers": [container], "volumes": [{"name": "v", "configMap": {"name": "c"}}]}
    config = {"store.json": json.dumps({"protocol": "rdma", "note": MARK, "redis_password": MARK})}
    objects = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": held},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": config},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec},
    ]
    return {"pod.yaml": json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})}


_EXTRA = {
    "redis_password": MARK,
    "note": MARK,
    "metadata_server": f"http://u:{MARK}@127.0.0.1:1/metadata?token={MARK}",
    "master_server_address": "127.0.0.1:1",
    "protocol": "rdma",
}
_ADDRESS = f"http://r:{MARK}@m.b/x?sig={MARK}"
_STORE = json.dumps({"master_server_address": f"redis://:{MARK}@127.0.0.1:1", "note": MARK})
# The files of a launch, the first of which is given, by what holds what is planted.
PLACES: dict[str, dict[str, str]] = {
    "words of other commands": _script(
        f"curl -u robot:{MARK} -H 'X-API-Key: {MARK}' http://a.b/{MARK}?token={MARK}",
        f"echo root:{MARK} | chpasswd",
        f"docker login -p {MARK} r.b; tool {MARK}",
        f"{MARK} {MARK}",
    ),
    "comments and documents": _script(
        f"# {MARK}", f"cat > notes <<EOF\npassword = {MARK}\n{MARK}\nEOF", f": <<< {MARK}"
    ),
    "unknown flags": _script(server=f"{SERVER} --nope {MARK} --zool={MARK} --{MARK} {MARK}"),
    "secret flags": _script(server=f"{SERVER} --api-key {MARK} --admin-api-key='a {MARK}'"),
    "variables": _script(
        HF_TOKEN=MARK, MC_REDIS_PASSWORD=f"'a {MARK}'", NOTE=MARK, MC_BOGUS=MARK, AWS_SECRET=MARK
    ),
    "addresses": _script(
        MOONCAKE_TE_META_DATA_SERVER=f"'{_ADDRESS}'",
        https_proxy=f"robot:{MARK}@proxy.b:3128",
        MOONCAKE_MASTER=f"joe:{MARK}@10.1.2.3:50051",
        LMCACHE_REMOTE_URL=f":{MARK}@[fd00::7]:65,b:c@{MARK}@h.b:7",
        MC_X=f"redis://:a{MARK}@r.b:1,redis://b:{MARK}@r.b:2?x={MARK},y",
        server=f"{SERVER} --dist-init-addr tcp://u:{MARK}@h.b:5",
    ),
    "configurations in flags": _script(
        server=f"{SERVER} --hicache-storage-backend-extra-config '{json.dumps(_EXTRA)}'"
    ),
    "substitutions": _script(
        MC_GID_INDEX=f"$(tool (a (b (c (d {MARK})))))",
        MC_MS_AUTO_DISC=f"`tool {MARK}`",
        MC_IB_PORT=f"${{PORT:-$(tool {MARK})}}",
        server=f"{SERVER} --host $(hostname)-$(tool --x {MARK} | awk '{{print}}') "
        f"--port ${{PORT:+{MARK}}} --served-model-name $(tool <<< '{MARK}')$NAME",
    ),
    "conditions and loops": _script(
        f'if [ "$X" = "{MARK}" ]; then export MC_GID_INDEX=3; fi',
        f'case "$X" in {MARK}) export MC_IB_PORT=2;; *{MARK}*) exit;; esac',
        f"for each in $(tool {MARK}); do mooncake_master --port $each & done",
        f'grep -q {MARK} /etc/{MARK} && mooncake_client --port 7 --x "{MARK}" &',
    ),
    "an env file": {
        **_script(),
        "more.env": f"HF_TOKEN={MARK}\nNOTE=tool --passwd={MARK}\nMC_REDIS_PASSWORD={MARK}\n",
    },
    "Compose": _compose(
        labels={"x": MARK}, healthcheck={"test": f"curl -u a:{MARK} h"}, hostname=MARK
    ),
    "a pod, a Secret and a ConfigMap": _pod(),
    "files that are read and written": {
        **_script(
            f"echo {MARK} > /run/secrets/redis",
            f"export MC_MTU=${{X#{MARK}}}",
            f"cat > other.json <<EOF\n{_STORE}\nEOF",
            f"cat > wrong.json <<EOF\nmaster: $(tool {MARK})\nnote: {MARK}\n{MARK}\nEOF",
            SGLANG_HICACHE_MOONCAKE_CONFIG_PATH="store.json",
        ),
        "store.json": _STORE,
    },
    "wrappers": _script(
        server=f"sudo -u {MARK} -p {MARK} env NOTE={MARK} HF_TOKEN={MARK} ssh -i {MARK} h "
        f"docker run -e HF_TOKEN={MARK} -e NOTE={MARK} --label x={MARK} a/b {SERVER}"
    ),
    "a unit": {
        "x.service": f"[Service]\n# {MARK}\nEnvironment=HF_TOKEN={MARK} NOTE={MARK}\n"
        f"ExecStartPre=/bin/tool {MARK}\nExecStart=/usr/bin/{SERVER} --api-key {MARK}\n"
    },
    "a Python program": {
        "launch.py": "import os, subprocess\n"
        f"host = find('{MARK}')['{MARK}']\nos.environ['HF_TOKEN'] = '{MARK}'\n"
        f"if look('{MARK}') == '{MARK}': os.environ['MC_GID_INDEX'] = '3'\n"
        f"for each in list_of('{MARK}'): subprocess.run(['tool', '{MARK}', each])\n"
        f"subprocess.run({[*SERVER.split(), '--api-key', MARK, '--nope', MARK]!r})\n"
    },
    "other engines": _script(
        f"lmcache server --l1-size-gb 100 --nope {MARK}",
        f"vllm serve Qwen/Qwen3-14B -tp 8 --nope {MARK} --api-key {MARK} --kv-transfer-config "
        f"'{json.dumps({'kv_connector': 'MooncakeStoreConnector', 'note': MARK})}'",
        f"start_it {MARK} vllm serve Qwen/Qwen3-14B --password {MARK}",
        f"python3 train.py --hf-checkpoint Qwen/Qwen3-14B --nope {MARK} --sglang-hicache-size 30",
        f"python3 -m sglang_router.launch_router --api-key {MARK} --x {MARK} http://u:{MARK}@h:1",
    ),
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A host whose own files have them too."""
    files = {
        "/etc/docker/daemon.json": json.dumps(
            {"default-runtime": "nvidia", "proxies": {"http-proxy": f"http://u:{MARK}@p.b:1"}}
        ),
        "/etc/sysctl.d/99-x.conf": f"# of {MARK}\n  ; {MARK}\nvm.nr_hugepages = 7\n",
        "/etc/systemd/system/docker.service": f"[Service]\nEnvironment=HF_TOKEN={MARK}\n"
        f'Environment="X_PASSWORD={MARK}"\nExecStart=/usr/bin/dockerd --api-key {MARK}\n',
    }
    folder = tmp_path_factory.mktemp("host")
    small = replace(gpu_host(), gpus=gpu_host().gpus[:2], nics=gpu_host().nics[:2], files=files)
    root = build_host(folder, small)
    cmdline = root / "proc/cmdline"
    cmdline.write_text(f"{cmdline.read_text().strip()} x.password={MARK} a=http://u:{MARK}@h/\n")
    return str(root)


def _written(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files of a launch; return the words that give it."""
    for name, text in files.items():
        (folder / name).write_text(text)
    more = ["--env-file", str(folder / "more.env")] if "more.env" in files else []
    return [*more, str(folder / next(iter(files)))]


@pytest.mark.parametrize(
    ("place", "options"),
    [
        *((place, ()) for place in PLACES),
        *((place, ("--keep-names",)) for place in some(PLACES, 8)),
    ],
)
def test_nothing_of_it_is_in_a_capture(
    place: str, options: tuple[str, ...], host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a secret by its setting, nor user info and queries, nor a word not understood."""
    monkeypatch.setenv("HF_TOKEN", MARK)
    monkeypatch.setenv("HTTPS_PROXY", f"http://robot:{MARK}@proxy.b:3128")
    assert MARK in "".join(PLACES[place].values())
    words, file = _written(tmp_path, PLACES[place]), tmp_path / "host.tar.gz"
    assert run(["capture", *options, "--root", host, str(file), *words]) == 0
    files = read_archive(str(file)).files
    for name, content in files.items():
        assert MARK not in name + content.decode("latin-1"), name
    assert b"Qwen/Qwen3-14B" in files["/capture.json"]
    assert b"proxy.b:3128" in files["/capture.json"] or not options
    assert b"vm.nr_hugepages = 7" in files["/etc/sysctl.d/99-x.conf"]


@pytest.mark.slow
@pytest.mark.parametrize("place", some(PLACES, 2))
def test_a_launch_is_judged_from_its_capture_as_it_was(
    place: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that is not understood is gone, and that there was one is not: else it would pass."""
    words, file = _written(tmp_path, PLACES[place]), tmp_path / "host.tar.gz"
    assert run(["capture", "--root", host, str(file), *words]) == 0
    found = []
    for given in (["--root", str(file)], ["--root", host, *words]):
        capsys.readouterr()
        code = run(["check", "--json", *given])
        rows = json.loads(capsys.readouterr().out)["findings"]
        # An address without its user info is another host's to ask; notices alike are one finding.
        told = {
            (row["check"], row["status"]) for row in rows if not row["check"].startswith("service.")
        }
        found.append((code, told))
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


_SECRET_SETTINGS = (
    f"export MC_REDIS_PWD={MARK} HF_TOKEN={MARK} MC_STORE_USE_HUGEPAGE=maybe\n"
    f"export MOONCAKE_TE_META_DATA_SERVER='{_ADDRESS}' MOONCAKE_MASTER=127.0.0.1:1\n"
    f"tool --password={MARK} --token {MARK} https://u:{MARK}@h/x?y={MARK} | X_SECRET={MARK} other\n"
    f"start_vllm --api-key {MARK} serve\n"
    f"if [ $A = 1 ]; then tool --api-key {MARK}; fi\n"
    f"{SERVER} --api-key {MARK} --admin-api-key={MARK} --nope "
    f"--hicache-storage-backend-extra-config '{json.dumps({**_EXTRA, 'note': 1})}'\n"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *(["check", *form.split()] for form in ("-v", "--json", "--format html", "--format junit")),
        *(["facts", "--json"], ["capacity"], ["topology", "--json"], ["fit", "--json"]),
        *(["read", "-vv"], ["read", "--json"]),
        *(["plan", "--format", form] for form in FORMATS),
        ["diff", "--lock", "LOCK"],
    ],
    ids=" ".join,
)
def test_a_secret_is_in_no_answer(
    command: list[str], host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a script, and of the same server as words."""
    script, lock = tmp_path / "launch.sh", tmp_path / "lock.json"
    script.write_text(_SECRET_SETTINGS)
    words = [*SERVER.split(), "--api-key", MARK, f"--token={MARK}", f"HF_TOKEN={MARK}"]
    given = [str(lock) if word == "LOCK" else word for word in command]
    for launch in ([str(script)], ["--", *words]):
        run([*given, "--root", host, *launch])
        seen = capsys.readouterr()
        assert MARK not in seen.out + seen.err
        assert seen.out or seen.err or lock.exists()
    assert not lock.exists() or MARK not in lock.read_text()


@pytest.mark.slow
def test_a_secret_is_in_no_sizing_and_no_report_of_exec(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, report = tmp_path / "launch.sh", tmp_path / "report.json"
    script.write_text(_SECRET_SETTINGS)
    for options in ((), ("--json", "--explain")):
        run_sizing([*options, "--root", host, str(script)])
        seen = capsys.readouterr()
        assert MARK not in seen.out + seen.err
    words = [*SERVER.split(), "--api-key", MARK, f"--password={MARK}"]
    command = [sys.executable, "-m", "mooncake_preflight", "exec", "--report", str(report), "--"]
    ran = subprocess.run(
        [*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert MARK not in report.read_text() + ran.stdout + ran.stderr
    assert "SGLang" in ran.stderr


def test_the_value_of_a_flag_that_nobody_has_is_not_repeated(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang names it in its refusal, and so does the finding: the flag is what is to be mended."""
    lock = tmp_path / "lock.json"
    words = [*SERVER.split(), f"--string={MARK}", "--nope", MARK, "--hicache-sise=31"]
    for command in (
        ["check", "--json"],
        ["check", "--json", "--sglang-version", "0.5.10"],
        ["diff", "--lock", str(lock)],
    ):
        run([*command, "--root", host, "--", *words])
        seen = capsys.readouterr()
        assert MARK not in seen.out + seen.err, command
        if "--json" in command:
            assert "--string=..." in seen.out
            assert "--hicache-sise=31" in seen.out
    assert MARK not in lock.read_text()


@each_row(
    "name",
    "--api-key HF_TOKEN PGPASSWORD MC_REDIS_PWD DB_PASS JWT SSHPASS aws_secret_access_key "
    "AWS_ACCESS_KEY_ID X-API-Key apiKey OPENAI_API_KEYS REDISCLI_AUTH --ssl-keyfile-password "
    "storage.account-key Authorization clientSecret --token".split(),
)
def test_a_name_of_a_secret(name: str) -> None:
    assert is_secret(name)


@each_row(
    "name",
    "PWD bypass COMPASS num_passes max_tokens token_limit --tokenizer-path eos_token per_token "
    "MC_PKEY_INDEX rkey object_key cache-key --api-key-file secretName imagePullSecrets auth_mode "
    "password_policy author SGLANG_INIT_NEW_TOKEN_RATIO keyboard public_key".split(),
)
def test_a_name_of_no_secret(name: str) -> None:
    """A number taken for one would be gone from a capture, and its check with it."""
    assert not is_secret(name)


def test_which_names_of_servers_and_stores_are_secrets() -> None:
    """Of all flags, keys and variables that are known here: those of credentials, and no more."""
    from preflight.command_inputs.launch_record import _known_words
    from preflight.engines.programs.known_variables import known_variables

    found = {name for name in (*_known_words(), *known_variables()) if is_secret(name)}
    assert found == {
        *("admin_api_key", "api_key", "ssl_keyfile_password"),
        *("MC_METADATA_HTTP_TOKEN", "MC_REDIS_PASSWORD", "MOONCAKE_OSS_SECURITY_TOKEN"),
        *(
            f"{service}_{end}"
            for service in ("MOONCAKE_AWS", "MOONCAKE_S3", "SGLANG_S3", "MOONCAKE_OSS")
            for end in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
            if (service, end) != ("MOONCAKE_OSS", "SECRET_ACCESS_KEY")
        ),
        *("MOONCAKE_S3_SESSION_TOKEN", "SGLANG_PRECISION_HF_TOKEN", "SGLANG_DIFFUSION_SLACK_TOKEN"),
    }


@each_row(
    "line",
    [
        f"HF_TOKEN={MARK}",
        f"password: a {MARK}",
        f'{{"redis_password": "a {MARK}", "x": 1}}',
        f'bash -c "HF_TOKEN=\\"{MARK}\\" serve"',
        f"serve --api-key {MARK} --port 1",
        f"serve --api-key \\\n  '{MARK}'",
        f'["serve", "--api-key", "{MARK}"]',
        f"- serve\n- --api-key\n- {MARK}\n",
        f"env:\n- name: HF_TOKEN\n  value: {MARK}\n",
        f'Environment="A=b" HF_TOKEN={MARK}',
        f"curl http://u:{MARK}@h:1/x?y={MARK} z",
        f"etcd://a:1,http://u:p@{MARK}@h:2",
        f"MOONCAKE_MASTER=joe:{MARK}@10.1.2.3:50051",
        f"--dist-init-addr=:{MARK}@[fd00::7]:65",
        f'{{"master_server_address": "a:1;corp%5Cjoe:p@{MARK}@h.b:7"}}',
    ],
)
def test_a_secret_in_a_text_is_gone(line: str) -> None:
    """Of a host's file, or of a launch where a sentence quotes it, and where that is cut."""
    assert MARK not in clean_text(line)
    assert clean_text(line).count("\n") == line.count("\n")
    for most in range(4, 100, 7):
        assert MARK[:5] not in beginning(line, most)
    assert not any(MARK in word for word in clean_words(["bash", "-c", line]))


@each_row(
    "kept",
    [
        SERVER,
        "export MC_PKEY_INDEX=3 MAX_TOTAL_TOKENS=131072",
        "docker run --gpus all -p 30000:30000 -u 1000:1000 a/b@sha256:0123",
        "docker pull registry:5000/sglang:v0.5@sha256:0123 && docker pull sglang:v0.5@sha256:0123",
        "git clone git@github.com:kvcache-ai/Mooncake",
        "cd $PWD; OLDPWD=/srv",
        "HF_TOKEN=${HF_TOKEN} --api-key $KEY",
        'password: "${PASSWORD}"',
        "http://127.0.0.1:8080/metadata",
        "password sufficient pam_unix.so",
        "cannot reach http://h:1/x: permission denied",
        "give HF_TOKEN=... in front of this command",
    ],
)
def test_what_is_no_secret_stays(kept: str) -> None:
    assert clean_text(kept) == kept
    assert public(kept) == kept
    assert shortened(kept, 200) == kept


def test_sentences_that_name_a_secret_stay_as_they_are() -> None:
    said = "attaching is allowed by --admin-api-key at launch.sh:1; the token: it is not read"
    assert public({"text": [said]}) == {"text": [said]}
    assert (
        public("GET http://u:a@h/x?y=1 and HF_TOKEN=b") == 'GET http://h/x and HF_TOKEN="(removed)"'
    )


def test_words_of_a_command_lose_what_is_secret() -> None:
    words = ["x", "--api-key", "a", "--token=b", "HF_TOKEN=c", "--api-key", "$KEY", "--port", "1"]
    kept = ["x", "--api-key", REMOVED, f"--token={REMOVED}", f"HF_TOKEN={REMOVED}"]
    assert clean_words(words) == [*kept, "--api-key", "$KEY", "--port", "1"]


def test_every_record_that_a_launch_is_made_of_is_read_back() -> None:
    """Else a capture's launch has a plain object in its place, on which a check fails."""
    from preflight.command_inputs.launch_record import _RECORDS

    left, found = [_RECORDS["Reading"]], set()
    while left:
        for hint in get_type_hints(left.pop()).values():
            for one in _types(hint):
                if hasattr(one, "_fields") and one not in found:
                    found.add(one)
                    left.append(one)
    assert len(found) > 8
    assert found <= set(_RECORDS.values())


def _types(hint: Any) -> Iterator[Any]:
    yield hint
    for inner in get_args(hint):
        yield from _types(inner)
