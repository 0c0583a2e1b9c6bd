"""LibreTranslate's own server with a copy that `malmoi export` made, so that the weights are the same.

In: the copy, of a model of words. Out: a folder with all that the server reads and writes, the command that starts it
and its surroundings; `UnavailableError` with the reason where it cannot be installed. It is a program of its own in an
environment of its own: nothing of it is imported here.

Set for it, as for the others: beam 5 (4 is its default), the type to compute in, batches at once, outputs of a fixed
length (`held.py`). Left as it is: how it ranks, that texts of a request are searched one after the other, that
unknown words are replaced by what they look at. It finds sentences by rules (spaCy's) and not by the network that is
its default, whose weights would have to be downloaded. That is in its favour: a network of random weights in the usual
sizes (627 kB) took 3 ms of a core for a sentence of this benchmark, rules 0.1 ms.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.environment import UnavailableError, python_of, run

VERSION = "1.9.6"
REQUIREMENTS = f"""
    annotated-doc==0.0.7 annotated-types==0.8.0 anyio==4.16.0 APScheduler==3.11.2 argos-translate-files==1.4.4
    argos-translate-lt==1.12.1 async-timeout==5.0.1 babel==2.19.0 beautifulsoup4==4.9.3 blis==1.3.4 catalogue==2.0.10
    certifi==2026.10.19.post1 chardet==7.7.0 charset-normalizer==3.5.3 click==8.5.1 cloudpathlib==0.26.0
    cloudpickle==3.1.3 commonmark==0.9.2 confection==1.3.4 ctranslate2==4.8.5 cymem==2.0.16 Deprecated==1.3.1
    expiringdict==1.2.2 filelock==4.3.1 Flask==2.2.5 flask-babel==3.1.0 Flask-Limiter==2.6.3 flask-swagger==0.2.14
    flask-swagger-ui==4.11.1 flatbuffers==25.12.19 h11==0.16.0 httpcore==1.0.9 httpx==0.28.1 idna==3.20
    itsdangerous==2.1.2 Jinja2==3.1.6 joblib==1.6.0 langdetect==1.0.9 LexiLang==1.0.7 libretranslate=={VERSION}
    limits==5.8.0 lxml==6.1.3 MarkupSafe==3.0.4 minisbd==0.9.5 murmurhash==1.0.16 networkx==3.6.1 numpy==1.26.4
    onnxruntime==1.32.0 packaging==23.1 polib==1.1.1 preshed==3.0.15 prometheus-client==0.15.0 protobuf==7.36.2
    psutil==7.2.2 pydantic==2.14.4 pydantic_core==2.50.5 Pygments==2.21.0 pymupdf==2.0 pymupdf4llm==2.0
    pymupdf_layout==2.0 pysrt==1.1.2 pytz==2026.6 PyYAML==6.0.4 redis==4.4.4 regex==2026.11.19 requests==2.31.0
    rich==12.6.0 sacremoses==0.1.1 sentencepiece==0.2.3 shellingham==1.5.4 six==1.17.0 smart_open==9.0.2
    soupsieve==4.1.3 spacy==3.8.18 spacy-legacy==3.0.12 spacy-loggers==1.0.5 srsly==2.5.6 tabulate==0.10.0
    thinc==8.3.14 tqdm==4.70.1 typer==0.29.2 typing-inspection==0.4.5 typing_extensions==4.16.0 tzlocal==5.4.5
    urllib3==2.8.0 waitress==2.1.2 wasabi==1.1.3 weasel==1.0.1 Werkzeug==2.3.8 wrapt==2.5.2
