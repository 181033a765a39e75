"""One GRPO step of nbrl against TRL's GRPOTrainer: same model, prompts, batch and length.

    python -m benchmarks.step_vs_trl [--model tiny|smollm2] [--full-length] [--steps 15]

Each runs in a process of its own, with torch's default threads; one computes while the other
waits, turn by turn, so that whatever else the machine does falls on both. A step is all of it:
generate, reward, advantages, forward, backward, optimizer. Neither recomputes activations, and
each trains on the whole batch in one optimizer step.

Equal work is checked: the same prompt ids, as many generated tokens within 5 %, and gradients of
one fixed batch that agree to 1e-4 of their norm. Answers end with EOS; with ``--full-length`` the
tiny model has no EOS and every answer takes all 32 tokens.

TRL is not a dependency of nbrl: ``pip install --no-deps -r requirements/bench.txt``.
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MAX_NEW_TOKENS = 32
LEARNING_RATE = 1e-6
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A workload, and the largest share of TRL's time that nbrl may take."""

    model: str
    prompts: int
    samples: int
    limit: float
    aim: float
    chat: bool
    full_length: bool = False
    rounds: int = 18
    clock: str = "wall"


CASES = {
    "tiny": Case(model="tiny", prompts=32, samples=8, limit=0.6, aim=0.4, chat=False),
    "smollm2": Case(
        model="smollm2-135m-instruct", prompts=8, samples=4, limit=0.7, aim=0.5, chat=True
    ),
}


def sums(case: Case) -> list[list[tuple[str, str]]]:
    """The prompts and labels of each round."""
    import numpy as np

    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 100, (case.rounds, case.prompts, 2)).tolist()
    return [[(f"{a}+{b}=", str(a + b)) for a, b in row] for row in pairs]


def reward(response: str, label: str) -> float:
    """1 where the answer begins with the label."""
    return float(response.strip().startswith(label))


def prepare(case: Case, folder: str) -> list[list[str]]:
    """Save the model for both; the prompts' texts, special tokens of the chat template included."""
    from nbrl.backends.models import load_policy
    from nbrl.config import Model

    policy = load_policy(Model(case.model))
    if case.full_length:
        # An id that is hardly ever sampled takes the place of EOS.
        policy.tokenizer.eos_token = policy.tokenizer.pad_token
        policy.module.generation_config.eos_token_id = policy.tokenizer.pad_token_id
        policy.module.config.eos_token_id = policy.tokenizer.pad_token_id
    policy.module.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    texts = [[prompt for prompt, _ in row] for row in sums(case)]
    if not case.chat:
        return texts
    return [[chatted(policy.tokenizer, prompt) for prompt in row] for row in texts]


def chatted(tokenizer: Any, prompt: str) -> str:
    """A question whose answer is rarely shorter than the limit."""
    asked = [{"role": "user", "content": f"Explain step by step how to work out {prompt[:-1]}."}]
    return tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)


def nbrl_worker(pipe: Connection, case: Case, texts: list[list[str]], folder: str) -> None:
    """Answers ``prompts``, ``gradient`` and ``step`` with nbrl's session."""
    import nbrl
    from nbrl.backends.sources import prompts_table

    now = CLOCKS[case.clock]
    labels = [[label for _, label in row] for row in sums(case)]
    session = nbrl.connect(
        model=folder,
        trainer=nbrl.Trainer(optimizer=nbrl.Optimizer(lr=LEARNING_RATE, betas=(0.9, 0.999))),
        run_dir=Path(folder) / "run",
        progress="quiet",
    )
    sampling = nbrl.Sampling(max_new_tokens=MAX_NEW_TOKENS)

    def batch_of(index: int, clock: Callable[[str], None]) -> nbrl.Advantaged:
        rows = [
            {"prompt_id": f"{index}-{i}", "prompt": text, "label": label, "metadata": "{}"}
            for i, (text, label) in enumerate(zip(texts[index], labels[index], strict=True))
        ]
        prompts = nbrl.Prompts(table=prompts_table(rows))
        rollouts = session.rollout(prompts, n=case.samples, sampling=sampling)
        clock("rollout")
        scored = session.score(rollouts, reward)
        clock("score")
        advantaged = session.compute_advantages(scored, "grpo")
        clock("advantages")
        return advantaged

    def step(index: int) -> dict[str, Any]:
        marks = [("start", now())]

        def clock(name: str) -> None:
            marks.append((name, now()))

        result = session.train_step(batch_of(index, clock))
        clock("train")
        return {
            "seconds": marks[-1][1] - marks[0][1],
            "tokens": int(result.metrics["tokens"].value),
            "phases": {name: at - before for (_, before), (name, at) in itertools.pairwise(marks)},
        }

    def gradient(path: str) -> None:
        save_gradient(folder, batch_of(0, lambda _: None), path)

    def prompts() -> list[list[int]]:
        ids = session.rollout(
            batch_of(0, lambda _: None).scored.rollouts.prompts, sampling=sampling
        )
        rows = ids.table.select(["token_ids", "source"]).to_pylist()
        return [row["token_ids"][: row["source"].index(1)] for row in rows]

    serve(pipe, {"step": step, "gradient": gradient, "prompts": prompts})


