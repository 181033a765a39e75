"""Arguments of another kind, as a user passes them: without the shape checks that tests add."""

import json
import subprocess
import sys

CODE = """
import json, sys
import nbrl

def exact(response, label):
    return float(response == label)

given = {"progress": "quiet", "run_dir": sys.argv[1]}
session = nbrl.connect(**given)
rollouts = session.rollout(session.next_prompts(2), n=2, sampling=nbrl.Sampling(max_new_tokens=4))
scored = session.score(rollouts, exact)
batch, prompts = session.compute_advantages(scored), rollouts.prompts
recipe = nbrl.Recipe(rewards=exact)
CALLS = {
    "prompts": lambda: session.rollout(["1+1="]),
    "sampling": lambda: session.rollout(prompts, sampling={"temperature": 1}),
    "n": lambda: session.rollout(prompts, n=2.5),
    "k": lambda: session.next_prompts("3"),
    "rollouts": lambda: session.score(prompts, exact),
    "scored": lambda: session.compute_advantages(rollouts),
    "a": lambda: nbrl.diff_scores(rollouts, scored),
    "replay": lambda: session.score(rollouts, exact, replay="yes"),
    "batch": lambda: session.train_step(scored),
    "loss": lambda: session.train_step(batch, "ppo"),
    "losses": lambda: session.probe(batch, [nbrl.PolicyLoss()]),
    "minibatches": lambda: session.train_step(batch, minibatches=1.5),
    "recipe": lambda: session.run(1, {"prompts": 2}),
    "steps": lambda: session.run("3", recipe),
    "threshold": lambda: session.evaluate(prompts, exact, threshold="x"),
    "engine": lambda: nbrl.connect(engine="hf"),
    "trainer": lambda: nbrl.connect(trainer=nbrl.Optimizer()),
    "seed": lambda: nbrl.connect(seed=1.5),
    "name": lambda: nbrl.connect(name=5),
    "run_dir": lambda: nbrl.connect(run_dir=b"x"),
    "model": lambda: nbrl.connect(model=5),
    "source": lambda: nbrl.load_prompts(["a.jsonl"]),
    "split": lambda: nbrl.load_prompts("arithmetic", split=None),
    "input_key": lambda: nbrl.load_prompts("arithmetic", input_key=5),
    "label_key": lambda: nbrl.load_prompts("arithmetic", label_key=["label"]),
    "apply_chat_template": lambda: nbrl.load_prompts("arithmetic", apply_chat_template="yes"),
    "max_samples": lambda: nbrl.load_prompts("arithmetic", max_samples=True),
    "averaged": lambda: session.evaluate(prompts, exact, averaged="yes"),
    "streaming": lambda: nbrl.load_pairs("x", max_samples=1, streaming="yes"),
    "chosen_key": lambda: nbrl.load_pairs([{"a": "b"}], chosen_key=3),
    "columns": lambda: session.annotate(rollouts, "entropy"),
    "again": lambda: session.train_step(batch, again="yes"),
    "expect_version": lambda: session.train_step(batch, expect_version="0"),
    "estimator": lambda: session.compute_advantages(scored, estimator=5),
    "kl": lambda: session.compute_advantages(scored, kl=0.1),
    "shaping": lambda: session.compute_advantages(scored, shaping={}),
    "gamma": lambda: nbrl.Estimator(gamma=True),
    "lam": lambda: nbrl.Estimator(credit="gae", lam="x"),
    "eps": lambda: nbrl.Estimator(scale="group-std", eps={}),
    "ddof": lambda: nbrl.Estimator(scale="group-std", ddof=True),
    "Model.device": lambda: nbrl.connect(model=nbrl.Model(device=0)),
    "Trainer.critic": lambda: nbrl.connect(trainer=nbrl.Trainer(critic=True)),
    "Model.lora": lambda: nbrl.connect(model=nbrl.Model(lora={"rank": 4})),
    "Sampling.top_p": lambda: session.rollout(prompts, sampling=nbrl.Sampling(top_p=None)),
    "Sampling.stop": lambda: session.rollout(prompts, sampling=nbrl.Sampling(stop=None)),
    "Optimizer.betas": lambda: nbrl.connect(
        trainer=nbrl.Trainer(optimizer=nbrl.Optimizer(betas=None))
    ),
}
said = {}
for name, call in CALLS.items():
    try:
        call()
        said[name] = "accepted"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps({"said": said, "version": session.version}))
"""


def test_arguments_of_another_kind_are_named(tmp_path):
    command = [sys.executable, "-c", CODE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["version"] == 0
    wrong = {
        name: text
        for name, text in answer["said"].items()
        if not (text.startswith("ConfigError") and f"{name} must be" in text)
    }
    assert wrong == {}