"""
HELD = Path(__file__).parent / "held.py"
BEAM = 5
THREADS = 4
"""Requests at once, which is its default."""
CONTROLS = 2
"""Ids of a vocabulary that are no words: `<unk>` and `</s>`."""
BEGINS = "\u2581"
"""What SentencePiece writes where a word begins."""
NOWHERE = "http://127.0.0.1:9/"


@dataclass(frozen=True)
class Libre:
    """A server that is ready to be started."""

    python: str
    home: Path

    def command(self, port: str, threads: int, tokens: int) -> list[str]:
        """How it is started. `-P`: what lies beside `held.py` is not for it."""
        program = Path(self.python).parent / "libretranslate"
        words = [self.python, "-P", str(HELD), str(tokens), str(program), "--host", "127.0.0.1", "--port", port]
        return [*words, "--threads", str(max(THREADS, threads)), "--disable-files-translation"]

    def surroundings(self, threads: int, precision: str) -> dict[str, str]:
        """Environment variables: everything lies in its home, and nothing is looked for elsewhere."""
        return {
            "PYTHONPATH": "",
            "ARGOS_PACKAGES_DIR": str(self.home / "packages"),
            "ARGOS_PACKAGE_INDEX": NOWHERE,
            "ARGOS_CHUNK_TYPE": "SPACY",
            "ARGOS_BEAM_SIZE": str(BEAM),
            "ARGOS_COMPUTE_TYPE": precision,
            "ARGOS_INTER_THREADS": str(threads),
            "ARGOS_INTRA_THREADS": "1",
            **{f"XDG_{kind}_HOME": str(self.home / kind.lower()) for kind in ("DATA", "CONFIG", "CACHE")},
        }


def describe(precision: str, threads: int, tokens: int) -> str:
    """What is to be known beside its figures."""
    return (
        f"LibreTranslate {VERSION}, its own server with {max(THREADS, threads)} threads and the same weights "
        f"({precision}); beam {BEAM} (its default: 4); outputs held to {tokens} tokens from outside, as it has no "
        "option for it (it would go on to 256); sentences found by its rules, which is quicker than its default, a "
        "network whose weights it downloads; texts of a request are searched one after the other, as it always does"
    )


def prepare(copy: Path, home: Path, environments: Path) -> Libre:
    """Install it, and write its home."""
    python = python_of("libretranslate", tuple(REQUIREMENTS.split()), environments, torch=False)
    # Its rules are those of an empty pipeline. It asks for a trained one at its start, unless a file says that one is
    # there; with a pipeline in the package it is never read.
    trained = home / "cache" / "argos-translate" / "spacy" / "senter" / "model"
    trained.parent.mkdir(parents=True)
    trained.touch()
    splitter = home / "spacy"
    make = "import sys, spacy; spacy.blank('xx').to_disk(sys.argv[1])"
    run([python, "-c", make, str(splitter)], "libretranslate")
    # Two packages: with fewer it would look for others at its start.
    write_package(copy, splitter, home / "packages" / "there", ("en", "xx"))
    write_package(copy, splitter, home / "packages" / "back", ("xx", "en"))
    return Libre(python, home)


def write_package(copy: Path, splitter: Path, package: Path, pair: tuple[str, str]) -> None:
    """The copy as a package of theirs: the same weights, the same words, named as SentencePiece names them."""
    model = package / "model"
    model.mkdir(parents=True)
    names: list[str] = json.loads((copy / "shared_vocabulary.json").read_text(encoding="utf-8"))
    *words, start = names
    text = json.dumps([*marked(words), start], ensure_ascii=False)
    (model / "shared_vocabulary.json").write_text(text, encoding="utf-8")
    for name in ("model.bin", "config.json"):
        (model / name).symlink_to((copy / name).resolve())
    write_pieces(words, package / "sentencepiece.model")
    (package / "spacy").symlink_to(splitter.resolve())
    facts = {"package_version": "1.0", "argos_version": "1.9", "from_code": pair[0], "to_code": pair[1]}
    languages = {"from_name": pair[0].upper(), "to_name": pair[1].upper()}
    (package / "metadata.json").write_text(json.dumps(facts | languages), encoding="utf-8")


def marked(names: Sequence[str]) -> list[str]:
    """Names of a vocabulary of words as SentencePiece's; control symbols keep theirs."""
    return [*names[:CONTROLS], *(BEGINS + name for name in names[CONTROLS:])]


def write_pieces(names: Sequence[str], path: Path) -> None:
    """A SentencePiece model that cuts at spaces and knows just these words."""
    import sentencepiece

    trainer: Any = sentencepiece.SentencePieceTrainer
    trainer.train(
        sentence_iterator=iter(names[CONTROLS:]),
        model_prefix=str(path.with_suffix("")),
        model_type="word",
        vocab_size=len(names),
        character_coverage=1.0,
        normalization_rule_name="identity",
        unk_id=0,
        eos_id=1,
        bos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    path.with_suffix(".vocab").unlink()
    processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = {processor.id_to_piece(index) for index in range(processor.get_piece_size())}
    if pieces != set(marked(names)):
        raise UnavailableError("libretranslate: SentencePiece did not keep the words of the model's vocabulary")
