"""Sockeye: `sockeye-train` on prepared data, in an environment of its own.

The pins of its release are older than today's torch and NumPy; installed without them it trains. `python -m
peers.sockeye --prepared-data …` is its command line with the probe around the forward and backward pass.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUntypedBaseClass=false

from typing import Any

from peers.record import read_record
from peers.setting import BETAS, DROPOUT, NEVER, RATE, SMOOTHING, Command, Contestant, Setting, launched

REQUIREMENTS = """
    colorama==0.4.6 lxml==6.1.3 portalocker==4.4.2 PyYAML==6.0.4 regex==2026.11.19 sacrebleu==2.6.0 sockeye==3.1.34
    tabulate==0.10.0
"""


def prepare(setting: Setting, python: str) -> list[Command]:
    corpus = setting.corpus
    words = ["-s", str(corpus.train_source), "-t", str(corpus.train_target), "--shared-vocab", "--max-seq-len", "256"]
    return [[python, "-m", "sockeye.prepare_data", *words, "-o", str(setting.prepared / "data")]]


def command(setting: Setting, python: str) -> Command:
    size, corpus = setting.size, setting.corpus
    options: dict[str, Any] = {
        "prepared-data": setting.prepared / "data",
        "validation-source": corpus.valid_source,
        "validation-target": corpus.valid_target,
        "output": setting.folder / "model",
        "max-seq-len": 256,
        "batch-type": "word",
        "batch-size": setting.batch_tokens // setting.processes,
        "num-layers": size.layers,
        "transformer-model-size": size.width,
        "transformer-attention-heads": size.heads,
        "transformer-feed-forward-num-hidden": size.hidden,
        "weight-tying-type": "src_trg_softmax",
        "embed-dropout": DROPOUT,
        "transformer-dropout-prepost": DROPOUT,
        "transformer-dropout-attention": 0.0,
        "transformer-dropout-act": 0.0,
        "label-smoothing": SMOOTHING,
        "optimizer": "adam",
        "optimizer-betas": f"{BETAS[0]}:{BETAS[1]}",
        "initial-learning-rate": RATE,
        "learning-rate-scheduler-type": "none",
        "max-updates": NEVER,
        "checkpoint-interval": NEVER,
        "decode-and-evaluate": 0,
        "seed": setting.seed,
    }
    words = ["-m", "peers.sockeye", "--use-cpu"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    words += ["--dist"] if setting.processes > 1 else []
    return launched(python, setting.processes, words)


def main() -> None:
    """Its command line, with every batch counted."""
    from sockeye import constants, training
    from sockeye.train import main as run

    from peers.probe import Probe

    probe = Probe()
    plain = training.EarlyStoppingTrainer._forward_backward

    def counted(self: Any, batch: Any, *others: Any) -> Any:
        losses, samples = plain(self, batch, *others)
        labels = batch.labels[constants.TARGET_LABEL_NAME]
        probe.consumed(int((labels != constants.PAD_ID).sum()), float(losses[0].detach()) / float(samples[0]))
        return losses, samples

    training.EarlyStoppingTrainer._forward_backward = counted
    run()


SOCKEYE = Contestant(
    name="sockeye",
    label="Sockeye",
    requirements=tuple(REQUIREMENTS.split()),
    sizes=frozenset({"tiny", "paper-base"}),
    precisions=("fp32",),
    processes=(1, 2),
    prepare=prepare,
    command=command,
    updates=read_record,
    batch_counts="otherwise",
    counted="labels that are not padding, as its trainer hands them to the model",
    differs="its dropout stands before and after each sublayer and on the embeddings",
)

if __name__ == "__main__":
    main()
