"""BPE and unigram subwords by SentencePiece, with every character of the text kept.

In: text. Out: ids, 0 for unknown (never used: an unlisted character becomes its bytes) and 1 for the end; and back.
SentencePiece writes a space as U+2581 and skips training text that holds U+2585; both are escaped before it sees
them, with U+001A ("substitute") and a digit, and so is U+001A itself, so that no two texts become one.
"""

import io
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import sentencepiece

from malmoi.config.text import TokenizerKind
from malmoi.errors import CheckpointError, DataError
from malmoi.log import get_logger
from malmoi.text.ids import (
    END_ID,
    END_SYMBOL,
    SPACE_SYMBOL,
    UNKNOWN_ID,
    UNKNOWN_SYMBOL,
    control_name,
    decode_bytes,
    forbidden_ids,
)
from malmoi.text.lines import normalize, one_line
from malmoi.text.sampling import Pieces, SubwordSampler

MODEL_FILE = "pieces.model"
MAX_LINE_BYTES = 20_000
"""A longer line is left out of the training of subwords: SentencePiece needs time and memory that grow with it."""
MAX_LINES = 1_000_000
MAX_BYTES = 100_000_000
"""Subwords are learned from at most so many lines and bytes, drawn by chance from all."""
NUM_FIXED_PIECES = 2 + 256
"""Unknown, end, and one piece for each byte."""
ESCAPE = "\x1a"
ESCAPES = {ESCAPE: ESCAPE + "0", SPACE_SYMBOL: ESCAPE + "1", "\u2585": ESCAPE + "2"}
UNESCAPES = {escaped: character for character, escaped in ESCAPES.items()}
ESCAPE_TABLE = str.maketrans(ESCAPES)
ESCAPED = re.compile(f"{ESCAPE}[012]")
# Text that spells a piece of SentencePiece's own is cut out of the training text by it, letters and all.
OWN_PIECE = re.compile(r"<(?=/s>|unk>|0x[0-9A-F]{2}>)")
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class SubwordTokenizer:
    """A SentencePiece model as stored in `pieces.model`."""

    unknown_id = UNKNOWN_ID
    end_id = END_ID

    def __init__(self, kind: Literal["bpe", "unigram"], model: bytes) -> None:
        self.kind: TokenizerKind = kind
        self._model = model
        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = int(self._processor.get_piece_size())
        self._pieces = [str(self._processor.id_to_piece(index)) for index in range(self.size)]
        self._bytes = dict(self._find_bytes())
        self._contents = [
            b""
            if index in (UNKNOWN_ID, END_ID)
            else self._bytes.get(index, piece.replace(SPACE_SYMBOL, " ").encode("utf-8"))
            for index, piece in enumerate(self._pieces)
        ]

    def _find_bytes(self) -> Iterator[tuple[int, bytes]]:
        for index, piece in enumerate(self._pieces):
            match = BYTE_PIECE.fullmatch(piece)
            if match and self._processor.is_byte(index):
                yield index, bytes([int(match[1], 16)])

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without an end symbol."""
        return self._processor.encode(prepare(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts; much faster than one at a time."""
        if len(texts) == 1:
            # A list goes through a pool of threads even then, for eight times the time.
            return [self.encode(texts[0])]
        return self._processor.encode(prepare_batch(texts), num_threads=1)

    def encode_sampled(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Ids of many texts, cut by chance; the same for the same arguments.

        `alpha` is the chance that BPE leaves out a merge (Provilkov et al., 2020), or the power that unigram raises its
        probabilities to (Kudo, 2018): at 0 all ways of cutting a word are equally likely, at 1 as the model has them.
        """
        return self._sampler.sample(prepare_batch(texts), alpha, seed)

    @cached_property
    def _sampler(self) -> SubwordSampler:
        processor = self._processor
        ids = {
            piece: index
            for index, piece in enumerate(self._pieces)
            if not (processor.is_byte(index) or processor.is_control(index) or processor.is_unknown(index))
        }
        scores = {piece: float(processor.get_score(index)) for piece, index in ids.items()}
        byte_ids = {content: index for index, content in self._bytes.items()}
        pieces = Pieces(ids, scores, [byte_ids[bytes([byte])] for byte in range(256)])
        return SubwordSampler("bpe" if self.kind == "bpe" else "unigram", pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of any ids; a run of bytes that spells no character gives one U+FFFD."""
        contents, size = self._contents, self.size
        text = decode_bytes(b"".join([contents[index] for index in ids if 0 <= index < size])).removeprefix(" ")
        return ESCAPED.sub(lambda match: UNESCAPES[match[0]], text) if ESCAPE in text else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One visible name for each id, with U+2581 for a space."""
        return [self._pieces[index] if 0 <= index < self.size else control_name(index, self.size) for index in ids]

    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that no output may hold."""
        return self._forbidden

    @cached_property
    def _forbidden(self) -> tuple[int, ...]:
        return forbidden_ids(self._contents)

    def fallback_ids(self) -> tuple[int, ...]:
        """Ids that stand for what has no piece: unknown and all bytes."""
        return (UNKNOWN_ID, *self._bytes)

    def to_files(self) -> dict[str, bytes]:
        """The model as SentencePiece wrote it."""
        return {MODEL_FILE: self._model}


def prepare(text: str) -> str:
    """A text as SentencePiece sees it."""
    text = one_line(normalize(text))
    return text.translate(ESCAPE_TABLE) if any(character in text for character in ESCAPES) else text


def prepare_batch(texts: Sequence[str]) -> list[str]:
    """Texts as SentencePiece sees them; one look at them all finds out whether there is anything to do."""
    everything = "".join(texts)
    if everything.isascii() and not any(character in everything for character in ("\n", "\r", "\0", ESCAPE)):
        return list(texts)
    return [prepare(text) for text in texts]


def train_subwords(
    kind: Literal["bpe", "unigram"], texts: Iterable[str], *, vocabulary_size: int, seed: int
) -> SubwordTokenizer:
    """Learn subwords from texts, of which a part drawn by `seed` is kept in memory if they are many.

    A size that the text cannot fill is lowered, a size that cannot hold all its characters is raised, and told.
    Errors: `DataError` where no line is left to learn from.
    """
    lines = draw_lines(texts, seed)
    characters = set[str]().union(*lines) | {" "}
    smallest = NUM_FIXED_PIECES + len(characters)
    wanted = max(vocabulary_size, smallest)
    output = io.BytesIO()
    train: Any = sentencepiece.SentencePieceTrainer.train
    train(
        sentence_iterator=iter(lines),
        model_writer=output,
        model_type=kind,
        vocab_size=wanted,
        hard_vocab_limit=False,
        character_coverage=1.0,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        unk_id=UNKNOWN_ID,
        eos_id=END_ID,
        bos_id=-1,
        pad_id=-1,
        # The lines were measured already, so that none is skipped here without a word.
        max_sentence_length=MAX_LINE_BYTES,
        shuffle_input_sentence=False,
        num_threads=1,
        minloglevel=2,
    )
    tokenizer = SubwordTokenizer(kind, output.getvalue())
    if tokenizer.size > vocabulary_size:
        get_logger().info(
            f"vocabulary: {tokenizer.size:,} pieces instead of {vocabulary_size:,}, "
            f"since the text has {len(characters):,} different characters and each byte has a piece"
        )
    elif tokenizer.size < vocabulary_size:
        get_logger().info(f"vocabulary: {tokenizer.size:,} pieces; the text does not fill {vocabulary_size:,}")
    return tokenizer


def draw_lines(texts: Iterable[str], seed: int) -> list[str]:
    """Lines to learn from, prepared; blank and overlong ones are left out.

    All, as long as they stay below `MAX_LINES` and `MAX_BYTES`; whenever they do not, each line met so far or later is
    kept with half the chance that it had before.
    """
    generator = random.Random(seed)
    lines: list[str] = []
    num_bytes = num_long = 0
    chance = 1.0
    for text in texts:
        line = OWN_PIECE.sub("< ", prepare(text))
        size = len(line.encode("utf-8"))
        if size > MAX_LINE_BYTES:
            num_long += 1
        elif line and (chance == 1.0 or generator.random() < chance):
            lines.append(line)
            num_bytes += size
            if len(lines) > MAX_LINES or num_bytes > MAX_BYTES:
                lines = [line for line in lines if generator.random() < 0.5]
                num_bytes = sum(len(line.encode("utf-8")) for line in lines)
                chance /= 2
    if chance < 1.0:
        get_logger().info(f"vocabulary: learned from {len(lines):,} lines, {chance:.2%} of all, drawn by chance")
    if num_long:
        get_logger().warning(
            f"vocabulary: {num_long:,} line(s) longer than {MAX_LINE_BYTES:,} bytes were left out of learning subwords"
        )
    if not lines:
        fault = f"every line is longer than {MAX_LINE_BYTES:,} bytes" if num_long else "there is no text"
        raise DataError(f"no subwords can be learned: {fault}")
    return lines


def load_subwords(kind: Literal["bpe", "unigram"], files: Mapping[str, bytes], where: str) -> SubwordTokenizer:
    """The tokeniser that `to_files` stored; a fault is a `CheckpointError` that names the file."""
    place = f"{where}-{MODEL_FILE}"
    if not files.get(MODEL_FILE):
        raise CheckpointError(f"{place}: the file is missing or empty")
    try:
        tokenizer = SubwordTokenizer(kind, files[MODEL_FILE])
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(f"{place}: not a SentencePiece model ({error})") from None
    names = tokenizer.pieces(range(tokenizer.size))
    if names[:2] != [UNKNOWN_SYMBOL, END_SYMBOL]:
        raise CheckpointError(f"{place}: ids 0 and 1 must be {UNKNOWN_SYMBOL} and {END_SYMBOL}, not {names[:2]}")
    if len(tokenizer.fallback_ids()) != 1 + 256:
        raise CheckpointError(f"{place}: a piece for each of the 256 bytes is needed")
    first_ids: dict[str, int] = {}
    for index, name in enumerate(names):
        if not name or name in first_ids:
            raise CheckpointError(
                f"{place}: piece {index} ({name!r}) is blank or the same as piece {first_ids.get(name)}"
            )
        first_ids[name] = index
    return tokenizer
