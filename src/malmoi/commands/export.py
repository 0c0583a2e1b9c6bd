"""`malmoi export`: a model to a folder that another program runs, left there only if it gives the same answers.

In: a model or run folder. Out: a folder, and on standard output what was compared; or one JSON object with the keys
model, format, folder, number_type, float32 (num_sentences, num_tokens, largest_difference, tolerance,
num_equal_outputs, num_ties) and quality (null, or num_sentences, equal_share, mean_difference and their bounds).
"""

from pathlib import Path

from malmoi.checkpoint import find_model, load_config, load_model
from malmoi.commands.results import write_json, write_line
from malmoi.errors import ConfigError
from malmoi.export.ctranslate2 import check_can_hold, check_number_type, number_type, require_library
from malmoi.export.folder import Verification, check_free, export_ctranslate2

FORMATS = ("ctranslate2",)


def run_export(path: Path, *, to: str, out: Path, maybe_quantization: str | None, as_json: bool) -> None:
    """Export and say what was compared; whatever cannot work is refused before any work."""
    if to not in FORMATS:
        raise ConfigError(f"--to {to}: must be one of {', '.join(FORMATS)}")
    check_free(out)
    maybe_kind = check_number_type(maybe_quantization)
    require_library()
    folder = find_model(path)
    check_can_hold(load_config(folder).model)
    model = load_model(folder, dtype=None)
    kind = number_type(model, maybe_kind)
    model.network.float()
    verification = export_ctranslate2(model, out, kind)
    if as_json:
        write_json({"model": str(path), "format": to, "folder": str(out), **verification.to_json()})
        return
    for line in describe(out, verification):
        write_line(line)


def describe(out: Path, verification: Verification) -> list[str]:
    """What was compared, in words."""
    proof, maybe_quality = verification.proof, verification.maybe_quality
    ties = f", {proof.num_ties} part at a tie" if proof.num_ties else ""
    lines = [
        f"float32     {proof.num_tokens:,} tokens of {proof.num_sentences} sentences score the same within "
        f"{proof.largest_difference:.1e} ({proof.tolerance:g} is allowed)",
        f"            {proof.num_equal_outputs} greedy outputs are the same{ties}",
    ]
    if maybe_quality is not None:
        name = f"{verification.number_type:<11}"
        lines += [
            f"{name} {maybe_quality.equal_share:.0%} of {maybe_quality.num_sentences} greedy outputs are the same (at "
            f"least {maybe_quality.smallest_equal_share:.0%})",
            f"            a token's log-probability moves by {maybe_quality.mean_difference:.4f} on average (at most "
            f"{maybe_quality.largest_mean_difference:g})",
        ]
    return [*lines, f"written     {out}"]
