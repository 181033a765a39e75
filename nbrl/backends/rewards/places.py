"""Rewards that are no function of one's own: a server's address, a model's folder.

May import ``errors``. Nothing is asked or loaded here.
"""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from urllib.parse import urlsplit

from nbrl.errors import ConfigError, all_problems
from nbrl.frozen import frozen

TOKEN_VARIABLE = "NBRL_REWARD_TOKEN"
ROUTE = "/get_reward"
DTYPES = ("float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")


@frozen(kw_only=False)
class RewardServer:
    """Where rewards are asked for over HTTP, as one of the rewards of ``session.score``.

    Rows go out in requests of ``batch``, ``concurrency`` of them under way, each to the address
    with the fewest. A request that gets no connection, no whole reply within ``timeout`` seconds,
    or a 5xx is sent again, each time later and elsewhere where there is another address; at most
    ``tries`` times. Any other answer than 200 is final. A missing label is sent as ``""``. The
    bearer token comes from the environment variable ``NBRL_REWARD_TOKEN``, so that no cell holds
    it. ``replayable=False`` says that what it answers depends on more than the sample, so that
    stored samples are not scored by it unless that is asked for.

    Example: ``nbrl.RewardServer(("http://a:5000", "http://b:5000"))``; a single address may be
    given to ``score`` as a string. Without a path it means ``/get_reward``.
    """

    urls: str | tuple[str, ...]
    _: KW_ONLY
    timeout: float = 180.0
    tries: int = 5
    batch: int = 64
    concurrency: int = 8
    replayable: bool = True

    def __post_init__(self) -> None:
        given = (self.urls,) if isinstance(self.urls, str) else self.urls
        if not isinstance(given, tuple) or not given:
            raise ConfigError(
                f"RewardServer: urls must be 'http://host:port' or a tuple of them; got {given!r}."
            )
        problems = [why for url in given for why in _address_problems(url)]
        problems += [
            f"{name} must be a whole number above 0; got {value!r}"
            for name in ("tries", "batch", "concurrency")
            if type(value := getattr(self, name)) is not int or value < 1
        ]
        if isinstance(self.timeout, bool) or not 0 < float(self.timeout) < math.inf:
            problems.append(f"timeout must be seconds above 0; got {self.timeout!r}")
        if problems:
            raise all_problems("RewardServer", problems)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address with its path."""
        given = (self.urls,) if isinstance(self.urls, str) else self.urls
        return tuple(map(_with_route, given))


def _address_problems(url: object) -> list[str]:
    if not isinstance(url, str):
        return [f"{url!r} is no text; pass 'http://host:port'"]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return [f"{url!r} is no address: {error}"]
    if parts.password:
        # which is not repeated here
        given = f"the address of {parts.hostname!r} holds a password"
        return [f"{given}; set {TOKEN_VARIABLE} in the environment instead"]
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return [f"{url!r} must begin with http:// or https:// and name a host"]
    return []


def _with_route(url: str) -> str:
    return url if urlsplit(url).path not in ("", "/") else url.rstrip("/") + ROUTE


@frozen(kw_only=False)
class RewardModel:
    """A model that scores a text by one number, as one of the rewards of ``session.score``.

    A folder with a sequence classification checkpoint of one label, or one with a value head as
    OpenRLHF saves it; ``head`` names the head where the config's ``value_head_prefix`` does not.
    The score is read at the last token, so encoders like BERT, which read the first, are refused.
    A conversation goes through the model's own chat template, where it has one; other prompts
    stand before their answer as they are, with the model's EOS behind, as reward models are
    trained.

    With ``normalize`` scores become (score - mean) / std by the ``mean`` and ``std`` that training
    left in the config. A text of more than ``max_length`` tokens is an error of its sample: a cut
    one would get the score of another answer. ``tokens_per_batch`` counts padding.

    Example: ``session.score(rollouts, nbrl.RewardModel("models/my-rm", normalize=True))``.
    """

    path: str
    _: KW_ONLY
    head: str | None = None
    normalize: bool = False
    dtype: str = "float32"
    device: str = "auto"
    max_length: int | None = None
    tokens_per_batch: int = 16384

    def __post_init__(self) -> None:
        """Refuse, all in one message, what cannot work.

        Raises:
            ConfigError: A dtype or device that is not known, or a limit that allows nothing.
        """
        known = {"dtype": (self.dtype, DTYPES), "device": (self.device, DEVICES)}
        problems = [
            f"{name} must be one of {', '.join(allowed)}; got {given!r}"
            for name, (given, allowed) in known.items()
            if given not in allowed
        ]
        problems += [
            f"{name} must be above 0; got {given}"
            for name, given in {
                "max_length": self.max_length,
                "tokens_per_batch": self.tokens_per_batch,
            }.items()
            if given is not None and given <= 0
        ]
        if problems:
            raise all_problems(f"RewardModel({self.path!r})", problems)


def need(asked: str, packages: Sequence[str], extra: str) -> None:
    """Raise a ConfigError that names the packages which are not there and how to get them."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{asked} needs {' and '.join(missing)}, not installed here; run: "
            f"pip install 'nbrl[{extra}]'"
        )


def written(model: RewardModel) -> str:
    """The settings and the state of the folder: a model that is trained on is another reward."""
    files = [file for kind in ("*.safetensors", "*.json") for file in Path(model.path).glob(kind)]
    stats = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return f"{model!r} {stats}"
