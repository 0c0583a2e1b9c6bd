"""What the engine's two precisions do to the translations of a trained model, against the network in torch.

    python benchmarks/precision.py --model RUN --source test.en --reference test.de

All sentences by the network in fp32, by the engine in fp32 and in int8, with beam search and greedily. Out: BLEU and
chrF2++ of each; how many texts differ; int8 against the engine's fp32 by paired bootstrap; and each line that the
engine's fp32 says otherwise than the network, with how far apart the network finds the two texts: what lies within
1e-4 is decided by rounding. No time is taken, so that it runs on busy cores as well.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from command import table
from peers.machine import describe

from malmoi.checkpoint import load_model
from malmoi.decoding.scorer import ModelScorer
from malmoi.engine.choose import allows_threads
from malmoi.evaluation.compare import compare_outputs
from malmoi.evaluation.metrics import MetricOptions, measure_all
from malmoi.evaluation.references import References
from malmoi.translate import Translation, Translator

SYSTEMS = ("network, fp32", "engine, fp32", "engine, int8")
NEAR = 1e-4
"""Of scores: nearer ones are decided by rounding."""


@dataclass
class Found:
    """What each system said with one beam."""

    beam: int
    outputs: dict[str, list[Translation]]

    def texts(self, system: str) -> list[str]:
        return [one.text for one in self.outputs[system]]


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def open_network(model: Path) -> Translator:
    loaded = load_model(model)
    return Translator(ModelScorer(loaded.network.eval()), loaded.tokenizers, loaded.config.decoding, tell=False)


def translate(model: Path, sources: list[str], beam: int) -> Found:
    """All systems; an engine that is not built ends the program."""
    engine = Translator.load(model, device="cpu")
    engine.tell = False
    if not allows_threads(engine.scorer_for(engine.resolve({}))):
        raise SystemExit("the engine is not built: malmoi doctor --build")
    network = open_network(model)
    found = Found(beam, {SYSTEMS[0]: network.translate(sources, options={"beam_size": beam})})
    for system, precision in zip(SYSTEMS[1:], ("fp32", "int8"), strict=True):
        found.outputs[system] = engine.translate(sources, options={"beam_size": beam, "precision": precision})
    return found


def other_lines(found: Found, network: Translator, sources: list[str]) -> list[list[str]]:
    """Lines that the engine's fp32 says otherwise than the network, and the network's scores of both."""
    pairs = zip(found.texts(SYSTEMS[0]), found.texts(SYSTEMS[1]), strict=True)
    numbers = [number for number, (one, other) in enumerate(pairs) if one != other]
    rows: list[list[str]] = []
    for number in numbers:
        texts = [found.outputs[system][number].text for system in SYSTEMS[:2]]
        scores = [one.score for one in network.score([(sources[number], text) for text in texts])]
        apart = abs(scores[0] - scores[1])
        rows.append([str(number + 1), *texts, f"{apart:.1e}", "yes" if apart <= NEAR else "NO"])
    return rows


def section(found: Found, network: Translator, sources: list[str], references: References) -> list[str]:
    """What there is to say about one beam."""
    options = MetricOptions(tokenize="none")
    rows = [["system", "BLEU", "chrF2++", "texts other than the network's"]]
    for system in SYSTEMS:
        texts = found.texts(system)
        scores = [one.score().value for one in measure_all(("bleu", "chrf"), texts, references, options)]
        differing = sum(one != other for one, other in zip(texts, found.texts(SYSTEMS[0]), strict=True))
        rows.append([system, *(f"{score:.2f}" for score in scores), f"{differing} of {len(texts)}"])
    engine, int8 = (found.texts(system) for system in SYSTEMS[1:])
    names = ("int8", "fp32")
    compared = compare_outputs(int8, engine, references, metrics=("bleu", "chrf"), options=options, names=names)
    others = other_lines(found, network, sources)
    head = ["line", "network", "engine, fp32", "scores apart", f"within {NEAR:g}"]
    return [
        f"## {'Greedy' if found.beam == 1 else f'Beam {found.beam}'}",
        "",
        *table(rows),
        "",
        "Paired bootstrap, engine:",
        "",
        *(f"    {line}" for line in compared.lines()),
        "",
        *(table([head, *others]) if others else ["The engine's fp32 says every line as the network does."]),
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a trained model, or a run")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True, help="tokenised as the model's targets are")
    parser.add_argument("--beams", nargs="+", type=int, default=[5, 1])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sources, references = lines_of(options.source), References.from_sets([lines_of(options.reference)])
    network = open_network(options.model)
    lines = [f"# Precisions of the engine: {options.model.name}, {options.source.name}", ""]
    lines += ["Made by `benchmarks/precision.py`, which says how.", ""]
    facts = describe("python benchmarks/precision.py " + " ".join(sys.argv[1:]), seed=12345)
    lines += [*(f"* {name}: {value}" for name, value in facts.items()), f"* {len(sources):,} sentences", ""]
    for beam in options.beams:
        lines += section(translate(options.model, sources, beam), network, sources, references)
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
