"""docs/serving.md is true: its examples are run as they stand, and the clients for Node are asked."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving_server import PATIENCE, Running, serving

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "tests" / "npm" / "node_modules"
TEXT = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
OUTPUTS = {"one small horse plays.": "작은 말 한 마리가 놉니다.", "two white dogs sleep.": "하얀 개 두 마리가 잡니다."}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving() as found:
        yield found


def example(language: str, running: Running) -> str:
    """The one example of a language, asking the server of this test."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert "http://127.0.0.1:8000" in found
    return found.replace("http://127.0.0.1:8000", running.url)


def output_of(*words: str, cwd: Path) -> str:
    result = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_curl(running: Running, tmp_path: Path) -> None:
    if shutil.which("curl") is None or shutil.which("sh") is None:
        pytest.skip("there is no curl here")
    lines = [line for line in example("sh", running).splitlines() if line]
    answers = [output_of("sh", "-c", line, cwd=tmp_path) for line in lines]
    assert json.loads(answers[0]) == {"translatedText": OUTPUTS["one small horse plays."]}
    assert json.loads(answers[1])["translations"][0]["text"] == OUTPUTS["two white dogs sleep."]
    assert len(json.loads(answers[2])["sentences"][0]["alternatives"]) == 2
    assert "event: done" in answers[3]


def test_python(running: Running, tmp_path: Path) -> None:
    lines = output_of(sys.executable, "-c", example("python", running), cwd=tmp_path).splitlines()
    assert lines[0] == OUTPUTS["one small horse plays."]
    assert lines[1].startswith("<p>") and lines[1].count("<b>") == lines[1].count("</b>") == 1
    assert re.sub("<[^>]*>", "", lines[1]) == OUTPUTS["two white dogs sleep."]


def test_javascript(running: Running, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no Node here")
    (tmp_path / "example.mjs").write_text(example("js", running), encoding="utf-8")
    assert OUTPUTS["one small horse plays."] in output_of("node", "example.mjs", cwd=tmp_path)


def test_the_client_of_deepl_for_node(running: Running, tmp_path: Path) -> None:
    if shutil.which("node") is None or not (MODULES / "deepl-node").is_dir():
        pytest.skip("no deepl-node is installed (npm ci --prefix tests/npm)")
    script = """
    const deepl = require(process.argv[2]);
    const client = new deepl.DeepLClient('any', { serverUrl: process.argv[3] });
    (async () => {
      const [one, two] = await client.translateText(['one small horse plays.', 'two white dogs sleep.'], null, 'ko');
      const html = await client.translateText('<p>two white dogs sleep.</p>', 'en', 'ko', { tagHandling: 'html' });
      const targets = await client.getTargetLanguages();
      const usage = await client.getUsage();
      let fault = null;
      try { await client.translateText('x', null, 'de'); } catch (error) { fault = error.message; }
      console.log(JSON.stringify({ one, two, html, targets, usage, fault }));
    })();
    """
    (tmp_path / "ask.cjs").write_text(script, encoding="utf-8")
    found = json.loads(output_of("node", "ask.cjs", str(MODULES / "deepl-node"), running.url, cwd=tmp_path))
    assert found["one"]["text"] == OUTPUTS["one small horse plays."] and found["one"]["detectedSourceLang"] == "en"
    assert found["two"]["text"] == OUTPUTS["two white dogs sleep."]
    assert found["html"]["text"] == f"<p>{OUTPUTS['two white dogs sleep.']}</p>"
    assert [one["code"].lower() for one in found["targets"]] == ["ko"]
    assert found["usage"]["character"]["count"] == 0 and "not supported" in found["fault"]


def test_deploy_files_say_what_is_there() -> None:
    unit = (ROOT / "deploy" / "malmoi.service").read_text(encoding="utf-8")
    image = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    for text in (unit, image):
        assert "malmoi" in text and "serve" in text
    options = set(re.findall(r"--([a-z]+)", unit + image)) & {"host", "port", "keys", "open", "lazy", "runs", "set"}
    assert {"host", "keys"} <= options
