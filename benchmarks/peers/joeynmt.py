"""JoeyNMT: `python -m joeynmt train` in an environment of its own.

`python -m peers.joeynmt train c.yaml` is its command line with the probe around the step of its trainer. Its token
batches are not sorted by length, so that much of them is padding; that is what it offers.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUntypedBaseClass=false

import json
from typing import Any

from peers.record import read_record
from peers.setting import BETAS, DROPOUT, NEVER, RATE, SMOOTHING, Command, Contestant, Setting

REQUIREMENTS = """
    absl-py==2.5.1 anyio==4.16.0 click==8.5.1 cloudpickle==3.1.3 colorama==0.4.6 contourpy==1.3.3 cycler==0.12.1
    datasets==5.2.0 dill==0.4.1 fonttools==4.68.0 future==1.0.0 grpcio==1.85.3 h11==0.16.0 hf-xet==1.8.0
    httpcore2==2.16.2 httpx2==2.16.2 huggingface_hub==2.4.0 idna==3.20 importlib_metadata==10.2.0 joblib==1.6.0
    joeynmt==2.3.0 kiwisolver==1.5.1 lazy-importer==0.1.0 lxml==6.1.3 Markdown==3.11.3 matplotlib==3.11.2
    mock==5.2.0 multiprocess==0.70.19 packaging==26.4 pandas==3.1.1 pillow==13.0.0 portalocker==4.4.2
    protobuf==7.36.2 pyarrow==26.0.1 pyparsing==3.3.3 python-dateutil==4.0.0 PyYAML==6.0.4 regex==2026.11.19
    sacrebleu==2.6.0 sacremoses==0.2.0 sentencepiece==0.2.3 six==1.17.0 subword-nmt==0.3.8 tabulate==0.10.0
    tensorboard==2.21.0 tensorboard-data-server==0.7.2 tqdm==4.70.1 truststore==0.10.5 tzdata==2026.6
    Werkzeug==3.1.9 xxhash==4.1.0 zipp==4.1.2
"""

SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")


def model_of(setting: Setting) -> dict[str, Any]:
    """The `model` part of its config."""
    size = setting.size
    embeddings = {"embedding_dim": size.width, "scale": True, "dropout": DROPOUT}
    if size.is_rnn:
        recurrent = {"type": "recurrent", "rnn_type": "gru", "num_layers": size.layers, "dropout": DROPOUT}
        return {
            "tied_embeddings": True,
            "tied_softmax": False,
            "encoder": {
                **recurrent, "hidden_size": size.hidden // 2, "bidirectional": True,
                "embeddings": embeddings | {"scale": False},
            },
            "decoder": {
                **recurrent, "hidden_size": size.hidden, "hidden_dropout": DROPOUT, "attention": "bahdanau",
                "input_feeding": True, "init_hidden": "bridge", "embeddings": embeddings | {"scale": False},
            },
        }  # fmt: skip
    side = {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.heads,
        "hidden_size": size.width,
        "ff_size": size.hidden,
        "dropout": DROPOUT,
        "layer_norm": "post",
        "embeddings": embeddings,
    }
    return {"tied_embeddings": True, "tied_softmax": True, "encoder": side, "decoder": side}


def config_of(setting: Setting) -> dict[str, Any]:
    """All of its config."""
    corpus = setting.corpus
    languages = corpus.train_source.suffix[1:], corpus.train_target.suffix[1:]
    side = {
        "level": "word",
        "voc_file": str(setting.prepared / "vocabulary.txt"),
        "lowercase": False,
        "max_length": 256,
    }
    return {
        "name": "benchmark",
        "model_dir": str(setting.folder / "model"),
        "use_cuda": False,
        "random_seed": setting.seed,
        "data": {
            "train": str(corpus.train_source.with_suffix("")),
            "dev": str(corpus.valid_source.with_suffix("")),
            "dataset_type": "plain",
            "src": {"lang": languages[0], **side},
            "trg": {"lang": languages[1], **side},
        },
        "testing": {"beam_size": 1, "batch_size": 64, "batch_type": "sentence"},
        "training": {
            "optimizer": "adam",
            "adam_betas": list(BETAS),
            "learning_rate": RATE,
            "learning_rate_min": 0.0,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 50,
            "label_smoothing": SMOOTHING,
            "loss": "crossentropy",
            "normalization": "tokens",
            "batch_type": "token",
            "batch_size": setting.batch_tokens,
            "epochs": NEVER,
            "updates": NEVER,
            "validation_freq": NEVER,
            "logging_freq": 100,
            "shuffle": True,
            "overwrite": True,
        },
        "model": model_of(setting),
    }


def prepare(setting: Setting, python: str) -> list[Command]:
    words = setting.corpus.vocabulary.read_text(encoding="utf-8")
    text = "".join(f"{word}\n" for word in SPECIALS) + words
    (setting.prepared / "vocabulary.txt").write_text(text, encoding="utf-8")
    return []


def command(setting: Setting, python: str) -> Command:
    config = setting.folder / "config.yaml"
    config.write_text(json.dumps(config_of(setting), indent=1), encoding="utf-8")
    return [python, "-m", "peers.joeynmt", "train", str(config), "--skip-test"]


def main() -> None:
    """Its command line, with every batch counted."""
    from joeynmt import training
    from joeynmt.__main__ import main as run

    from peers.probe import Probe

    probe = Probe()
    plain = training.TrainManager._train_step

    def counted(self: Any, batch: Any) -> Any:
        loss, correct = plain(self, batch)
        probe.consumed(int((batch.trg != self.model.pad_index).sum()), loss)
        return loss, correct

    training.TrainManager._train_step = counted
    run()


JOEYNMT = Contestant(
    name="joeynmt",
    label="JoeyNMT",
    requirements=tuple(REQUIREMENTS.split()),
    sizes=frozenset({"tiny", "paper-base", "rnn"}),
    precisions=("fp32",),
    processes=(1,),
    prepare=prepare,
    command=command,
    updates=read_record,
    batch_counts="otherwise",
    counted="target ids after the start symbol that are not padding, as its trainer hands them to the model",
    differs="its batches are drawn without regard to length; dropout also inside attention and feed-forward layers",
)

if __name__ == "__main__":
    main()
