"""One Ray cluster for the tests here, and a session on it that those of a module share."""

import contextlib

import pytest

import nbrl
from nbrl.errors import SessionError
from tests.clusters import cluster

ASKED = {
    "engine": nbrl.Engine("hf", count=2),
    "trainer": nbrl.Trainer(
        "deepspeed", ranks=2, zero_stage=2, optimizer=nbrl.Optimizer(lr=3e-4, max_grad_norm=1.0)
    ),
    "placement": nbrl.Placement(engine_cpus=0.5, trainer_cpus=0.5),
    "progress": "quiet",
}
"""Settings of the shared session, which a test may ask for again."""


@pytest.fixture(scope="session")
def place():
    """Where the cluster is."""
    with cluster() as found:
        yield found


@pytest.fixture(scope="module")
def away(place, tmp_path_factory):
    """The session of a module, through the client port; tests leave it alive and free."""
    session = nbrl.connect(place.client, run_dir=tmp_path_factory.mktemp("away") / "run", **ASKED)
    yield session
    with contextlib.suppress(SessionError):
        session.close()
