"""malmoi through its `Translator`: text in, text out, its own tokenising included.

Systems: `malmoi`, whatever the model folder gives on this machine (the engine where it is built), and `malmoi-plain`,
the network in torch.
"""

from collections.abc import Sequence
from importlib.metadata import version

from decoders.task import Output, Task

MEAN_SOURCE = 16
"""Tokens of a source in a batch, which malmoi measures in tokens."""


class Malmoi:
    def __init__(self, task: Task) -> None:
        from malmoi.engine.choose import allows_threads
        from malmoi.translate import Translator

        self.num_tokens = task.num_tokens
        self.precision = task.precision
        if task.system == "malmoi-plain":
            from malmoi.checkpoint import load_model
            from malmoi.decoding.scorer import ModelScorer
            from malmoi.device import set_threads

            set_threads(task.threads)
            model = load_model(task.model)
            self.translator = Translator(
                ModelScorer(model.network.eval()), model.tokenizers, model.config.decoding, tell=False
            )
        else:
            self.translator = Translator.load(task.model, device="cpu", threads=task.workers)
            self.translator.tell = False
            if not allows_threads(self.translator.scorer_for(self.translator.resolve({"precision": task.precision}))):
                raise SystemExit("the engine is not built: malmoi doctor --build")
        # The engine needs no torch, and its memory is measured.
        self.versions = f"torch {version('torch')}, numpy {version('numpy')}"

    def translate(self, texts: Sequence[str], beam: int, batch_size: int) -> list[Output]:
        options: dict[str, object] = {
            "beam_size": beam,
            "batch_tokens": batch_size * beam * MEAN_SOURCE,
            "precision": self.precision,
        }
        if self.num_tokens:
            fixed = self.num_tokens
            options |= {"min_length": fixed, "max_length": fixed, "max_length_extra": fixed, "max_length_ratio": 0.0}
        return [
            Output(len(one.token_scores) - one.finished, one.text)
            for one in self.translator.translate(texts, options=options)
        ]