def save_gradient(folder: str, batch: Any, path: str) -> None:
    """Save a batch, advantages for it, and nbrl's gradient of the loss at the first weights."""
    import numpy as np
    import pyarrow as pa
    import torch

    import nbrl
    from nbrl.backends.models import load_policy
    from nbrl.backends.trainers.objectives import counted, objective
    from nbrl.backends.trainers.passes import gather_models, say, training
    from nbrl.stages.batching import make_batches
    from nbrl.types.columns import list_column

    rollouts = batch.scored.rollouts
    sources = rollouts.table.column("source").to_pylist()
    # Rewards of a group may all be equal: the check needs advantages that are not.
    drawn = np.random.default_rng(1).standard_normal(len(batch)).astype(np.float32)
    column = [np.where(np.array(s) == 1, a, 0) for s, a in zip(sources, drawn, strict=True)]
    parts = make_batches(
        rollouts,
        {"advantages": list_column(column, pa.float32())},
        max_tokens=nbrl.Trainer().micro_batch_tokens,
    )
    module = load_policy(nbrl.Model(folder)).module
    models = gather_models(module, None, gradient_checkpointing=False)
    loss = nbrl.PolicyLoss()
    (total,) = counted([parts], [loss])
    for part in parts:
        with training(models, dropout_seed=None):
            said = say(models, part, entropy_gradient=False, critic_gradient=False)
            objective(said, part, loss, total)[0].backward()
    torch.save(
        {
            "token_ids": rollouts.table.column("token_ids").to_pylist(),
            "source": sources,
            "advantages": torch.from_numpy(drawn),
            "gradient": {name: p.grad for name, p in module.named_parameters()},
        },
        path,
    )


