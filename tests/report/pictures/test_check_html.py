"""``check --format html`` and ``check --memory-map``, as users meet them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.builders.synthetic import GIB, MIB, PATIENCE_SECONDS, SyntheticHost, build_host, gpu_host
from tests.checks.test_synthetic import FITTED, LAUNCH, NICS
from tests.paths import ROOT
from tests.report.pictures.markup import Markup, faults

Out = pytest.CaptureFixture[str]

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host that the launch fits on, built once: it is only read."""
    return build_host(tmp_path_factory.mktemp("fitted"), FITTED)


PAGE = ("--format", "html", "--output")


def checked(
    path: Path, host: SyntheticHost | Path, text: str, *options: str, name: str = "launch.sh"
) -> int:
    """``check`` of a synthetic host, or of one that is built, with a launch below ``path``."""
    script = path / name
    script.write_text(text)
    tree = host if isinstance(host, Path) else path / "tree"
    if not isinstance(host, Path):
        tree.mkdir()
        build_host(tree, host)
    words = ["check", "--root", str(tree), "--timeout", str(PATIENCE_SECONDS), *options]
    versions = ["--mooncake-version", "0.3.13.post1", "--sglang-version", "0.5.23"]
    return run([*words, *versions, str(script)])


def test_a_page_beside_the_answer(fitted: Path, tmp_path: Path, capsys: Out) -> None:
    """The text is as without it; the page has the verdict, the pictures and the inputs."""
    file = tmp_path / "page.html"
    plain = checked(tmp_path, fitted, LAUNCH)
    before = capsys.readouterr().out
    assert checked(tmp_path, fitted, LAUNCH, "--format", "text", *PAGE, str(file)) == plain
    assert capsys.readouterr().out == before
    document = file.read_text()
    assert faults(document) == []
    assert file.stat().st_mode & 0o777 == 0o644
    text = Markup(document).text
    for said in (
        before.partition(": ")[2].split()[0],  # the launch, as the verdict names it
        "node 0: 1.00 TiB",
        "L2 on huge pages",
        "GPUs and NICs",
        "GPU7",
        "mlx5_7",
        "What the cache holds",
        "launch.sh:7 rank 7",
        "--hicache-size 30",
        "6.8.0-60-generic",
    ):
        assert said in text
    assert "Not shown" not in text
    assert sorted(tmp_path.iterdir()) == [tmp_path / each for each in ("launch.sh", "page.html")]


