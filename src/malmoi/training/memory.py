"""How many tokens a forward and backward pass can hold: `fit_memory`.

In: a model and the longest pair. Out: a size for micro-batches. An accelerator is tried with made-up batches, the
largest first. On a CPU running out of memory would end the program, or others, so there one small pass is measured and
scaled up.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from malmoi.config.training import TrainingConfig
from malmoi.data.batch import Batch, batch_of_rows
from malmoi.errors import ConfigError
from malmoi.log import get_logger
from malmoi.training.objective import ModelWithLoss
from malmoi.training.ranks import Ranks

# Of the memory that is free now; others need some too.
USABLE_SHARE = 0.6
# What a pass holds at its peak over what it keeps for the backward pass.
PEAK_OVER_KEPT = 2.0
PROBE_TOKENS = 1024


def choose_micro_batch(
    model: ModelWithLoss, config: TrainingConfig, longest: int, device: torch.device, ranks: Ranks
) -> int:
    """Tokens of a micro-batch as configured, or what fits in every rank; 0 is the whole update."""
    if not config.fit_memory:
        return config.micro_batch_tokens
    if ranks.count > 1 and config.parallel == "fsdp":
        raise ConfigError(
            "training.fit_memory tries sizes in each process by itself, which a model in pieces (training.parallel = "
            "fsdp) does not allow: set training.micro_batch_tokens"
        )
    share = math.ceil(config.batch_tokens / ranks.count)
    found = find_micro_batch_tokens(model, share, longest, device, num_sharing=ranks.local_count)
    return int(min(tokens for (tokens,) in ranks.gather(found)))


def find_micro_batch_tokens(
    model: ModelWithLoss, batch_tokens: int, longest: int, device: torch.device, *, num_sharing: int = 1
) -> int:
    """The largest part of `batch_tokens` that fits, as tokens of a micro-batch; never below one pair of `longest`.

    `num_sharing`: processes that share the memory of the CPU. `ConfigError` if not even one pair fits. The model's
    gradients are cleared.
    """
    longest = min(longest, batch_tokens)
    model.train()
    try:
        if device.type == "cpu":
            found = estimate(model, batch_tokens, longest, num_sharing)
        else:
            found = try_sizes(model, batch_tokens, longest, device)
    finally:
        model.zero_grad(set_to_none=True)
    get_logger().info("fit_memory: micro-batches of %d tokens, updates of %d", found, batch_tokens)
    return found


def estimate(model: ModelWithLoss, batch_tokens: int, longest: int, num_sharing: int) -> int:
    """From the bytes that a small pass keeps, and the memory that is free."""
    maybe_free = free_memory()
    if maybe_free is None:
        get_logger().warning("fit_memory: the free memory of this system is unknown; taking batch_tokens as a whole")
        return batch_tokens
    rows = max(1, PROBE_TOKENS // longest)
    per_token = PEAK_OVER_KEPT * kept_bytes(model, probe_batch(model, rows, longest)) / (rows * longest)
    usable = USABLE_SHARE * maybe_free / num_sharing - optimiser_bytes(model)
    fitting = math.floor(usable / per_token)
    if fitting < longest:
        raise ConfigError(
            f"training.fit_memory: a pair of {longest} tokens needs about {per_token * longest / 2**20:.0f} MiB beside "
            f"{optimiser_bytes(model) / 2**20:.0f} MiB for the optimiser, but only {maybe_free / 2**20:.0f} MiB are "
            "free: lower cleaning.max_tokens or the size of the model"
        )
    return min(batch_tokens, fitting)


def try_sizes(model: ModelWithLoss, batch_tokens: int, longest: int, device: torch.device) -> int:
    """Halve until a forward and backward pass ends, with room for the optimiser taken beforehand."""
    tokens = batch_tokens
    while True:
        try:
            try_pass(model, probe_batch(model, max(1, tokens // longest), longest).to(device))
            return tokens
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            failure = str(error).splitlines()[0]
        model.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if tokens <= longest:
            raise ConfigError(f"training.fit_memory: not even a pair of {longest} tokens fits ({failure})")
        tokens = max(longest, tokens // 2)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an accelerator had no room left; torch has a type for it, MPS raises a plain error."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def try_pass(model: ModelWithLoss, batch: Batch) -> None:
    """Forward and backward once, beside as much memory as the optimiser will take; waits until it is done."""
    room = torch.empty(optimiser_bytes(model), dtype=torch.uint8, device=batch.source_BS.device)
    result = model(batch)
    result.loss.backward()
    result.loss.item()
    del room


def probe_batch(model: ModelWithLoss, rows: int, length: int) -> Batch:
    """A made-up batch of the costliest shape: all sides as long as they may be."""
    network = model.network
    randomness = np.random.default_rng(0)
    sources = randomness.integers(0, network.source_vocabulary_size, (rows, length))
    targets = randomness.integers(0, network.target_vocabulary_size, (rows, length))
    lines = np.arange(1, rows + 1, dtype=np.int64)
    return batch_of_rows(list(sources), list(targets), lines, network.source_vocabulary_size, network.start_id)


def kept_bytes(model: ModelWithLoss, batch: Batch) -> int:
    """Bytes that a forward pass keeps for its backward pass, weights left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            # Held, so that no later tensor gets the same address.
            kept.append(tensor)
        return tensor

    def give_back(tensor: Tensor) -> Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, give_back):
        model(batch)
    return sum(sizes.values())


def optimiser_bytes(model: ModelWithLoss) -> int:
    """Gradients and two moments of every parameter that moves."""
    moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return 3 * sum(parameter.numel() * parameter.element_size() for parameter in moving)


def free_memory() -> int | None:
    """Bytes that can be taken without pushing others out, a container's limit heeded; None where it is unknown.

    What a container keeps of files that nobody has used of late makes room at once, so it counts as free.
    """
    found: list[int] = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    kinds = Path("/sys/fs/cgroup/memory.stat")
    if limit.exists() and used.exists():
        words = limit.read_text(encoding="utf-8").strip()
        if words != "max":
            lines = kinds.read_text(encoding="utf-8").splitlines() if kinds.exists() else []
            idle_files = int(dict(line.split() for line in lines).get("inactive_file", 0))
            found.append(max(0, int(words) - int(used.read_text(encoding="utf-8")) + idle_files))
    return min(found) if found else None
