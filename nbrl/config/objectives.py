"""The settings of every training objective that is not a policy loss.

Each is a small frozen dataclass that says how terms of one kind of data become a loss. What it
trains on is one of the kinds of :class:`nbrl.Examples`, named in :data:`TRAINS_ON`. May import
``settings`` and ``rules``.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY

from nbrl.config.settings import PolicyLoss
from nbrl.frozen import frozen
from nbrl.rules import make_plain


@frozen()
class SFT:
    """Supervised fine-tuning: ``-log p`` of the tokens that the assistant should say.

    ``aggregation`` is one of ``nbrl.functional.AGGREGATIONS`` without a constant divisor; the token
    mean runs over all tokens of the optimizer step. ``aux_coef`` weighs the load-balancing loss of
    a mixture-of-experts model, taken of each micro-batch and averaged over rows.
    """

    aggregation: str = "token-mean"
    aux_coef: float = 0.0

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class RewardLoss:
    """A reward model from preferences: ``-log sigmoid(chosen - rejected)``, a mean over pairs.

    ``margin=True`` subtracts each pair's own margin. Scores are computed in float32.
    """

    margin: bool = False

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class DPO:
    """Direct preference optimization, a mean over pairs.

    ``kind`` is ``"sigmoid"``, with ``label_smoothing`` for cDPO, or ``"ipo"``. IPO takes log-probs
    summed over an answer (``length="sum"``, as OpenRLHF) or their mean (``"mean"``, as TRL).
    ``nll_coef`` adds the mean over pairs of the chosen answer's mean token loss. ``aux_coef`` is as
    in :class:`SFT`.
    """

    beta: float = 0.1
    kind: str = "sigmoid"
    label_smoothing: float = 0.0
    length: str = "sum"
    nll_coef: float = 0.0
    aux_coef: float = 0.0

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class KTO:
    """Kahneman-Tversky optimization on answers that are each wanted or not, a mean over rows.

    The reference point is the mean log-ratio of answers to other prompts, floored at 0, over all
    rows of the optimizer step.
    """

    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        make_plain(self)


@frozen(kw_only=False)
class Distillation:
    """Learning from a teacher's distributions: ``(1 - coef) * nll + coef * cross-entropy to it``.

    ``teacher`` is a bundled name, folder or hub name of a model with the same vocabulary.
    """

    teacher: str
    _: KW_ONLY
    coef: float = 0.4

    def __post_init__(self) -> None:
        make_plain(self)


@frozen()
class ProcessReward:
    """A process reward model: at each placeholder, one of two tokens says how good the step was.

    ``reward_tokens`` are (good, bad), each one token of the model; ``token_ids`` are their ids,
    filled in by the session.
    """

    reward_tokens: tuple[str, str] = ("+", "-")
    token_ids: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        make_plain(self)


Objective = SFT | RewardLoss | DPO | KTO | Distillation | ProcessReward
Loss = PolicyLoss | Objective

TRAINS_ON: Mapping[type, str] = {
    SFT: "conversations",
    RewardLoss: "pairs",
    DPO: "pairs",
    KTO: "labelled",
    Distillation: "conversations",
    ProcessReward: "steps",
}
"""The kind of examples that each objective takes."""

DPO_KINDS = ("sigmoid", "ipo")
DPO_LENGTHS = ("sum", "mean")


def wants_reference_logprobs(loss: Objective) -> bool:
    """Whether the objective compares with the reference policy."""
    return isinstance(loss, DPO | KTO)
