"""The files of the web page: what they hold, what they never hold, and the policy that they are served under."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from explain_toys import make_model
from malmoi.config.model import TransformerConfig
from malmoi.explain import explain
from malmoi.report.explanation import explanation_page
from malmoi.serving.page_files import page_files, page_policy

PAGE = Path(__file__).parents[3] / "src" / "malmoi" / "serving" / "page"
VENDOR = PAGE / "vendor"
NODE = Path(__file__).parents[2] / "npm" / "node_modules"
SCRIPTS = sorted(PAGE.glob("*.js"))
MANIFEST = json.loads((VENDOR / "manifest.json").read_text(encoding="utf-8"))
VENDORED = [(package, file) for package in MANIFEST["packages"] for file in package["files"]]
LONGEST_FUNCTION = 80
TYPES = {"preact": "preact", "hooks": "preact/hooks", "htm": "htm", "uplot": "uplot"}


def text_of(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def page_texts() -> dict[str, list[str]]:
    """The page's own words, by key."""
    found: dict[str, list[str]] = {}
    for line in text_of("texts.js").splitlines():
        if match := re.fullmatch(r'  ("[\w-]+"): (\[.*\]),', line):
            key = json.loads(match[1])
            assert key not in found
            found[key] = json.loads(match[2])
    assert len(found) == sum(": [" in line for line in text_of("texts.js").splitlines())
    return found


def test_every_file_is_served_under_its_own_name() -> None:
    files = page_files()
    on_disk = {str(path.relative_to(PAGE)) for path in PAGE.rglob("*") if path.is_file()}
    assert set(files) == on_disk | {""}
    assert files[""] == files["index.html"]
    assert files["main.js"].media_type.startswith("text/javascript")
    assert files["main.js"].content == (PAGE / "main.js").read_bytes()
    assert len({file.etag for file in files.values()}) == len(on_disk)


@pytest.mark.parametrize(("package", "file"), VENDORED, ids=[file["file"] for _, file in VENDORED])
def test_what_comes_from_others_is_what_the_manifest_says(package: dict[str, str], file: dict[str, object]) -> None:
    content = (VENDOR / str(file["file"])).read_bytes()
    assert hashlib.sha256(content).hexdigest() == file["sha256"]
    for change in file.get("changes", []):  # type: ignore[attr-defined]
        new, old = change["new"].encode(), change["old"].encode()
        # What was taken out stood at the end.
        content = (
            content.replace(new, old) if new else content.rstrip(b"\n") + old + content[len(content.rstrip(b"\n")) :]
        )
    assert hashlib.sha256(content).hexdigest() == file["source_sha256"]
    assert package["license"] in {"MIT", "Apache-2.0"}
    assert package["source"] == f"npm:{package['name']}@{package['version']}"


def test_nothing_else_comes_from_others() -> None:
    assert {path.name for path in VENDOR.iterdir()} == {file["file"] for _, file in VENDORED} | {"manifest.json"}


def test_licences_are_with_what_they_are_for() -> None:
    for package in MANIFEST["packages"]:
        assert (VENDOR / f"{package['name']}.LICENSE.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [*SCRIPTS, *sorted(VENDOR.glob("*.js"))], ids=lambda path: path.name)
def test_modules_import_only_files_that_are_there(path: Path) -> None:
    # A bare name would need an import map, which is an inline script.
    pattern = r"""^(?:import|export)\b[^;]*?\bfrom\s*["']([^"'\n]+)["']"""
    for name in re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE):
        assert name.startswith("./")
        assert (path.parent / name).is_file()


def test_nothing_makes_markup_from_text() -> None:
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function"):
            assert word not in text, path
    assert not re.search(r"<script(?! (type=\"module\" )?src=)|<style| style=| on\w+=", text_of("index.html"))


def test_nothing_names_another_place() -> None:
    for path in [*SCRIPTS, *PAGE.glob("*.css"), PAGE / "index.html"]:
        assert not re.search(r"https?://|//[a-z0-9-]+\.", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_modules_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400
    starts = [number for number, line in enumerate(lines) if re.match(r"(export )?(async )?function", line)]
    for start in starts:
        end = next(number for number in range(start, len(lines)) if lines[number] == "}")
        assert end - start < LONGEST_FUNCTION, f"{path.name}, line {start + 1}"
    assert lines[0] in (
        "// @ts-check",
        "// Before anything is painted: the light and the language that this browser chose last.",
    )


def test_every_text_stands_in_both_languages() -> None:
    for key, (english, korean) in page_texts().items():
        assert english and korean, key
        assert set(re.findall(r"\{\w+\}", english)) == set(re.findall(r"\{\w+\}", korean)), key
        assert not re.search("[가-힣]", english), key


def test_every_text_that_is_asked_for_is_there_and_no_other() -> None:
    keys = set(page_texts())
    code = "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS if path.name != "texts.js")
    asked = set(re.findall(r'\bt\(\s*"([\w-]+)"', code))
    begun = set(re.findall(r"`([\w-]+-)\$\{", code))
    assert asked <= keys
    named = {key for key in keys if any(key.startswith(beginning) for beginning in begun)}
    assert {key for key in keys - asked - named if f'"{key}"' not in code} == set()


def test_the_policy_lets_an_explanation_run_and_nothing_else_that_is_inline() -> None:
    small = TransformerConfig(width=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=8)
    page = explanation_page(explain(make_model(small, ["a b"]), "a b"), "ko")
    inline = re.findall(r"<(script|style)>(.*?)</\1>", page, re.DOTALL)
    assert [name for name, _ in inline] == ["style", "script"]
    rules = dict(rule.split(" ", 1) for rule in page_policy().split("; "))
    assert rules["default-src"] == "'self'"
    for name, text in inline:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'self' 'sha256-{digest}'"


def test_types_are_right(tmp_path: Path) -> None:
    compiler = NODE / ".bin" / "tsc"
    if not compiler.exists():
        pytest.skip("no TypeScript is installed (npm ci --prefix tests/npm)")
    shutil.copytree(PAGE, tmp_path / "page")
    (tmp_path / "node_modules").symlink_to(NODE)
    for name, module in TYPES.items():
        (tmp_path / "page" / "vendor" / f"{name}.js").unlink()
        names = "{ default }" if name == module else "*"
        names = "*" if name == "preact" else names
        (tmp_path / "page" / "vendor" / f"{name}.d.ts").write_text(
            f'export {names} from "{module}";\n', encoding="utf-8"
        )
    options = ["--noEmit", "--allowJs", "--checkJs", "--strict", "--noImplicitAny", "false", "--skipLibCheck"]
    target = ["--target", "es2023", "--lib", "es2023,dom,dom.iterable,dom.asynciterable"]
    modules = ["--module", "nodenext", "--moduleResolution", "nodenext"]
    command = [str(compiler), *options, *target, *modules, "page/main.js", "page/early.js"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
