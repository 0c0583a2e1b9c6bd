"""Hugging Face: `generate` of a Marian model with random weights, in an environment of its own."""

# pyright: reportMissingImports=false

import json
from collections.abc import Sequence

from peers.huggingface import build_model
from peers.plain import END, PADDING

from decoders.task import Output, Task

FIRST_WORD = 10
"""Ids below are controls of one kind or another."""


class HuggingFace:
    def __init__(self, task: Task) -> None:
        import torch
        import transformers

        torch.set_num_threads(task.threads)
        torch.manual_seed(task.seed)
        told = json.loads(task.model)
        self.torch = torch
        self.num_words = told["vocabulary"]
        self.model = build_model(told, FIRST_WORD + self.num_words).eval()
        self.model.generation_config.use_cache = self.model.config.use_cache = True
        self.num_tokens = task.num_tokens
        self.versions = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def translate(self, texts: Sequence[str], beam: int, batch_size: int) -> list[Output]:
        torch = self.torch
        # A word is "w" and a number.
        rows = [[*(FIRST_WORD + int(word[1:]) % self.num_words for word in text.split()), END] for text in texts]
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        outputs: dict[int, Output] = {}
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            sides = [torch.tensor(rows[index]) for index in batch]
            source = torch.nn.utils.rnn.pad_sequence(sides, batch_first=True, padding_value=PADDING)
            with torch.inference_mode():
                found = self.model.generate(
                    input_ids=source,
                    attention_mask=(source != PADDING).long(),
                    num_beams=beam,
                    do_sample=False,
                    min_new_tokens=self.num_tokens,
                    max_new_tokens=self.num_tokens,
                    forced_eos_token_id=None,
                )
            # The first column is the start symbol.
            for index, row in zip(batch, found.tolist(), strict=True):
                outputs[index] = Output(len(row) - 1, " ".join(map(str, row[1:])))
        return [outputs[index] for index in range(len(rows))]
