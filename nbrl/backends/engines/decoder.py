"""The decode loop of one call: prefill a prompt once, one forward a token, finished rows leave.

May import ``config`` and this room. Prompts are padded on the right, where causal attention never
looks, so prefilling needs no mask; answers grow in a :class:`SlotCache`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin

from nbrl.backends.engines.cache import SlotCache
from nbrl.backends.engines.sampling import draw, uniforms
from nbrl.config import Sampling

PREFILL_TOKENS = 8192
"""Rows x width of one prefill forward."""
PREFILL_LENGTHS = 8
"""Different prompt lengths in one prefill forward, each of which costs a row of logits a prompt."""
FIRST_COLUMNS = 256
"""Answer tokens for which memory is reserved at first; the cache grows when more are needed."""

StopTest = Callable[[list[np.ndarray]], np.ndarray]
"""Which of these answers, given by their ids, end with a stop string: bool ``[n]``."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Samples:
    """What is wanted, one entry a sample; those of a prompt stand together.

    ``prompt`` indexes ``prompts``; ``limits`` are the most tokens each may have.
    """

    prompts: Sequence[np.ndarray]
    prompt: np.ndarray
    seeds: np.ndarray
    limits: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Finished:
    """One sample that is whole. ``stopped`` is False where the limit cut it."""

    sample: int
    token_ids: np.ndarray
    logprobs: np.ndarray
    stopped: bool
    seconds: float


