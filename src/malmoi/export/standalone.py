"""Translate with an exported model: this file stands beside it and needs ctranslate2 and sentencepiece alone.

    python translate.py < sentences > translations

In: raw text, one sentence a line. Out: raw text, line for line. In Python: `Exported(folder).translate(["..."])`.

What it does: text in composed Unicode (NFC) becomes ids as in training; characters that training never saw are left
out; ids that may never come out are suppressed; outputs are ranked by the formula that the model was measured with.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import ctranslate2

UNKNOWN_ID, END_ID = 0, 1
NUM_CONTROLS = 2
LINE_BREAKS = str.maketrans({"\n": " ", "\r": " ", "\0": None})
# SentencePiece writes a space as U+2581 and has a use of its own for U+2585, so that text holds them in disguise.
ESCAPES = {"\x1a": "\x1a0", "\u2581": "\x1a1", "\u2585": "\x1a2"}
ESCAPE_TABLE = str.maketrans(ESCAPES)
UNESCAPES = {escaped: character for character, escaped in ESCAPES.items()}
ESCAPED = re.compile("\x1a[012]")
STRAY_BYTES = re.compile("[\udc80-\udcff]+")
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def clean(text: str) -> str:
    """Text in composed form, on one line; half a surrogate pair becomes U+FFFD."""
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return unicodedata.normalize("NFC", text).translate(LINE_BREAKS)


def is_blank(text: str) -> bool:
    """Whether nothing can be seen."""
    return all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text)


class Side:
    """The tokeniser of one side: text to ids and back."""

    def __init__(self, folder: Path, manifest: Any, side: str) -> None:
        name = "shared" if "shared" in manifest["sides"] else side
        self.kind = str(manifest["sides"][name]["kind"])
        self.separator = " " if self.kind == "words" else ""
        self.unseen = frozenset[int](manifest["unseen_source_ids"] if side == "source" else ())
        self.processor: Any = None
        if self.kind in ("bpe", "unigram"):
            import sentencepiece

            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}-pieces.model"))
        elif self.kind != "bytes":
            symbols = json.loads((folder / f"{name}-symbols.json").read_text(encoding="utf-8"))
            self.symbols = [str(symbol) for symbol in symbols]
            self.ids = {symbol: index for index, symbol in enumerate(self.symbols, start=NUM_CONTROLS)}

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without those of what training never saw."""
        text = clean(text)
        ids = self.spell(text)
        if self.unseen.isdisjoint(ids):
            return ids
        # A whole character (or word) goes, never half of its bytes.
        symbols = text.split() if self.separator else list(text)
        kept = self.separator.join(symbol for symbol in symbols if self.unseen.isdisjoint(self.spell(symbol)))
        # White space alone would be read as a sentence all the same.
        return [index for index in self.spell(kept) if index not in self.unseen] if kept.strip() else []

    def spell(self, text: str) -> list[int]:
        """Ids of a text that is clean."""
        if self.processor is not None:
            return list(self.processor.encode(text.translate(ESCAPE_TABLE)))
        if self.kind == "bytes":
            return [byte + NUM_CONTROLS for byte in text.encode("utf-8")]
        return [self.ids.get(symbol, UNKNOWN_ID) for symbol in (text.split() if self.separator else text)]

    @cached_property
    def contents(self) -> list[bytes]:
        """The bytes behind each id, for tokenisers that cut below characters."""
        if self.kind == "bytes":
            return [b"", b"", *(bytes([byte]) for byte in range(256))]
        contents = [b"", b""]
        for index in range(NUM_CONTROLS, self.processor.get_piece_size()):
            piece = str(self.processor.id_to_piece(index))
            maybe_byte = BYTE_PIECE.fullmatch(piece) if self.processor.is_byte(index) else None
            contents.append(
                bytes([int(maybe_byte[1], 16)]) if maybe_byte else piece.replace("\u2581", " ").encode("utf-8")
            )
        return contents

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; each run of bytes that spells no character becomes one U+FFFD."""
        if self.kind in ("characters", "words"):
            return self.separator.join(self.symbols[index - NUM_CONTROLS] for index in ids if index >= NUM_CONTROLS)
        data = b"".join(self.contents[index] for index in ids)
        text = STRAY_BYTES.sub("\ufffd", data.decode("utf-8", "surrogateescape")).translate(LINE_BREAKS)
        if self.processor is None:
            return text
        return ESCAPED.sub(lambda match: UNESCAPES[match[0]], text.removeprefix(" "))


class Exported:
    """The model of a folder. Options are those of `ctranslate2.Translator`, as `intra_threads` or `device`."""

    def __init__(self, folder: str | Path, **options: Any) -> None:
        folder = Path(folder)
        manifest = json.loads((folder / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
        self.source = Side(folder / "tokenizer", manifest, "source")
        self.target = Side(folder / "tokenizer", manifest, "target")
        self.settings = json.loads((folder / "decoding.json").read_text(encoding="utf-8"))
        self.source_names = read_names(folder, "source")
        self.target_ids = {name: index for index, name in enumerate(read_names(folder, "target"))}
        self.translator = ctranslate2.Translator(str(folder), **options)

    def encode(self, text: str) -> list[str]:
        """A source as CTranslate2 wants it; `</s>` is added there."""
        return [self.source_names[index] for index in self.source.encode(text)]

    def decode(self, tokens: Sequence[str]) -> str:
        """The text of an output."""
        return self.target.decode([self.target_ids[token] for token in tokens])

    def translate(self, texts: Sequence[str], beam_size: int | None = None) -> list[str]:
        """The best translation of every text; a blank text, and one that training saw nothing of, gives nothing."""
        settings = self.settings
        encoded = {number: self.encode(text) for number, text in enumerate(texts) if not is_blank(text)}
        rows = {number: row for number, row in encoded.items() if row and self.has_room(row, number)}
        if not rows:
            return [""] * len(texts)
        longest = max(map(len, rows.values()))
        most = int(longest * settings["max_length_ratio"]) + settings["max_length_extra"]
        most = min(max(most, settings["min_length"]), settings["max_length"]) + 1
        beam = beam_size or settings["beam_size"]
        results = self.translator.translate_batch(
            list(rows.values()),
            beam_size=beam,
            num_hypotheses=beam,
            # Scores are sums over n, from which any other formula follows; 0 would end the search earlier.
            length_penalty=0 if settings["length_penalty"] == "none" else 1,
            suppress_sequences=[[token] for token in settings["suppress"]],
            max_input_length=0,
            max_decoding_length=min(most, settings["max_positions"] or most),
            min_decoding_length=settings["min_length"],
            max_batch_size=32,
            return_scores=True,
            return_end_token=True,
        )
        answers = dict(zip(rows, map(self.best, results), strict=True))
        return [answers.get(number, "") for number in range(len(texts))]

    def has_room(self, row: Sequence[str], number: int) -> bool:
        """Whether the model has positions for a source; CTranslate2 would cut it without a word."""
        most = self.settings["max_positions"]
        if most is None or len(row) < most:
            return True
        sys.stderr.write(
            f"sentence {number + 1}: {len(row) + 1} tokens, but the model has {most} positions: left out\n"
        )
        return False

    def best(self, result: Any) -> str:
        """The output with the best score by the model's own formula."""
        ranked = zip(result.scores, result.hypotheses, strict=True)
        return self.decode(max(ranked, key=lambda one: self.rank(one[0], len(one[1])))[1])

    def rank(self, score: float, length: int) -> float:
        """The score by the model's formula: Wu et al. (2016), n^alpha, or none; n counts `</s>`."""
        kind, alpha = self.settings["length_penalty"], self.settings["length_alpha"]
        if kind == "none":
            return score
        return score * length / (((5 + length) / 6) ** alpha if kind == "wu" else length**alpha)


def read_names(folder: Path, side: str) -> list[str]:
    """What CTranslate2 calls the ids of one side."""
    shared = folder / "shared_vocabulary.json"
    return json.loads((shared if shared.exists() else folder / f"{side}_vocabulary.json").read_text(encoding="utf-8"))


def main() -> None:
    """Standard input to standard output."""
    lines = [line.removesuffix("\r") for line in sys.stdin.buffer.read().decode("utf-8").split("\n")]
    if not lines[-1]:
        lines.pop()
    translations = Exported(Path(__file__).parent).translate(lines)
    sys.stdout.buffer.write("".join(f"{one}\n" for one in translations).encode("utf-8"))


if __name__ == "__main__":
    main()