def trl_worker(pipe: Connection, case: Case, texts: list[list[str]], folder: str) -> None:
    """Answers ``prompts`` and ``gradient``, then ``step`` from inside of TRL's training loop."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from trl import GRPOConfig, GRPOTrainer

    from nbrl.backends.models import load_policy
    from nbrl.config import Model

    now = CLOCKS[case.clock]
    policy = load_policy(Model(folder))
    policy.tokenizer.padding_side = "left"
    labels = [[label for _, label in row] for row in sums(case)]
    rows = {
        "prompt": list(itertools.chain(*texts)),
        "label": list(itertools.chain(*labels)),
    }
    state: dict[str, Any] = {"tokens": 0, "generate": 0.0}

    def trl_reward(
        completions: list[str], label: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        state["tokens"] = sum(len(ids) for ids in completion_ids)
        return [reward(text, right) for text, right in zip(completions, label, strict=True)]

    class TurnByTurn(TrainerCallback):
        """Takes a step when the parent asks for one."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            pipe.recv()
            state["start"] = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds = now() - state["start"]
            phases = {"generate": state["generate"], "rest": seconds - state["generate"]}
            pipe.send({"seconds": seconds, "tokens": state["tokens"], "phases": phases})

    trainer = GRPOTrainer(
        model=policy.module,
        processing_class=policy.tokenizer,
        reward_funcs=trl_reward,
        train_dataset=Dataset.from_dict(rows),
        callbacks=[TurnByTurn()],
        args=GRPOConfig(
            output_dir=str(Path(folder) / "trl"),
            per_device_train_batch_size=case.prompts * case.samples,
            num_generations=case.samples,
            gradient_accumulation_steps=1,
            max_completion_length=MAX_NEW_TOKENS,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_steps=case.rounds,
            shuffle_dataset=False,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    generate = trainer._generate

    def timed(*given: Any, **named: Any) -> Any:
        start = now()
        answer = generate(*given, **named)
        state["generate"] = now() - start
        return answer

    trainer._generate = timed

    def gradient(path: str) -> float:
        return trl_gradient_difference(trainer, path, policy.tokenizer.pad_token_id)

    def prompts() -> list[list[int]]:
        encoded = policy.tokenizer(text=texts[0], padding=True, padding_side="left")
        masked = zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
        return [[i for i, m in zip(*row, strict=True) if m] for row in masked]

    serve(pipe, {"gradient": gradient, "prompts": prompts})
    trainer.train()
    pipe.send("done")


def trl_gradient_difference(trainer: Any, path: str, pad: Any) -> float:
    """The norm of TRL's gradient less nbrl's, as a share of nbrl's norm, on the saved batch."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    saved = torch.load(path)
    prompts, answers = [], []
    for ids, source in zip(saved["token_ids"], saved["source"], strict=True):
        cut = source.index(1)
        prompts.append(torch.tensor(ids[:cut]))
        answers.append(torch.tensor(ids[cut:]))

    def padded(rows: list[torch.Tensor], side: str, value: int) -> torch.Tensor:
        return pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)

    mask = padded([torch.ones_like(a) for a in answers], "right", 0)
    inputs = {
        "prompt_ids": padded(prompts, "left", pad),
        "prompt_mask": padded([torch.ones_like(p) for p in prompts], "left", 0),
        "completion_ids": padded(answers, "right", pad),
        "completion_mask": mask,
        "advantages": saved["advantages"],
        "num_items_in_batch": mask.sum(),
    }
    model = trainer.model.eval()
    trainer._compute_loss(model, inputs).backward()
    ours = saved["gradient"]
    norm = sum(float(g.square().sum()) for g in ours.values()) ** 0.5
    apart = sum(float((p.grad - ours[n]).square().sum()) for n, p in model.named_parameters())
    model.zero_grad()
    model.train()
    return apart**0.5 / norm


def serve(pipe: Connection, verbs: dict[str, Callable[..., Any]]) -> None:
    """Answer the parent until it says that steps begin (or ends the talk)."""
    pipe.send("ready")
    while True:
        verb, *given = pipe.recv()
        if verb == "begin" or verb == "end":
            return
        pipe.send(verbs[verb](*given))


def ask(pipe: Connection, *message: Any) -> Any:
    """One question and its answer."""
    pipe.send(message)
    return pipe.recv()


def run(case: Case, warmup: int) -> dict[str, Any]:
    """Both, turn by turn: timings after the warm-up, and how equal the work was."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        texts = prepare(case, folder)
        pipes, processes = {}, {}
        for name, worker in (("nbrl", nbrl_worker), ("trl", trl_worker)):
            pipes[name], theirs = context.Pipe()
            processes[name] = context.Process(
                target=worker, args=(theirs, case, texts, folder), daemon=True
            )
            processes[name].start()
            theirs.close()
        for pipe in pipes.values():
            pipe.recv()
        same_prompts = ask(pipes["nbrl"], "prompts") == ask(pipes["trl"], "prompts")
        path = str(Path(folder) / "batch.pt")
        ask(pipes["nbrl"], "gradient", path)
        difference = ask(pipes["trl"], "gradient", path)
        pipes["trl"].send(("begin",))
        taken: dict[str, list[dict[str, Any]]] = {"nbrl": [], "trl": []}
        for index in range(case.rounds):
            for name in ("nbrl", "trl") if index % 2 else ("trl", "nbrl"):
                taken[name].append(ask(pipes[name], "step", index))
            print(f"  round {index + 1:2d} of {case.rounds}: " + said(taken), flush=True)
        pipes["nbrl"].send(("end",))
        for process in processes.values():
            process.join(60)
    return {
        "same_prompts": same_prompts,
        "gradient_difference": difference,
        "taken": {name: rows[warmup:] for name, rows in taken.items()},
    }


def said(taken: dict[str, list[dict[str, Any]]]) -> str:
    """The newest step of each, in words."""
    return ", ".join(
        f"{n} {r[-1]['seconds']:.3f} s {r[-1]['tokens']} tokens" for n, r in taken.items()
    )


def report(case: Case, result: dict[str, Any]) -> bool:
    """Print the ratio and the checks; whether all hold."""
    taken = result["taken"]
    middle = {n: statistics.median(r["seconds"] for r in rows) for n, rows in taken.items()}
    tokens = {n: sum(r["tokens"] for r in rows) for n, rows in taken.items()}
    for name, rows in taken.items():
        phases = {p: statistics.median(r["phases"][p] for r in rows) for p in rows[0]["phases"]}
        parts = ", ".join(f"{p} {s:.3f}" for p, s in phases.items())
        print(f"{name:5s} {middle[name]:8.3f} s a step ({parts}), {tokens[name]} tokens")
    ratio = middle["nbrl"] / middle["trl"]
    apart = abs(tokens["nbrl"] / tokens["trl"] - 1)
    checks = {
        "the same prompt ids": result["same_prompts"],
        f"tokens apart by {apart:.1%} (5 % allowed)": apart <= 0.05,
        f"gradients apart by {result['gradient_difference']:.1e} (1e-4 allowed)": (
            result["gradient_difference"] <= 1e-4
        ),
        f"ratio nbrl / TRL {ratio:.3f} (limit {case.limit}, aim {case.aim})": ratio <= case.limit,
    }
    for text, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {text}")
    return all(checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="One GRPO step of nbrl against TRL's GRPOTrainer.")
    parser.add_argument("--model", choices=sorted(CASES), default="tiny")
    parser.add_argument("--full-length", action="store_true", help="no EOS: all 32 tokens (tiny)")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3)
    # The process's own seconds: for a busy machine, with OMP_NUM_THREADS=1.
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    given = parser.parse_args()
    if importlib.util.find_spec("trl") is None:
        print("TRL is missing: pip install --no-deps -r requirements/bench.txt", file=sys.stderr)
        return 2
    case = replace(
        CASES[given.model],
        full_length=given.full_length,
        rounds=given.steps + given.warmup,
        clock=given.clock,
    )
    print(f"{asdict(case)}, at most {MAX_NEW_TOKENS} new tokens")
    return 0 if report(case, run(case, given.warmup)) else 1


if __name__ == "__main__":
    sys.exit(main())
