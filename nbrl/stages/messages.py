"""What happens in a run and what is decided: the messages of ``buffer``. Imports nothing.

A group is the number of its prompt in the order in which prompts are drawn, a sample its place in
the group.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFinished:
    """A sample came; one of a group that was dropped, or that came before, changes nothing."""

    group: int
    sample: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupComplete:
    """All samples of a group came and were scored; a dead group has nothing to learn from."""

    group: int
    live: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDone:
    """The trainer took its step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsSynced:
    """The engines serve the trainer's weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLost:
    """An engine ended, and with it the unfinished samples of these groups."""

    groups: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupted:
    """Nothing new begins; what is under way is kept as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Continued:
    """The end of an interrupt, perhaps in another process."""


Event = (
    SampleFinished | GroupComplete | StepDone | WeightsSynced | EngineLost | Interrupted | Continued
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Admit:
    """Draw a prompt and begin its samples, by the weights of ``version``."""

    group: int
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """Begin these samples again, or go on with their prefixes."""

    group: int
    samples: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """Forget a group: ``stale``, ``surplus`` or ``dead``."""

    group: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """Take a step on these groups; ``staleness`` is the age in versions of the oldest."""

    groups: tuple[int, ...]
    staleness: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync:
    """Send the trainer's weights to the engines under this version."""

    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Nothing to do before one of these comes: ``samples, verdicts, step, sync, continue``."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """All steps are taken, or there are no prompts left for another."""


Decision = Admit | Resume | Drop | Train | Sync | Wait | Finish
