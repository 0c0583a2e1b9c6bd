"""Findings of a comparison that nobody trained for: made-up outputs of three systems, and texts that a test wants."""

import random
from collections.abc import Sequence

from malmoi.evaluation.references import References
from malmoi.evaluation.systems import Chosen, compare_systems
from malmoi.report.findings import (
    AttentionPicture,
    Cost,
    DataFindings,
    Encoder,
    Example,
    Findings,
    Point,
    RunFindings,
    SystemFindings,
)

NAMES = {"seq2seq": "Seq2Seq", "seq2seq-attention": "Seq2Seq + attention", "transformer": "Transformer"}
ENCODERS = (
    Encoder("last", (8, 12, 32), (8, 64), 12, 24),
    Encoder("all", (8, 12, 32), (8, 12, 64), 12, 2),
    Encoder("attention", (8, 12, 32), (8, 12, 32), 2, 3),
)
WORDS = ("ka", "mi", "to", "ne", "su", "ré", "ha", "yo", "wi", "lu")


def sources_of(count: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=2 + number % 14)) for number in range(count)]


def spoil(text: str, share: float, seed: int) -> str:
    """The text with about so many of its words replaced."""
    draw = random.Random(seed)
    return " ".join("xx" if draw.random() < share else word for word in text.split())


def outputs_of(sources: Sequence[str], num_seeds: int) -> dict[str, list[list[str]]]:
    """Three systems of which each is better than the one before."""
    shares = dict(zip(NAMES, (0.5, 0.2, 0.1), strict=True))
    return {
        name: [
            [spoil(text, share, 97 * seed + place) for place, text in enumerate(sources)] for seed in range(num_seeds)
        ]
        for name, share in shares.items()
    }


def make_findings(hostile: Sequence[str] = (), *, num_seeds: int = 1, num_segments: int = 60) -> Findings:
    """`hostile` texts stand first: as sources, right answers, outputs, and as names of data and settings."""
    sources = [*hostile, *sources_of(num_segments)]
    outputs = outputs_of(sources, num_seeds)
    for place, text in enumerate(hostile):
        outputs["transformer"][0][place] = text
    answers = References(tuple((text,) for text in sources))
    quality = compare_systems(outputs, sources, answers, metrics=("bleu", "chrf"), num_samples=100)
    systems = tuple(make_system(*one, num_seeds, hostile) for one in zip(NAMES.items(), ENCODERS, strict=True))
    evenly = (*(Chosen(place + 1, dict.fromkeys(NAMES, 10.0), 0.0) for place in range(len(hostile))), *quality.evenly)

    def examples(chosen: Sequence[Chosen]) -> tuple[Example, ...]:
        return tuple(
            Example(
                one.number,
                sources[one.number - 1],
                answers.answers[one.number - 1],
                {name: seeds[0][one.number - 1] for name, seeds in outputs.items()},
                one.scores,
            )
            for one in chosen
        )

    label = hostile[0] if hostile else "dogs"
    pictures = tuple(
        AttentionPicture(name, 3, (label, "</s>"), ("two", label, "</s>"), ((0.7, 0.2, 0.1), (0.0, 0.25, 0.75)))
        for name in ("seq2seq-attention", "transformer")
    )
    return Findings(
        malmoi="0",
        rule="tokens",
        num_seeds=num_seeds,
        surroundings={"torch": "2", "machine": label},
        data=DataFindings((label,), 1000, 50, len(sources), True, 100, 120, "bpe; shared", True),
        systems=systems,
        curve_label="BLEU",
        curve_is_better_higher=True,
        quality=quality,
        evenly=examples(evenly),
        apart=examples(quality.apart),
        attention=pictures,
        commands=((f"malmoi translate out/runs/x '{label}'", "translate"), ("malmoi compare --out out", "seeds")),
    )


def make_system(names: tuple[str, str], encoder: Encoder, num_seeds: int, hostile: Sequence[str]) -> SystemFindings:
    place = list(NAMES).index(names[0])
    runs = tuple(
        RunFindings(
            folder=f"{names[0]}-{seed + 1}",
            seed=seed + 1,
            steps=200,
            target_tokens=123_456,
            seconds=90.5 + seed,
            training_tokens_per_second=4321.5,
            ended_by="max_steps",
            weights="step-200",
            data="d1",
            perplexity_per_token=3.25,
            num_cut=0,
            points=tuple(
                Point(step, step * 600, step / 2.0 + seed, 5 - place - step / 100, step / 10 + seed)
                for step in range(20, 201, 20)
            ),
        )
        for seed in range(num_seeds)
    )
    settings = {"model.width": "128", "training.lr": f"{place}", "training.schedule": "".join(hostile[:1])}
    cost = Cost(
        2_600_000 + place, 10_400_000, 90.5, 123_456.0, 4321.5, 55.25, 1234.5, 21.25, "torch", 900_000_000, None, None
    )
    return SystemFindings(*names, settings, encoder, cost, runs)
