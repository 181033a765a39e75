"""The embedded rollout engine: transformers in this process, on the trainer's own weights.

May import ``protocols``, ``config``, ``errors``, ``backends.models``, ``backends.prefix`` and this
room.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from nbrl.backends.engines.attention import decoding
from nbrl.backends.engines.decoder import Decoder, Finished, Samples, StopTest
from nbrl.backends.engines.requests import check_prompts
from nbrl.backends.models import LoadedModel
from nbrl.backends.prefix import LAYER_TYPES
from nbrl.config import Sampling
from nbrl.errors import ConfigError, RolloutError
from nbrl.protocols import Advance, Generation, GenerationRequest

ATTENTIONS = ("sdpa", "varlen", "eager")


class HFEngine:
    """Samples from a causal language model of transformers; fulfils ``RolloutEngine``.

    The module is the trainer's, not a copy: a step of the trainer is at once what is sampled from.
    A prompt is prefilled once for all its samples (once for every ``max_batch`` of them), rows that
    are finished leave the batch, waiting prompts take their places.
    """

    def __init__(self, model: LoadedModel, *, max_batch: int = 512) -> None:
        """Hold the model; nothing is copied or reserved before ``generate``.

        Raises:
            ConfigError: The model's attention is of a kind that this engine has no cache for.
        """
        self._module = model.module
        self._model = model
        self._max_batch = max_batch
        self._version = 0
        self._window = _window(model)

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, advance: Advance
    ) -> list[Generation]:
        """Finished samples, in the order of the requests and of their seeds.

        The answer is the sampled ids: EOS is among them, and so is the token that completes a stop
        string. An answer ends at the latest where the context does, with reason ``length``; EOS
        on the last token allowed is ``stop``. Log-probs are float32, of the full softmax at the
        sampling temperature. On KeyboardInterrupt the finished samples are returned.

        Raises:
            DataError: A prompt is empty, holds ids outside the vocabulary, or leaves no room for
                an answer; nothing was generated.
            ConfigError: Answers would reach beyond a sliding attention window.
            RolloutError: The model's logits are not finite, as those of a policy that diverged.
        """
        samples = self._samples(requests, sampling)
        finished: list[Finished] = []
        if len(samples.prompt) == 0:
            return []
        try:
            with decoding(self._module) as forward:
                decoder = Decoder(
                    forward,
                    samples,
                    sampling,
                    eos_ids=self._model.eos_ids,
                    stop_test=_stop_test(self._model.tokenizer, sampling.stop),
                    max_batch=self._max_batch,
                    device=next(self._module.parameters()).device,
                )
                for done, tokens in decoder.run():
                    finished += done
                    advance(len(done), tokens)
        except KeyboardInterrupt:
            pass
        except RolloutError as error:
            raise RolloutError(
                f"rollout with model {self._model.name!r} at version {self._version}: {error}. "
                f"{_health(self._module)} Go back to weights from before (load a checkpoint, or "
                "connect again), and train with a lower learning rate or a smaller max_grad_norm."
            ) from error
        return self._generations(requests, samples, finished)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over weights under this version; those that are the module's own are not copied.

        Raises:
            RolloutError: A name or a shape that the module does not have; nothing was changed.
        """
        held = self._module.state_dict(keep_vars=True)
        copies = []
        for name, tensor in weights:
            if name not in held or held[name].shape != tensor.shape:
                has = tuple(held[name].shape) if name in held else "no such weight"
                raise RolloutError(
                    f"load_weights: got {name!r} of shape {tuple(tensor.shape)}; the engine's "
                    f"model {self._model.name!r} has {has}. Connect engine and "
                    "trainer to the same model."
                )
            if held[name].data_ptr() != tensor.data_ptr():
                copies.append((held[name], tensor))
        with torch.no_grad():
            for own, tensor in copies:
                own.copy_(tensor)
        self._version = version

    def describe(self) -> Mapping[str, object]:
        """What is resident; ``bytes`` are those of the weights, shared with the trainer."""
        parameters = list(self._module.parameters())
        return {
            "kind": "hf",
            "model": self._model.name,
            "device": str(parameters[0].device),
            "dtype": str(parameters[0].dtype).removeprefix("torch."),
            "bytes": sum(p.nbytes for p in parameters),
            "context_length": self._model.context_length,
            "max_batch": self._max_batch,
            "version": self._version,
        }

    def _samples(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> Samples:
        """All samples wanted, after the prompts have been judged."""
        room = self._model.context_length - np.array([len(r.token_ids) for r in requests], np.int64)
        check_prompts(
            requests,
            name=self._model.name,
            context_length=self._model.context_length,
            vocabulary=self._module.get_input_embeddings().num_embeddings,  # pyright: ignore[reportCallIssue] -- transformers' models all have it
        )
        limits = (
            room if sampling.max_new_tokens is None else np.minimum(room, sampling.max_new_tokens)
        )
        counts = [len(r.seeds) for r in requests]
        longest = max(
            (len(r.token_ids) + int(m) for r, m in zip(requests, limits, strict=True)), default=0
        )
        if self._window is not None and longest > self._window:
            raise ConfigError(
                f"engine 'hf': prompt and answer may take {longest} tokens together, the sliding "
                f"attention window of model {self._model.name!r} is {self._window}, and this "
                "engine attends to everything. Pass a smaller max_new_tokens, or shorter prompts."
            )
        return Samples(
            prompts=[np.asarray(r.token_ids, np.int64) for r in requests],
            prompt=np.repeat(np.arange(len(requests)), counts),
            seeds=np.array([seed for r in requests for seed in r.seeds], np.uint64),
            limits=np.repeat(limits, counts),
        )

    def _generations(
        self, requests: Sequence[GenerationRequest], samples: Samples, finished: Sequence[Finished]
    ) -> list[Generation]:
        firsts = np.searchsorted(samples.prompt, np.arange(len(requests)))
        return [
            Generation(
                prompt_id=requests[samples.prompt[done.sample]].prompt_id,
                sample_index=int(done.sample - firsts[samples.prompt[done.sample]]),
                token_ids=done.token_ids,
                logprobs=done.logprobs,
                finish_reason="stop" if done.stopped else "length",
                version=self._version,
                seconds=done.seconds,
            )
            for done in sorted(finished, key=lambda done: done.sample)
        ]


def _window(model: LoadedModel) -> int | None:
    """The sliding attention window, if layers have one; raises for layers without such a cache."""
    config = model.module.config.get_text_config()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue] -- PEFT's, too
    settings = config.to_dict()
    kinds = settings.get("layer_types") or ()
    attention = model.module.config._attn_implementation  # pyright: ignore[reportAttributeAccessIssue] -- as above
    unknown = sorted(set(kinds) - set(LAYER_TYPES))
    if unknown or attention not in ATTENTIONS:
        raise ConfigError(
            f"engine 'hf': model {model.name!r} has layers {unknown or list(LAYER_TYPES)} and "
            f"attention {attention!r}; this engine has a cache for {', '.join(LAYER_TYPES)} under "
            f"{' or '.join(ATTENTIONS)}. Pass Model(attention='sdpa') or another model."
        )
    slides = "sliding_attention" in kinds if kinds else settings.get("use_sliding_window", True)
    return settings.get("sliding_window") if slides else None


def _health(module: nn.Module) -> str:
    """A sentence about which weights are not finite."""
    named = dict(module.named_parameters())
    bad = [name for name, weight in named.items() if not bool(weight.isfinite().all())]
    if bad:
        return (
            f"The policy's weights are not finite: {len(bad)} of {len(named)} tensors hold NaN or "
            f"infinity, {bad[0]!r} among them."
        )
    return (
        "The policy's weights are finite, but so large, or the temperature is so small, that what "
        "is computed from them is not."
    )


def _stop_test(tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> StopTest | None:
    """The test for stop strings, on each answer's decoded tail; ``None`` where there are none."""
    if not stop:
        return None
    # A character takes at most 4 byte-level tokens; a few more let the decoder see a clean start.
    window = 4 * max(len(s) for s in stop) + 4

    def stops(answers: list[np.ndarray]) -> np.ndarray:
        tails = tokenizer.batch_decode(
            [ids[-window:].tolist() for ids in answers],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        return np.array([any(s in tail for s in stop) for tail in tails], bool)

    return stops
