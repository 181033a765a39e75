"""What is added to each of vLLM's workers; loaded by vLLM, by name, where the model runs.

Imports torch and safetensors only, so that a worker process needs nothing else of the house.
"""

from typing import Any

from safetensors.torch import load_file
from torch import Tensor


class WorkerHooks:
    """Methods that vLLM mixes into its worker class (``worker_extension_cls``).

    ``self`` is the worker, whose attributes are vLLM's.
    """

    def nbrl_set_temperature(self: Any, temperature: float) -> None:
        """From here on, logits are divided by this before the sampler sees them.

        vLLM's "raw" log-probs are those of temperature 1 and its "processed" ones have lost what
        top-k and top-p cut away; of logits that are scaled already, the raw ones are those of the
        full softmax at the sampling temperature.
        """
        model: Any = self.get_model()
        plain = type(model).compute_logits

        def scaled(*args: Any, **named: Any) -> Tensor | None:
            logits = plain(model, *args, **named)
            return logits if logits is None else logits.float().div_(temperature)

        model.__dict__["compute_logits"] = scaled

    def nbrl_reload_file(self: Any, path: str) -> None:
        """Take the weights of a safetensors file: tensors do not survive a call to a process."""
        weights = list(load_file(path).items())
        self.model_runner.reload_weights(weights_iterator=weights, is_checkpoint_format=True)
