"""What a machine has for nbrl and what it lacks: ``nbrl doctor``. May import packaging.

What belongs to which extra is read from the installed package, so that it is said in one place.
"""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement

PURPOSES = {
    "": "the embedded default",
    "vllm": "generation with vLLM on a GPU",
    "cpu": "vLLM on a machine without a GPU",
    "deepspeed": "training on several ranks",
    "ray": "clusters",
    "notebook": "JupyterLab, headless notebooks",
    "lora": "adapters",
    "rewards": "isolated rewards, math answers, judges",
    "serve": "reward servers and their clients",
    "runs": "tables of many runs, TensorBoard",
    "data": "data sets, reasoning tasks",
    "smollm2": "a real model without a download",
    "bench": "the comparison with TRL",
    "dev": "tests and checks",
}
"""What each extra is for; one that is not here is shown by its name alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    ``optional`` says that nbrl works without it; ``remedy`` is what to do where it is not fine.

    Example: ``Finding(name="extra lora", said="peft is missing", fine=False, optional=True,
    remedy="pip install 'nbrl[lora]'")``.
    """

    name: str
    said: str
    fine: bool = True
    optional: bool = False
    remedy: str = ""


def examine() -> list[Finding]:
    """What is there and what is not, the machine first, then each extra."""
    return [_python(), _machine(), _accelerator(), _compiler(), *_packages()]


def report(findings: Sequence[Finding]) -> str:
    """One line a finding."""
    width = max(len(f.name) for f in findings)
    return "\n".join(
        f"{'ok' if f.fine else '--' if f.optional else 'NO':<3} {f.name:<{width}}  {f.said}"
        + (f"; {f.remedy}" if f.remedy else "")
        for f in findings
    )


def _python() -> Finding:
    fine = (3, 11) <= sys.version_info < (3, 14)
    return Finding(
        name="python",
        said=f"{platform.python_version()} at {sys.executable}",
        fine=fine,
        remedy="" if fine else "use Python 3.11 to 3.13",
    )


def _machine() -> Finding:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return Finding(name="machine", said=f"{platform.machine()}, {cores} cores, {memory:.0f} GiB")


def _accelerator() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding(
            name="devices", said=f"torch: {error}", fine=False, remedy="pip install nbrl"
        )
    count = torch.cuda.device_count()
    named = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    said = f"{count} CUDA: {named}" if count else "cpu only; torch sees no CUDA device"
    return Finding(name="devices", said=f"{said} (torch {torch.__version__})")


def _compiler() -> Finding:
    lacking = [tool for tool in ("g++", "ninja") if shutil.which(tool) is None]
    said = "g++ and ninja" if not lacking else f"no {' and no '.join(lacking)}: DeepSpeed needs it"
    return Finding(name="compiler", said=said, fine=not lacking, optional=True)


def _packages() -> list[Finding]:
    try:
        lines = importlib.metadata.requires("nbrl") or []
    except importlib.metadata.PackageNotFoundError:
        return [
            Finding(
                name="nbrl",
                said="is imported but not installed, so its extras are unknown",
                fine=False,
                optional=True,
                remedy="pip install -e .",
            )
        ]
    extras = importlib.metadata.metadata("nbrl").get_all("Provides-Extra") or []
    by_extra: dict[str, list[Requirement]] = {name: [] for name in ["", *extras]}
    for requirement in map(Requirement, lines):
        if requirement.name != "nbrl":
            # a requirement without a marker belongs to all; it is the default's
            held = [e for e in by_extra if _holds(requirement, e)]
            by_extra["" if "" in held else held[0]].append(requirement)
    return [_extra(name, wanted) for name, wanted in by_extra.items() if wanted]


def _holds(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _extra(name: str, wanted: Iterable[Requirement]) -> Finding:
    said, lacking = [], []
    for requirement in wanted:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            lacking.append(f"{requirement.name} is missing")
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        wrong = f"{requirement.name} {version} is not {requirement.specifier}"
        said.append(f"{requirement.name} {version}") if fits else lacking.append(wrong)
    extra = f"[{name}]" if name else ""
    purpose = PURPOSES.get(name, name)
    return Finding(
        name=f"extra {name}" if name else "nbrl",
        said=f"{purpose}: {', '.join(lacking or said)}",
        fine=not lacking,
        optional=bool(name),
        remedy=f"pip install 'nbrl{extra}'" if lacking else "",
    )
