"""Several losses on one shared forward pass, without changing anything.

May import ``protocols``, ``types``, ``config`` and torch.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nbrl.backends.trainers.objectives import Share, counted, finished, merge, objective
from nbrl.backends.trainers.passes import Models, say, training
from nbrl.backends.trainers.sketch import gradient_norm, sketches
from nbrl.config import PolicyLoss
from nbrl.protocols import Advance, LossTerms, MicroBatch
from nbrl.types import Metric


def probe_losses(
    models: Models,
    parameters: Sequence[Tensor],
    batches: Sequence[MicroBatch],
    losses: Mapping[str, PolicyLoss],
    advance: Advance,
) -> dict[str, LossTerms]:
    """Each loss's metrics, token terms, gradient norm and gradient sketch.

    Gradients are handed back by autograd and never stored on parameters; each loss needs memory
    for one float32 copy of them.
    """
    (total,) = counted([batches], list(losses.values()))
    shares: dict[str, list[Share]] = {name: [] for name in losses}
    gradients = {n: [torch.zeros_like(p, dtype=torch.float32) for p in parameters] for n in losses}
    with_entropy = any(loss.entropy_coef != 0 for loss in losses.values())
    for batch in batches:
        with training(models, dropout_seed=None):
            said = say(models, batch, entropy_gradient=with_entropy, critic_gradient=False)
            for name, loss in losses.items():
                value, share = objective(said, batch, loss, total)
                # Only the last loss may free the graph that all of them share.
                found = torch.autograd.grad(
                    value,
                    parameters,
                    retain_graph=name != list(losses)[-1],
                    materialize_grads=True,
                )
                for accumulated, gradient in zip(gradients[name], found, strict=True):
                    accumulated.add_(gradient)
                shares[name].append(share)
        advance(len(batch.rows), int(batch.mask.sum()))
    drawn = dict(zip(losses, sketches(list(gradients.values())), strict=True))
    return {
        name: finished(
            shares[name],
            {
                **merge(shares[name], total, loss),
                "grad_norm": Metric(value=gradient_norm(gradients[name])),
            },
            place=f"probe of {name!r}",
            sketch=drawn[name],
        )
        for name, loss in losses.items()
    }