class Decoder:
    """The state of one call; :meth:`run` consumes it."""

    def __init__(
        self,
        forward: Callable[..., Any],
        samples: Samples,
        sampling: Sampling,
        *,
        eos_ids: Sequence[int],
        stop_test: StopTest | None,
        max_batch: int,
        device: torch.device,
    ) -> None:
        """Queue the samples, longest prompts first so that neighbours are alike."""
        self.forward = forward
        self.samples = samples
        self.sampling = sampling
        self.eos_ids = np.asarray(eos_ids, np.int64)
        self.stop_test = stop_test
        self.device = device
        self.lengths = np.array([len(p) for p in samples.prompts], np.int64)[samples.prompt]
        self.max_rows = min(max_batch, len(samples.prompt))
        self.waiting = deque(self._queue())
        self.cache: SlotCache | None = None
        # Of each row in use: the sample that it holds, and its newest token, not cached yet.
        self.rows = np.zeros(0, np.int64)
        self.last = torch.zeros(0, dtype=torch.int64, device=device)
        self.counts = np.zeros(len(samples.prompt), np.int64)
        self.started = np.zeros(len(samples.prompt))
        self.token_ids = np.zeros((len(samples.prompt), 32), np.int32)
        self.logprobs = np.zeros((len(samples.prompt), 32), np.float32)

    def run(self) -> Iterator[tuple[list[Finished], int]]:
        """After each forward: the samples that it finished, and how many tokens it drew."""
        while self.waiting or len(self.rows):
            free = self.max_rows - len(self.rows)
            # A refill waits until a quarter of the batch is free: prefills are cheaper together.
            room = max(len(self.waiting[0]), self.max_rows // 4) if self.waiting else free + 1
            if free >= room or (self.waiting and not len(self.rows)):
                yield from self._admit(free)
            else:
                yield self._step()

    def _queue(self) -> list[np.ndarray]:
        """The samples of each prompt, in pieces that fit the batch, by falling prompt length."""
        count = len(self.samples.prompts)
        starts = np.searchsorted(self.samples.prompt, np.arange(count + 1))
        order = sorted(range(count), key=lambda p: -len(self.samples.prompts[p]))
        pieces = []
        for p in order:
            of_prompt = np.arange(starts[p], starts[p + 1])
            pieces += [
                of_prompt[i : i + self.max_rows] for i in range(0, len(of_prompt), self.max_rows)
            ]
        return pieces

    def _admit(self, free: int) -> Iterator[tuple[list[Finished], int]]:
        """Prefill waiting prompts into the free rows, one forward for prompts of like length."""
        while self.waiting and len(self.waiting[0]) <= free:
            pieces: list[np.ndarray] = []
            lengths: set[int] = set()
            width = self.lengths[self.waiting[0][0]]
            while self.waiting and len(self.waiting[0]) <= free:
                lengths.add(int(self.lengths[self.waiting[0][0]]))
                full = (len(pieces) + 1) * width > PREFILL_TOKENS or len(lengths) > PREFILL_LENGTHS
                if pieces and full:
                    break
                pieces.append(self.waiting.popleft())
                free -= len(pieces[-1])
            yield self._prefill(pieces)

    def _prefill(self, pieces: Sequence[np.ndarray]) -> tuple[list[Finished], int]:
        """Run each prompt once, draw the first token of its samples, and give them rows."""
        admitted = np.concatenate(pieces)
        self.started[admitted] = time.perf_counter()
        prompts = [self.samples.prompts[int(self.samples.prompt[piece[0]])] for piece in pieces]
        ends = torch.tensor([len(p) for p in prompts], device=self.device) - 1
        kept, place = ends.unique(return_inverse=True)
        ids = torch.zeros(len(prompts), int(kept[-1]) + 1, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.from_numpy(prompt)
        prefilled = DynamicCache()
        positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
        out = self.forward(
            input_ids=ids.to(self.device),
            position_ids=positions,
            past_key_values=prefilled,
            use_cache=True,
            logits_to_keep=kept,
        )
        source = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
        logits = out.logits[torch.arange(len(prompts), device=self.device), place]
        tokens, done, finished = self._draw(logits[self._index(source)], admitted)
        alive = np.flatnonzero(~done)
        first = len(self.rows)
        layers = cast("list[CacheLayerMixin]", prefilled.layers)
        if self.cache is None:
            columns = int((self.lengths + np.minimum(self.samples.limits, FIRST_COLUMNS)).max())
            self.cache = SlotCache(layers, self.max_rows, columns)
        self.cache.admit(layers, self._index(source[alive]), first)
        self.rows = np.concatenate([self.rows, admitted[alive]])
        self.last = torch.cat([self.last, tokens[self._index(alive)]])
        return finished, len(admitted)

    def _step(self) -> tuple[list[Finished], int]:
        """One token for every row in use."""
        assert self.cache is not None
        rows = self.rows
        cached = self.lengths[rows] + self.counts[rows] - 1
        self.cache.reserve(int(cached.max()) + 1)
        lengths = torch.from_numpy(cached).to(self.device)
        self.cache.cursor.point(lengths)
        out = self.forward(
            input_ids=self.last[:, None],
            attention_mask=self.cache.cursor.mask(self.cache.layers[0].keys.dtype),
            position_ids=lengths[:, None],
            past_key_values=self.cache.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.last, done, finished = self._draw(out.logits[:, -1], rows)
        if done.any():
            self._compact(done)
        return finished, len(rows)

    def _draw(
        self, logits: Tensor, samples: np.ndarray
    ) -> tuple[Tensor, np.ndarray, list[Finished]]:
        """The next token of these samples, which of them it finishes, and those."""
        at = self.counts[samples]
        drawn, logprobs = draw(logits, uniforms(self.samples.seeds[samples], at), self.sampling)
        tokens = drawn.cpu().numpy()
        if at.max() >= self.token_ids.shape[1]:
            self.token_ids = np.pad(self.token_ids, ((0, 0), (0, self.token_ids.shape[1])))
            self.logprobs = np.pad(self.logprobs, ((0, 0), (0, self.logprobs.shape[1])))
        self.token_ids[samples, at] = tokens
        self.logprobs[samples, at] = logprobs.cpu().numpy()
        self.counts[samples] = at + 1
        stopped = np.isin(tokens, self.eos_ids)
        if self.stop_test is not None:
            stopped |= self.stop_test([self.token_ids[s, : self.counts[s]] for s in samples])
        done = stopped | (self.counts[samples] >= self.samples.limits[samples])
        finished = [self._finish(int(samples[i]), bool(stopped[i])) for i in np.flatnonzero(done)]
        return drawn, done, finished

    def _finish(self, sample: int, stopped: bool) -> Finished:
        count = self.counts[sample]
        return Finished(
            sample=sample,
            token_ids=self.token_ids[sample, :count].copy(),
            logprobs=self.logprobs[sample, :count].copy(),
            stopped=stopped,
            seconds=time.perf_counter() - self.started[sample],
        )

    def _compact(self, done: np.ndarray) -> None:
        """Fill the places of finished rows with the last rows that go on."""
        assert self.cache is not None
        left = len(done) - int(done.sum())
        targets = np.flatnonzero(done[:left])
        sources = left + np.flatnonzero(~done[left:])
        to, come = self._index(targets), self._index(sources)
        self.cache.move(come, to, self.cache.cursor.width)
        self.rows[targets] = self.rows[sources]
        self.last[to] = self.last[come]
        self.rows, self.last = self.rows[:left], self.last[:left]

    def _index(self, places: np.ndarray) -> Tensor:
        return torch.from_numpy(places).to(self.device)
