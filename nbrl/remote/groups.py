"""Engines and ranks as one engine and one trainer: fan out, wait, gather.

May import ``backends.interrupts``, ``protocols``, ``errors`` and its neighbours.
"""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError
from torch import Tensor

from nbrl.backends.interrupts import held_interrupts
from nbrl.config import Loss, PolicyLoss, Sampling
from nbrl.errors import RolloutError, SessionError
from nbrl.protocols import Advance, Generation, GenerationRequest, LossTerms, MicroBatch
from nbrl.remote.waiting import STOP_SECONDS, all_of, control, first_done, value_of
from nbrl.remote.weights import pack, unpack

RESTARTS = 3
"""Times that engines are started again within one call, all together."""
SYNC_SECONDS = 600.0


class _Gauge:
    """Turns the readings of workers, each since its call began, into calls of ``advance``."""

    def __init__(self, advance: Advance) -> None:
        self._advance, self._told = advance, (0, 0)

    def show(self, readings: Iterable[tuple[int, int]]) -> None:
        """Tell what has come since the last time; called often, so that it may raise."""
        found = list(readings)
        now = (sum(units for units, _ in found), sum(tokens for _, tokens in found))
        fresh = tuple(max(b - a, 0) for a, b in zip(self._told, now, strict=True))
        self._told = (self._told[0] + fresh[0], self._told[1] + fresh[1])
        self._advance(fresh[0], fresh[1])


class RemoteEngines:
    """Several engines behind the protocol of one; fulfils ``RolloutEngine``.

    A free engine takes the next prompts. One that dies is started again, with the weights that it
    had, and its prompts are asked for again: a sample depends on its seed, so it is the same one.
    """

    def __init__(
        self, spawn: Callable[[int], Any], count: int, publish: Callable[[], Any], *, sleeps: bool
    ) -> None:
        """Start them; ``publish`` gives a reference to the trainer's packed weights."""
        self._spawn, self._publish, self._sleeps = spawn, publish, sleeps
        self._workers = [spawn(i) for i in range(count)]
        self._packed: Any = None
        self._version = self.retries = 0

    def ready(self, advance: Advance) -> None:
        """Wait until all have loaded; engines that share a device are asleep then.

        Raises:
            SessionError: One died.
            ConfigError: The engine refuses the model or the settings.
        """
        starts = [worker.started.remote() for worker in self._workers]
        all_of(starts, lambda: advance(0, 0), asked="start of the engines")
        advance(len(starts), 0)
        self._rest()

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, advance: Advance
    ) -> list[Generation]:
        """Finished samples, in the order of the requests; after an interrupt, those there are.

        Raises:
            RolloutError: Engines died more often than they are started again.
        """
        waiting = deque(_chunks(requests, len(self._workers)))
        found: dict[str, list[Generation]] = {}
        running: dict[Any, tuple[int, Sequence[GenerationRequest]]] = {}
        counted = _Gauge(advance)
        finished, restarts = (0, 0), 0
        self._each(lambda worker: worker.wake.remote())
        sampling_ref = ray.put(sampling)
        with held_interrupts() as held:
            while waiting or running:
                busy = {number for number, _ in running.values()}
                for number in (i for i in range(len(self._workers)) if i not in busy):
                    if waiting:
                        chunk = waiting.popleft()
                        ref = self._workers[number].generate.remote(chunk, sampling_ref)
                        running[ref] = number, chunk
                for ref in first_done(list(running), lambda: None):
                    number, chunk = running.pop(ref)
                    try:
                        for done in value_of(ref):
                            found.setdefault(done.prompt_id, []).append(done)
                            finished = finished[0] + 1, finished[1] + len(done.token_ids)
                    except RayActorError as error:
                        restarts += 1
                        self._restart(number, restarts, error)
                        waiting.appendleft(chunk)
                live = [self._workers[number] for number, _ in running.values()]
                counted.show([finished, *_progress(live)])
                if held.taken():
                    waiting.clear()
                    control([w.interrupt.remote() for w in live], None)
        self._rest()
        return [g for r in requests for g in found.get(r.prompt_id, [])]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Every engine takes over the trainer's weights, or these where some are given.

        Raises:
            SessionError: A transfer hangs or a worker died; says which.
            RolloutError: Something else arrived than was sent.
        """
        given = list(weights)
        packed = ray.put(pack(given)) if given else self._publish()
        self._each(lambda worker: worker.wake.remote())
        asked = f"sync of weights, version {version}, trainer to {len(self._workers)} engines"
        loads = [worker.load.remote(packed, version) for worker in self._workers]
        digests = all_of(loads, lambda: None, asked=asked, deadline=SYNC_SECONDS)
        if len(set(digests)) != 1:
            raise RolloutError(f"{asked}: engines have different weights, digests {digests}.")
        self._packed, self._version = packed, version
        self._rest()

    def describe(self) -> Mapping[str, object]:
        """The first engine's, with how many there are, where, and how often one was restarted."""
        told = self.rows()
        more = {"engines": len(told), "retries": self.retries}
        return {**told[0], **more, **_together(told)}

    def rows(self) -> list[Mapping[str, object]]:
        """What each engine has, in order.

        Raises:
            SessionError: One died since the last rollout, which would start it again.
        """
        asked = [worker.describe.remote() for worker in self._workers]
        return all_of(asked, lambda: None, asked="describe engines")

    def _restart(self, number: int, restarts: int, error: BaseException) -> None:
        """A new engine in the place of a dead one; its calls wait until it is up."""
        if restarts > RESTARTS:
            raise RolloutError(
                f"rollout: engines died {restarts} times in one call, the last one was engine "
                f"{number}: {str(error).strip().splitlines()[0]}. Look into Ray's logs (memory?), "
                "close the session and connect again."
            ) from error
        self.retries += 1
        self._workers[number] = self._spawn(number)
        if self._packed is not None:
            self._workers[number].load.remote(self._packed, self._version)

    def _rest(self) -> None:
        self._each(lambda worker: worker.sleep.remote())

    def _each(self, call: Callable[[Any], Any]) -> None:
        """One call on every engine that shares its device; a dead one is found out later."""
        if self._sleeps:
            control([call(worker) for worker in self._workers], None)


