#!/usr/bin/env bash
# WMT14 English-German on the GPUs of one machine: prepared once, trained, and gone on with after any stop.
#
#   deploy/wmt14-en-de.sh train.en train.de newstest2013.en newstest2013.de run
#
# PRESET=paper-big GPUS=4 before the command choose the model and the number of GPUs. The same command goes on.
set -euo pipefail

if [ $# -lt 5 ]; then
  echo "usage: $0 TRAIN_SOURCE TRAIN_TARGET VALID_SOURCE VALID_TARGET OUT [key=value ...]" >&2
  exit 2
fi
preset=${PRESET:-paper-base}
gpus=${GPUS:-8}
store=$5-store

malmoi prepare "$1" "$2" --valid "$3" --valid "$4" --preset "$preset" --out "$store"
exec torchrun --standalone --nproc-per-node="$gpus" --max-restarts=3 -m malmoi train "$store" --preset "$preset" \
  --out "$5" training.precision=bf16 training.save_every=500 "${@:6}"
