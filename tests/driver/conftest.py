"""Sessions on the bundled model, small and quiet."""

import itertools

import pytest

import nbrl
from nbrl.config import Critic, Optimizer, Sampling, Trainer

SHORT = Sampling(max_new_tokens=6)


def exact(response: str, label: str) -> float:
    """1 for the right sum."""
    return float(response.strip() == label)


@pytest.fixture
def open_tiny(tmp_path):
    """Opens sessions on the bundled model, each in a run folder of its own."""
    count, opened = itertools.count(), []

    def open_one(*, lr=1e-3, critic=False, packed=False, seed=0, **settings):
        trainer = Trainer(
            optimizer=Optimizer(lr=lr),
            critic=Critic(optimizer=Optimizer(lr=lr)) if critic else None,
            packed=packed,
        )
        session = nbrl.connect(
            trainer=trainer,
            seed=seed,
            run_dir=tmp_path / f"run-{next(count)}",
            progress="quiet",
            **settings,
        )
        opened.append(session)
        return session

    yield open_one
    for session in opened:
        session.close()


@pytest.fixture
def session(open_tiny):
    """One session."""
    return open_tiny()


@pytest.fixture
def batch_of():
    """Makes a training batch with a session."""

    def make(session, *, k=6, n=4, estimator="grpo", **settings):
        rollouts = session.rollout(session.next_prompts(k), n=n, sampling=SHORT)
        scored = session.score(rollouts, exact)
        return session.compute_advantages(scored, estimator, **settings)

    return make


def digest(session) -> str:
    """A hash of everything that the trainer would save."""
    return session._runtime.trainer.digest()
