"""Eole (the successor of OpenNMT-py): `eole train` in an environment of its own.

`python -m peers.eole train -config c.yaml` is `eole` with the probe around the step of its trainer.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUntypedBaseClass=false

import json
from typing import Any

from peers.record import read_record
from peers.setting import BETAS, DROPOUT, NEVER, RATE, SMOOTHING, Command, Contestant, Setting

REQUIREMENTS = """
    absl-py==2.5.1 aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0 annotated-doc==0.0.7
    annotated-types==0.8.0 anyio==4.16.0 attrs==26.1.0 certifi==2026.10.19.post1 charset-normalizer==3.5.3
    click==8.5.1 colorama==0.4.6 ConfigArgParse==1.9.0 eole==0.6.4 fastapi==0.165.0 frozenlist==1.8.0 grpcio==1.85.3
    h11==0.16.0 hf-xet==1.8.0 httpcore2==2.16.2 httpx2==2.16.2 huggingface_hub==2.4.0 idna==3.20 lxml==6.1.3
    Markdown==3.11.3 markdown-it-py==4.3.0 mdurl==0.1.2 multidict==7.2.1 opentelemetry-api==1.45.2 packaging==26.4
    pandas==3.1.1 pillow==13.0.0 portalocker==4.4.2 propcache==0.5.4 protobuf==7.36.2 pydantic==2.14.4
    pydantic_core==2.50.5 Pygments==2.21.0 pyonmttok==1.38.1 python-dateutil==4.0.0 python-multipart==0.0.34
    PyYAML==6.0.4 RapidFuzz==3.14.6 regex==2026.11.19 requests==2.34.2 rich==15.0.0 sacrebleu==2.6.0
    safetensors==0.8.0 sentencepiece==0.2.3 six==1.17.0 starlette==1.10.0 tabulate==0.10.0 tensorboard==2.21.0
    tensorboard-data-server==0.7.2 tokenizers==0.23.3 tqdm==4.70.1 truststore==0.10.5 typing-inspection==0.4.5
    tzdata==2026.6 urllib3==2.8.0 uvicorn==0.54.0 waitress==3.0.2 Werkzeug==3.1.9 yarl==1.25.1
"""


def model_of(setting: Setting) -> dict[str, Any]:
    """The `model` part of its config."""
    size = setting.size
    tied: dict[str, Any] = {"share_embeddings": True, "share_decoder_embeddings": True}
    if size.is_rnn:
        recurrent = {"layers": size.layers, "hidden_size": size.hidden, "rnn_type": "GRU"}
        return {
            "architecture": "custom",
            "embeddings": {"word_vec_size": size.width},
            "encoder": {"encoder_type": "brnn", **recurrent},
            "decoder": {"decoder_type": "rnn", "global_attention": "mlp", **recurrent},
            "share_embeddings": True,
        }
    return {
        "architecture": "transformer",
        "layers": size.layers,
        "heads": size.heads,
        "hidden_size": size.width,
        "transformer_ff": size.hidden,
        "embeddings": {
            "word_vec_size": size.width,
            "position_encoding": True,
            "position_encoding_type": "SinusoidalInterleaved",
        },
        **tied,
    }


def config_of(setting: Setting) -> dict[str, Any]:
    """All of its config."""
    corpus = setting.corpus
    return {
        "data": {
            "corpus_1": {"path_src": str(corpus.train_source), "path_tgt": str(corpus.train_target)},
            "valid": {"path_src": str(corpus.valid_source), "path_tgt": str(corpus.valid_target)},
        },
        "src_vocab": str(setting.prepared / "vocabulary.txt"),
        "share_vocab": True,
        "src_vocab_size": corpus.num_words + 8,
        "tgt_vocab_size": corpus.num_words + 8,
        "save_data": str(setting.prepared),
        "overwrite": True,
        "n_sample": 0,
        "report_every": 100,
        "seed": setting.seed,
        "training": {
            "model_path": str(setting.folder / "model"),
            "world_size": 0,
            "gpu_ranks": [],
            "batch_type": "tokens",
            "batch_size": setting.batch_tokens,
            "bucket_size": corpus.num_pairs,
            "normalization": "tokens",
            "accum_count": [1],
            "num_workers": 0,
            "optim": "adam",
            "adam_beta1": BETAS[0],
            "adam_beta2": BETAS[1],
            "learning_rate": RATE,
            "decay_method": "none",
            "max_grad_norm": 0,
            "dropout": [DROPOUT],
            "attention_dropout": [0.0],
            "dropout_steps": [0],
            "label_smoothing": SMOOTHING,
            "param_init": 0.0 if not setting.size.is_rnn else 0.1,
            "param_init_method": "xavier_uniform" if not setting.size.is_rnn else "uniform",
            "compute_dtype": setting.precision,
            "log_attention_entropy": False,
            "train_steps": NEVER,
            "valid_steps": NEVER,
            "save_checkpoint_steps": NEVER,
        },
        "model": model_of(setting),
    }


def prepare(setting: Setting, python: str) -> list[Command]:
    config = setting.prepared / "vocabulary.yaml"
    told = config_of(setting)
    told = {key: told[key] for key in ("data", "src_vocab", "share_vocab", "save_data", "overwrite")} | {"n_sample": -1}
    config.write_text(json.dumps(told), encoding="utf-8")
    return [[python, "-m", "eole.bin.main", "build_vocab", "-config", str(config)]]


def command(setting: Setting, python: str) -> Command:
    config = setting.folder / "config.yaml"
    config.write_text(json.dumps(config_of(setting), indent=1), encoding="utf-8")
    return [python, "-m", "peers.eole", "train", "-config", str(config)]


def main() -> None:
    """Its command line, with every batch counted on its way into the model."""
    from eole import trainer
    from eole.bin.main import main as run

    from peers.probe import Probe

    probe = Probe()
    plain = trainer.BatchProcessor._compute_loss

    def counted(self: Any, src: Any, tgt: Any, src_len: Any, batch: Any, *others: Any) -> Any:
        loss, stats = plain(self, src, tgt, src_len, batch, *others)
        tokens = int(tgt[:, 1:].ne(self.train_loss.padding_idx).sum())
        probe.consumed(tokens, loss.item())
        return loss, stats

    trainer.BatchProcessor._compute_loss = counted
    run()


EOLE = Contestant(
    name="eole",
    label="Eole",
    requirements=tuple(REQUIREMENTS.split()),
    sizes=frozenset({"tiny", "paper-base", "rnn"}),
    precisions=("fp32", "bf16"),
    processes=(1,),
    prepare=prepare,
    command=command,
    updates=read_record,
    batch_counts="as malmoi",
    counted="target ids after the start symbol that are not padding, as its trainer hands them to the model",
    differs="dropout also on the activation inside the feed-forward layer; a batch holds a "
    "source once; several processes are not offered without a GPU",
)

if __name__ == "__main__":
    main()