class RemoteTrainer:
    """The ranks of a trainer behind the protocol of one; fulfils ``Trainer``."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self._ranks = list(ranks)
        self._lost: str | None = None

    def annotate(
        self, batches: Sequence[MicroBatch], wanted: Sequence[str], advance: Advance
    ) -> dict[str, list[Tensor]]:
        """As the ranks' trainer."""
        shared, names = ray.put(list(batches)), tuple(wanted)
        return self._all(lambda rank: rank.annotate.remote(shared, names), advance, "annotate")

    def probe(
        self, batches: Sequence[MicroBatch], losses: Mapping[str, PolicyLoss], advance: Advance
    ) -> dict[str, LossTerms]:
        """As the ranks' trainer."""
        shared, asked = ray.put(list(batches)), dict(losses)
        return self._all(lambda rank: rank.probe.remote(shared, asked), advance, "probe")

    def step(
        self, minibatches: Sequence[Sequence[MicroBatch]], loss: Loss, advance: Advance
    ) -> list[LossTerms]:
        """As the ranks' trainer: all of it or, on any exception, none."""
        shared = ray.put([list(batches) for batches in minibatches])
        return self._all(lambda rank: rank.step.remote(shared, loss), advance, "train_step")

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Copies of the weights in this process."""
        packed = value_of(self.publish())
        yield from unpack(packed)[0]

    def publish(self) -> Any:
        """A reference to the packed weights, which stay where they were made."""
        self._check()
        # All are asked: parameters that are split are gathered together.
        refs = [rank.weights.remote() for rank in self._ranks]
        return refs[0]

    def describe(self) -> Mapping[str, object]:
        """Rank 0's, with the nodes of all."""
        told = self.rows()
        return {**told[0], **_together(told)}

    def rows(self) -> list[Mapping[str, object]]:
        """What each rank has, in order.

        Raises:
            SessionError: One died.
        """
        self._check()
        refs = [rank.describe.remote() for rank in self._ranks]
        return all_of(refs, lambda: None, asked="describe trainer")

    def _all(self, call: Callable[[Any], Any], advance: Advance, asked: str) -> Any:
        """Rank 0's answer to a call that all make; interrupts and deaths end it on all."""
        self._check()
        refs = [call(rank) for rank in self._ranks]
        gauge = _Gauge(advance)
        try:
            found = all_of(refs, lambda: gauge.show(_progress(self._ranks)), asked=asked)[0]
        except KeyboardInterrupt:
            control([rank.interrupt.remote() for rank in self._ranks], None)
            found = self._survived(refs, asked)
            if found is not None:
                # Too late to undo: the caller gets the result, and then the interrupt.
                signal.raise_signal(signal.SIGINT)
        except SessionError as error:
            self._end(str(error))
            raise
        if found is None:
            raise KeyboardInterrupt
        return found

    def _survived(self, refs: Sequence[Any], asked: str) -> Any:
        try:
            return all_of(refs, lambda: None, asked=asked, deadline=STOP_SECONDS)[0]
        except SessionError as error:
            self._end(str(error))
            raise

    def _end(self, why: str) -> None:
        """Kill all ranks: without one of them the others wait for ever."""
        self._lost = why
        for rank in self._ranks:
            ray.kill(rank)

    def _check(self) -> None:
        if self._lost is not None:
            raise SessionError(f"the trainer's ranks are gone since: {self._lost}")


def _chunks(
    requests: Sequence[GenerationRequest], engines: int
) -> list[Sequence[GenerationRequest]]:
    """Prompts in twice as many pieces as there are engines, so that the quick take more."""
    if engines == 1:
        return [requests] if requests else []
    size = max(1, -(-len(requests) // (2 * engines)))
    return [requests[i : i + size] for i in range(0, len(requests), size)]


def _together(rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Of several workers: their nodes and processes, and the sums of what they hold."""
    sums = {name: sum(int(row[name]) for row in rows) for name in ("bytes", "memory")}
    places = {n: ", ".join(sorted({str(row[n]) for row in rows})) for n in ("node", "pid")}
    return {**sums, **places}


def _progress(workers: Sequence[Any]) -> list[tuple[int, int]]:
    return control([worker.progress.remote() for worker in workers], (0, 0))
