"""What is calculated about large runs: the page is what the script prints, and the files to start from are sound."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from malmoi.commands.plan import TrainRequest, read_given
from malmoi.data.prepare import Facts, SideFacts

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks are scripts: what they import lies beside them."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield
    for name in [name for name in sys.modules if name in ("scaling", "growth", "command")]:
        del sys.modules[name]


def test_the_page_holds_what_the_script_prints() -> None:
    from scaling import tables

    assert tables() in (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8"), (
        "python benchmarks/scaling.py --write docs/scaling.md"
    )


def test_sizes_are_those_of_the_paper() -> None:
    """Table 3: 65 and 213 million parameters, with a vocabulary of 37,000 in base."""
    from scaling import open_model

    base, big = open_model("paper-base"), open_model("paper-big")
    assert base.num_parameters == pytest.approx(65e6, rel=0.04)
    assert big.num_parameters == pytest.approx(213e6, rel=0.02)
    assert base.in_layers + 37_001 * 512 == pytest.approx(base.num_parameters, rel=1e-3)
    # Six operations for each weight that a token meets: an encoder's on one side, all others on the other.
    assert base.operations == pytest.approx(6 * base.num_parameters * base.tokens, rel=0.05)


def test_memory_falls_with_smaller_parts_and_more_gpus() -> None:
    from scaling import open_model

    model = open_model("paper-big")
    assert model.model_bytes(1, bf16=False, fsdp=False) == 16 * model.num_parameters
    assert model.model_bytes(8, bf16=False, fsdp=True) < model.model_bytes(1, bf16=False, fsdp=False) / 2
    assert (
        model.pass_bytes(1024, bf16=True) < model.pass_bytes(25_000, bf16=True) < model.pass_bytes(25_000, bf16=False)
    )


STUB = """#!/bin/sh
case $(basename "$0") in
scontrol) echo node1; echo node2;;
srun) exec "$@";;
*) echo "$(basename "$0")" "$@" >>"$CALLS";;
esac
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("preset", ["paper-base", "paper-big"])
@pytest.mark.parametrize("name", ["wmt14-en-de.sh", "wmt14-en-de.slurm"])
def test_files_to_start_from_say_what_malmoi_understands(tmp_path: Path, name: str, preset: str) -> None:
    for program in ("malmoi", "torchrun", "srun", "scontrol"):
        path = tmp_path / program
        path.write_text(STUB, encoding="utf-8")
        path.chmod(0o755)
    given = ["t.en", "t.de", "v.en", "v.de", "run"] if name.endswith(".sh") else ["store", "run"]
    cluster = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    environment = {**os.environ, **cluster, "PRESET": preset, "CALLS": str(tmp_path / "calls")}
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    script = str(ROOT / "deploy" / name)
    subprocess.run(["bash", script, *given, "training.seed=5"], check=True, env=environment, cwd=tmp_path)
    *maybe_prepare, train = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert len(maybe_prepare) == name.endswith(".sh")
    launcher, _, command = train.partition(" -m malmoi train ")
    assert launcher.startswith("torchrun ") and "--nproc-per-node=8" in launcher and "--max-restarts=3" in launcher
    words = command.split()
    store = words[0]
    assert store == ("run-store" if maybe_prepare else "store")
    assert all(f" --out {store}" in one and f"--preset {preset}" in one for one in maybe_prepare)
    assert words[1:5] == ["--preset", preset, "--out", "run"]
    (tmp_path / store).mkdir()
    request = TrainRequest(words=(str(tmp_path / store), *words[5:]), out=tmp_path / "run", preset=preset)
    side = SideFacts(mean_characters=100.0, long_characters=300, mean_words=20.0)
    config = read_given(request).config(Facts(4_500_000, side, side))
    assert (config.training.precision, config.training.save_every, config.training.seed) == ("bf16", 500, 5)
    assert config.training.batch_tokens == 25_000
