"""malmoi: `malmoi prepare` once, then `malmoi train`, alone or by torchrun. Speed from `metrics.jsonl` of the run.

Its count of target tokens is checked against the prepared store: the lengths of the targets in the batches of the plan.
"""

import json

from peers.setting import DROPOUT, NEVER, RATE, SMOOTHING, Command, Contestant, Setting, Update, launched


def settings_of(setting: Setting) -> list[str]:
    """The model and the training as `key=value` words."""
    size = setting.size
    model = {"dropout": DROPOUT, "width": size.width, "encoder_layers": size.layers, "decoder_layers": size.layers}
    if size.is_rnn:
        model |= {"architecture": "rnn", "cell": "gru", "attention": "additive", "hidden": size.hidden}
    else:
        model |= {"heads": size.heads, "feed_forward": size.hidden}
    training = {
        "schedule": "constant",
        "lr": RATE,
        "warmup_steps": 0,
        "label_smoothing": SMOOTHING,
        "batch_tokens": setting.batch_tokens,
        "precision": setting.precision,
        "threads": setting.threads,
        "seed": setting.seed,
        "device": "cpu",
        "max_steps": NEVER,
        "validate_every": NEVER,
        "log_every": 1,
    }
    named = [f"model.{key}={value}" for key, value in model.items()]
    return [*named, *(f"training.{key}={value}" for key, value in training.items())]


def prepare(setting: Setting, python: str) -> list[Command]:
    corpus = setting.corpus
    text = ["text.tokenizer=words", f"text.vocabulary_size={corpus.num_words + 2}", "text.shared_vocabulary=true"]
    data = [str(corpus.train_source), str(corpus.train_target), "--valid", str(corpus.valid_source)]
    data += ["--valid", str(corpus.valid_target)]
    return [[python, "-m", "malmoi", "prepare", *data, "--out", str(setting.prepared / "store"), *text]]


def command(setting: Setting, python: str) -> Command:
    words = ["-m", "malmoi", "train", str(setting.prepared / "store"), "--out", "run", *settings_of(setting)]
    return launched(python, setting.processes, words)


def updates(setting: Setting) -> list[Update]:
    """A row of the run's metrics for each update."""
    path = setting.folder / "run" / "metrics.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    rows = [row for row in rows if "loss" in row]
    before = [0, *(row["target_tokens"] for row in rows)]
    return [
        Update(row["seconds"], row["target_tokens"] - so_far, row["loss"])
        for row, so_far in zip(rows, before, strict=False)
    ]


def tokens_of_epoch(setting: Setting, epoch: int) -> list[int]:
    """Target tokens in each batch of an epoch, from the lengths in the store."""
    from malmoi.data.batching import BatchPlan
    from malmoi.data.store import Store

    stores = [Store.open(path) for path in sorted((setting.prepared / "store" / "data" / "train").iterdir())]
    plan = BatchPlan(stores, setting.batch_tokens, setting.seed)
    return [int(plan.lengths(batch)[1].sum()) for batch in plan.epoch(epoch)]


def check_count(setting: Setting, found: list[Update]) -> None:
    """The tokens of a turn's updates, counted again from the store."""
    tokens: list[int] = []
    epoch = 0
    while len(tokens) < len(found):
        tokens += tokens_of_epoch(setting, epoch)
        epoch += 1
    told = [update.tokens for update in found]
    if told != tokens[: len(told)]:
        raise SystemExit(f"malmoi reports {told[:5]} target tokens, its batches hold {tokens[:5]}")


def num_parameters(setting: Setting) -> int:
    """Weights of the model that is trained."""
    from pydantic import TypeAdapter

    from malmoi.config.model import ModelConfig
    from malmoi.models.build import count_parameters
    from malmoi.settings import parse_overrides
    from malmoi.text.tokenizer import Tokenizers

    model = {"architecture": "transformer", **parse_overrides(settings_of(setting))["model"]}
    tokenizers = Tokenizers.load(setting.prepared / "store" / "tokenizer")
    config: ModelConfig = TypeAdapter[ModelConfig](ModelConfig).validate_python(model)
    return count_parameters(config, tokenizers.source.size, tokenizers.target.size)


COUNTED = "`target_tokens` of metrics.jsonl, checked against the lengths in the store, batch by batch"

MALMOI = Contestant(
    name="malmoi",
    label="malmoi",
    requirements=(),
    sizes=frozenset({"tiny", "paper-base", "rnn"}),
    precisions=("fp32", "bf16"),
    processes=(1,),
    prepare=prepare,
    command=command,
    updates=updates,
    batch_counts="as malmoi",
    counted=COUNTED,
    differs="",
)
MALMOI_RANKS = Contestant(
    name="malmoi-ranks",
    label="malmoi, torchrun",
    requirements=(),
    sizes=frozenset({"tiny", "paper-base", "rnn"}),
    precisions=("fp32", "bf16"),
    processes=(2,),
    prepare=prepare,
    command=command,
    updates=updates,
    batch_counts="as malmoi",
    counted=COUNTED,
    differs="processes share each batch",
)