def test_the_same_page_twice(
    fitted: Path,
    tmp_path: Path,
    capsys: Out,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767323040")
    pages = []
    for _ in range(2):
        checked(tmp_path, fitted, LAUNCH, "--format", "html")
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    assert "2026-01-02 03:04 UTC" in pages[0]


def test_names_of_the_host_and_the_launch_are_text(tmp_path: Path, capsys: Out) -> None:
    """A model, a file, a GPU, a kernel and a command line that are written as markup."""
    gpus = [gpu._replace(name=HOSTILE) for gpu in gpu_host().gpus]
    files = {"/proc/sys/kernel/osrelease": HOSTILE, "/etc/os-release": f'ID="{HOSTILE}"'}
    host = replace(FITTED, gpus=gpus, files=files, kernel=HOSTILE)
    text = LAUNCH.replace("Qwen/Qwen3-32B", f"'{HOSTILE}'").replace(NICS, f"'{HOSTILE}'", 1)
    checked(tmp_path, host, text, "--format", "html", name=f"{HOSTILE}.sh")
    document = capsys.readouterr().out
    assert faults(document) == []
    assert Markup(document).text.count(HOSTILE) > 8


def test_secrets_of_the_launch_stay_in_it(fitted: Path, tmp_path: Path, capsys: Out) -> None:
    """Variables and flags with secrets in them are no part of the page."""
    text = f"export HF_TOKEN=hunter2 REDIS_PASSWORD=hunter2\n{LAUNCH} --api-key hunter2"
    checked(tmp_path, fitted, text, "--format", "html")
    document = capsys.readouterr().out
    assert "rank 7" in document
    assert "hunter2" not in document


def test_a_curve_for_the_benchmark_that_the_launch_starts(
    fitted: Path, tmp_path: Path, capsys: Out
) -> None:
    benchmark = (
        "python3 bench_multiturn.py --model-path Qwen/Qwen3-32B --num-clients 80 --num-rounds 10 "
        "--request-length 2048 --output-length 1 --disable-auto-run --enable-round-barrier"
    )
    checked(tmp_path, fitted, f"{LAUNCH} &\n{benchmark}\n", "--format", "html")
    document = capsys.readouterr().out
    assert faults(document) == []
    assert 'class="line t1"' in document
    assert "Round by round" in Markup(document).text


def test_an_error_leaves_a_page_that_says_so(tmp_path: Path, capsys: Out) -> None:
    """As with junit: whoever collects pages finds one."""
    file = tmp_path / "page.html"
    assert run(["check", *PAGE, str(file), "--root", str(tmp_path / "none")]) == 64
    document = file.read_text()
    assert faults(document) == []
    assert str(tmp_path / "none") in Markup(document).text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*PAGE, "/nonexistent/page.html"], "--output /nonexistent/page.html: No such file"),
        ([*PAGE, "/"], "--output /:"),
        ([*PAGE, "-", "--json"], "both take standard output"),
        (["--ascii"], "--ascii is for --memory-map"),
        (["--memory-map", "--json"], "--memory-map is drawn below the text"),
        (["--memory-map", "--format", "html"], "--memory-map is drawn below the text"),
        (["--memory-map", "--format", "nagios"], "--memory-map is drawn below the text"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    fitted: Path, tmp_path: Path, capsys: Out, options: list[str], said: str
) -> None:
    code = run(["check", "--root", str(fitted), "--only", "memory.*", *options])
    told = capsys.readouterr()
    assert said in told.out + told.err
    assert code == (3 if "nagios" in options else 64)


def test_a_page_that_cannot_be_replaced_stays_whole(
    fitted: Path, tmp_path: Path, capsys: Out
) -> None:
    """A folder in the way: nothing is left beside it."""
    folder = tmp_path / "page.html"
    folder.mkdir()
    assert run(["check", "--root", str(fitted), "--only", "memory.*", *PAGE, str(folder)]) == 64
    assert f"--output {folder}: Is a directory" in "".join(capsys.readouterr())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["page.html"]


def test_the_memory_map_stands_below_the_text(fitted: Path, tmp_path: Path, capsys: Out) -> None:
    checked(tmp_path, fitted, LAUNCH, "--memory-map", "--ascii")
    text = capsys.readouterr().out
    checked(tmp_path, fitted, LAUNCH)
    head, _, picture = text.partition("Memory after this launch\n")
    assert head == f"{capsys.readouterr().out}\n"
    assert picture.startswith("node 0: 1.00 TiB\n  [oooLLLLLLLLLLSSSBP....")
    assert picture.isascii()


def test_the_documented_map_of_too_much_is_printed(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the L2 of the launch, and a quarter of the pool."""
    (short,) = re.findall(
        r"```\n(node 0.*?\n)```", (ROOT / "docs/pictures.md").read_text(), re.DOTALL
    )
    monkeypatch.setenv("COLUMNS", "80")
    small = replace(gpu_host(), pools={2 * MIB: 20000, GIB: 0})
    text = LAUNCH.replace("--hicache-size 30", "--hicache-size 300")
    checked(tmp_path, small, text, "--memory-map", "--ascii")
    assert short in capsys.readouterr().out


def test_no_picture_is_loaded_without_being_asked_for(fitted: Path, tmp_path: Path) -> None:
    words = ["check", "--root", str(fitted)]
    code = f"import sys; from preflight.cli.main import run; run({words!r})"
    tail = "; print([name for name in sys.modules if 'pictures' in name], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stderr.strip().splitlines()[-1] == "[]"
