"""Hugging Face: Marian from scratch with `Seq2SeqTrainer`, in an environment of its own.

`python -m peers.huggingface FOLDER` builds the model and the data set from `setting.json` there and calls `train()`.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUntypedBaseClass=false

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.plain import END, PADDING, START, read_pairs
from peers.record import read_record
from peers.setting import BETAS, DROPOUT, NEVER, RATE, SMOOTHING, Command, Contestant, Setting, launched

REQUIREMENTS = """
    accelerate==1.15.0 annotated-doc==0.0.7 annotated-types==0.8.0 anyio==4.16.0 click==8.5.1 h11==0.16.0
    hf-xet==1.8.0 httpcore2==2.16.2 httpx2==2.16.2 huggingface_hub==2.4.0 idna==3.20 markdown-it-py==4.3.0
    mdurl==0.1.2 packaging==26.4 psutil==7.2.2 pydantic==2.14.4 pydantic_core==2.50.5 Pygments==2.21.0 PyYAML==6.0.4
    regex==2026.11.19 rich==15.0.0 safetensors==0.8.0 shellingham==1.5.4 tokenizers==0.23.3 tqdm==4.70.1
    transformers==5.24.0 truststore==0.10.5 typer==0.29.2 typing-inspection==0.4.5
"""


def prepare(setting: Setting, python: str) -> list[Command]:
    return []


def command(setting: Setting, python: str) -> Command:
    corpus = setting.corpus
    rows = setting.batch_tokens * corpus.num_pairs / corpus.num_target_tokens / setting.processes
    told = asdict(setting.size) | {
        "source": str(corpus.train_source),
        "target": str(corpus.train_target),
        "vocabulary": str(corpus.vocabulary),
        "rows": max(1, round(rows)),
        "bf16": setting.precision == "bf16",
        "seed": setting.seed,
    }
    (setting.folder / "setting.json").write_text(json.dumps(told), encoding="utf-8")
    words = ["-m", "peers.huggingface", str(setting.folder)]
    return launched(python, setting.processes, words)


def build_model(told: dict[str, Any], num_ids: int) -> Any:
    """Marian of the wanted size, with one embedding for source, target and output."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=num_ids,
        d_model=told["width"],
        encoder_layers=told["layers"],
        decoder_layers=told["layers"],
        encoder_attention_heads=told["heads"],
        decoder_attention_heads=told["heads"],
        encoder_ffn_dim=told["hidden"],
        decoder_ffn_dim=told["hidden"],
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PADDING,
        decoder_start_token_id=START,
        eos_token_id=END,
        forced_eos_token_id=END,
        max_position_embeddings=512,
        use_cache=False,
    )
    return MarianMTModel(config)


def main(folder: str) -> None:
    """Its trainer, with every batch counted."""
    import torch
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    from peers.probe import Probe

    told = json.loads((Path(folder) / "setting.json").read_text(encoding="utf-8"))
    pairs, num_ids = read_pairs(told)
    rows = [{"input_ids": source, "labels": target, "length": len(target)} for source, target in pairs]
    probe = Probe()

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        def padded(key: str, value: int) -> Any:
            sides = [torch.tensor(row[key]) for row in batch]
            return torch.nn.utils.rnn.pad_sequence(sides, batch_first=True, padding_value=value)

        source, labels = padded("input_ids", PADDING), padded("labels", -100)
        begun = torch.full_like(labels, START)
        begun[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] < 0, PADDING)
        mask = (source != PADDING).long()
        return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": begun, "labels": labels}

    class Counted(Seq2SeqTrainer):
        def training_step(self, model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
            loss = super().training_step(model, inputs, *others, **named)
            probe.consumed(int((inputs["labels"] != -100).sum()), loss.item())
            return loss

    arguments = Seq2SeqTrainingArguments(
        output_dir=f"{folder}/model",
        use_cpu=True,
        bf16=told["bf16"],
        per_device_train_batch_size=told["rows"],
        train_sampling_strategy="group_by_length",
        length_column_name="length",
        remove_unused_columns=False,
        label_smoothing_factor=SMOOTHING,
        optim="adamw_torch_fused",
        weight_decay=0.0,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        max_steps=NEVER,
        logging_steps=100,
        save_strategy="no",
        report_to=[],
        seed=told["seed"],
        disable_tqdm=True,
    )
    Counted(model=build_model(told, num_ids), args=arguments, train_dataset=rows, data_collator=collate).train()


HUGGINGFACE = Contestant(
    name="huggingface",
    label="Hugging Face Trainer, Marian",
    requirements=tuple(REQUIREMENTS.split()),
    sizes=frozenset({"tiny", "paper-base"}),
    precisions=("fp32", "bf16"),
    processes=(1, 2),
    prepare=prepare,
    command=command,
    updates=read_record,
    batch_counts="target tokens",
    counted="labels that are not padding, as its trainer hands them to the model",
    differs="batches of a fixed number of sentences of like length, as many as make the wanted tokens on average; a "
    "bias on the output; dropout neither on attention weights nor inside the feed-forward layer",
)

if __name__ == "__main__":
    main(sys.argv[1])
