"""CTranslate2 with a copy that `malmoi export` made, so that the weights are the same.

`workers` are its `inter_threads`, `threads` its `intra_threads`; it sorts by length itself. Tokenising is done before,
which malmoi does in its measured time.
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from decoders.task import Output, Task


class CTranslate2:
    def __init__(self, task: Task) -> None:
        # Its own script lies beside the copy.
        sys.path.insert(0, str(Path(task.model)))
        import ctranslate2
        from translate import Exported

        self.exported = Exported(
            task.model,
            inter_threads=task.workers,
            intra_threads=task.threads,
            compute_type=task.precision,
        )
        self.num_tokens = task.num_tokens
        self.encode = cache(self.exported.encode)
        self.versions = f"ctranslate2 {ctranslate2.__version__}"

    def translate(self, texts: Sequence[str], beam: int, batch_size: int) -> list[Output]:
        settings, fixed = self.exported.settings, self.num_tokens
        rows = [self.encode(text) for text in texts]
        longest = max(map(len, rows))
        most = int(longest * settings["max_length_ratio"]) + settings["max_length_extra"]
        results = self.exported.translator.translate_batch(
            rows,
            beam_size=beam,
            # Hypotheses beyond the best are asked for only where the model's formula needs them to rank.
            num_hypotheses=1 if fixed else beam,
            length_penalty=1,
            suppress_sequences=[[token] for token in settings["suppress"]],
            max_input_length=0,
            min_decoding_length=fixed or settings["min_length"],
            max_decoding_length=fixed or min(most, settings["max_length"]) + 1,
            max_batch_size=batch_size,
            return_scores=True,
            return_end_token=not fixed,
        )
        outputs: list[Output] = []
        for result in results:
            ranked = zip(result.scores, result.hypotheses, strict=True)
            tokens = max(ranked, key=lambda one: self.exported.rank(one[0], max(1, len(one[1]))))[1]
            has_end = bool(tokens) and tokens[-1] == "</s>"
            outputs.append(Output(len(tokens) - has_end, self.exported.decode(tokens)))
        return outputs
