"""vLLM itself, on the CPU: what it samples and reports, against transformers on equal weights."""

import os
import signal
import threading

import numpy as np
import pytest
import torch

import nbrl
from nbrl.backends.exporting import export_model
from nbrl.backends.models import load_policy
from nbrl.config import Engine, Model, Sampling
from nbrl.errors import ConfigError, DataError, RolloutError
from nbrl.protocols import GenerationRequest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPTS = (tuple(range(5, 25)), (40, 41, 42))


CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def policy(random_checkpoint):
    """A policy that is not the checkpoint any more, as after training."""
    loaded = load_policy(Model(random_checkpoint))
    loaded.tokenizer.chat_template = CHAT
    loaded.module.generation_config.temperature = 0.7
    loaded.module.generation_config.do_sample = True
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in loaded.module.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return loaded


@pytest.fixture(scope="module")
def exported(policy, tmp_path_factory):
    """The folder that ``session.export`` writes of it."""
    folder = tmp_path_factory.mktemp("exported") / "policy"
    weights = ((name, p.detach()) for name, p in policy.module.named_parameters())
    export_model(policy, weights, folder, scale=None)
    return str(folder)


@pytest.fixture(scope="module")
def engine(exported, policy):
    """One engine for all tests here: it takes the best part of a minute to start."""
    from nbrl.backends.engines.vllm import Checkpoint, VllmEngine

    checkpoint = Checkpoint(
        folder=exported,
        name="random",
        dtype="float32",
        eos_ids=policy.eos_ids,
        context_length=policy.context_length,
    )
    made = VllmEngine(checkpoint, Engine("vllm", max_batch=64))
    yield made
    made.close()


def still(units, tokens):
    """An ``advance`` that tells nobody."""


def requests(n=4, first=0):
    return [
        GenerationRequest(
            prompt_id=f"p{i}", token_ids=ids, seeds=tuple(1000 * i + first + j for j in range(n))
        )
        for i, ids in enumerate(PROMPTS)
    ]


def logprobs(module, prompt, answer, temperature):
    """Those of the answer's tokens by one plain forward pass."""
    ids = torch.tensor([[*prompt, *answer.tolist()]])
    with torch.no_grad():
        logits = module(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    picked = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(answer).long()[:, None])
    return picked[:, 0].numpy()


def test_an_export_brings_its_chat_template_and_its_generation_settings(engine, policy):
    said = [{"role": "user", "content": "7+5="}]
    tokenizer = engine._llm.get_tokenizer()
    ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    assert ids == policy.tokenizer("user: 7+5=\nassistant: ")["input_ids"]
    settings = engine._llm.model_config.try_get_generation_config()
    assert settings["temperature"] == 0.7
    assert tuple(settings["eos_token_id"]) == policy.eos_ids
    # an answer of vLLM's own chat ends at either of the EOS ids
    answer = engine._llm.chat(said, use_tqdm=False)[0].outputs[0]
    assert answer.finish_reason == "length" or answer.token_ids[-1] in policy.eos_ids


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=8),
        Sampling(max_new_tokens=8, temperature=0.6),
        Sampling(max_new_tokens=8, temperature=1.7, top_p=0.5, top_k=6),
        Sampling(max_new_tokens=8, temperature=0.0),
    ],
    ids=["plain", "cool", "cut", "greedy"],
)
def test_logprobs_are_those_of_the_full_softmax_at_the_sampling_temperature(
    engine, policy, sampling
):
    found = engine.generate(requests(), sampling, still)
    assert [(g.prompt_id, g.sample_index) for g in found] == [
        (f"p{i}", j) for i in range(2) for j in range(4)
    ]
    for g in found:
        want = logprobs(
            policy.module, PROMPTS[int(g.prompt_id[1])], g.token_ids, sampling.logprob_temperature
        )
        np.testing.assert_allclose(g.logprobs, want, atol=1e-4)
        assert g.token_ids.dtype == np.int32
        assert g.logprobs.dtype == np.float32


def test_greedy_answers_are_those_of_the_embedded_engine(engine, policy):
    from nbrl.backends.engines.hf import HFEngine

    greedy = Sampling(max_new_tokens=12, temperature=0.0)
    mine = engine.generate(requests(1), greedy, still)
    theirs = HFEngine(policy).generate(requests(1), greedy, still)
    for a, b in zip(mine, theirs, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.finish_reason == b.finish_reason


def test_a_sample_depends_on_its_prompt_and_seed_only(engine):
    sampling = Sampling(max_new_tokens=16)
    together = engine.generate(requests(6), sampling, still)
    alone = engine.generate(requests(6)[1:], sampling, still)
    assert [g.token_ids.tolist() for g in together[6:]] == [g.token_ids.tolist() for g in alone]
    other = engine.generate(requests(6, first=500), sampling, still)
    assert [g.token_ids.tolist() for g in other] != [g.token_ids.tolist() for g in together]
    assert len({tuple(g.token_ids.tolist()) for g in together[:6]}) > 1


def test_answers_end_by_any_eos_by_a_stop_string_or_by_their_length(engine, policy):
    """Both EOS ids stop and stay in the answer, and so does the token that completes a stop."""
    drawn = engine.generate(requests(48), Sampling(max_new_tokens=40, temperature=2.0), still)
    ends = {int(g.token_ids[-1]) for g in drawn if g.finish_reason == "stop"}
    assert ends == set(policy.eos_ids)
    for g in drawn:
        assert not np.isin(g.token_ids[:-1], policy.eos_ids).any()
        assert (g.finish_reason == "length") == (
            len(g.token_ids) == 40 and g.token_ids[-1] not in ends
        )
    whole = next(g for g in drawn if g.finish_reason == "length")
    text = policy.tokenizer.decode(whole.token_ids)
    at = 3
    row = int(whole.prompt_id[1])
    again = GenerationRequest(
        prompt_id="again",
        token_ids=PROMPTS[row],
        seeds=(requests(48)[row].seeds[whole.sample_index],),
    )
    stopping = Sampling(max_new_tokens=40, temperature=2.0, stop=(text[at : at + 2],))
    (stopped,) = engine.generate([again], stopping, still)
    end = text.index(text[at : at + 2]) + 2
    assert stopped.token_ids.tolist() == whole.token_ids[:end].tolist()
    assert stopped.finish_reason == "stop"
    (long,) = engine.generate([again], Sampling(temperature=2.0), still)
    assert len(long.token_ids) <= policy.context_length - len(PROMPTS[row])


def test_prompts_that_cannot_be_answered_are_named(engine):
    wrong = [
        GenerationRequest(prompt_id="empty", token_ids=(), seeds=(1,)),
        GenerationRequest(prompt_id="long", token_ids=tuple([5] * 64), seeds=(1,)),
        GenerationRequest(prompt_id="foreign", token_ids=(5000,), seeds=(1,)),
    ]
    with pytest.raises(DataError, match=r"3 cannot be answered.*'empty'.*'long'.*'foreign'"):
        engine.generate(wrong, Sampling(), still)


def test_new_weights_are_served_under_their_version_head_and_cache_with_them(
    engine, policy, random_checkpoint
):
    """The model's head is tied to its embedding, of which vLLM keeps a packed copy on a CPU."""
    changed = load_policy(Model(random_checkpoint)).module
    sampling = Sampling(max_new_tokens=8)
    engine.generate(requests(), sampling, still)
    try:
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator()))
        engine.load_weights(changed.named_parameters(), 7)
        for g in engine.generate(requests(), sampling, still):
            assert g.version == 7
            want = logprobs(changed, PROMPTS[int(g.prompt_id[1])], g.token_ids, 1.0)
            np.testing.assert_allclose(g.logprobs, want, atol=1e-4)
        assert engine.describe()["version"] == 7
        with pytest.raises(RolloutError, match=r"version 8.*'random'"):
            engine.load_weights([("no.such.weight", torch.zeros(3))], 8)
    finally:
        engine.load_weights(policy.module.named_parameters(), 0)


def test_a_sleeping_engine_says_so_and_wakes_as_it_was(engine):
    greedy = Sampling(max_new_tokens=4, temperature=0.0)
    before = [g.token_ids.tolist() for g in engine.generate(requests(1), greedy, still)]
    engine.sleep()
    assert engine.describe()["state"] == "asleep"
    with pytest.raises(RolloutError, match="wake"):
        engine.generate(requests(1), greedy, still)
    engine.wake()
    assert [g.token_ids.tolist() for g in engine.generate(requests(1), greedy, still)] == before


@pytest.mark.parametrize("way", ["signal", "thread"])
def test_an_interrupt_keeps_what_is_finished_and_the_engine(engine, way):
    """Ctrl-C comes while vLLM works: the step ends, the rest is dropped, the next call is whole."""
    short_and_long = Sampling(max_new_tokens=40, temperature=2.0)
    wanted = requests(24)
    seen = []

    def strike(units, tokens):
        seen.append(units)
        if sum(seen) >= 3:
            if way == "signal":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                thread = threading.Thread(target=engine.interrupt)
                thread.start()
                thread.join()

    found = engine.generate(wanted, short_and_long, strike)
    assert 3 <= len(found) < 48
    whole = engine.generate(wanted, short_and_long, still)
    assert len(whole) == 48
    by_place = {(g.prompt_id, g.sample_index): g.token_ids.tolist() for g in whole}
    for g in found:
        assert by_place[g.prompt_id, g.sample_index] == g.token_ids.tolist()


def test_a_session_samples_with_vllm_what_its_trainer_has_learned(tmp_path):
    """No cluster: engine and trainer in this process, weights sent after the step."""
    session = nbrl.connect(
        model="tiny",
        engine=nbrl.Engine("vllm", max_batch=32),
        trainer=nbrl.Trainer(optimizer=nbrl.Optimizer(lr=1e-3)),
        run_dir=tmp_path / "run",
        progress="quiet",
    )
    with session:
        for _ in range(2):
            rollouts = session.rollout(
                session.next_prompts(4), n=4, sampling=Sampling(max_new_tokens=6)
            )
            scored = session.score(rollouts, lambda response: float(len(response)))
            annotated = session.annotate(rollouts, ["old_logprobs"]).table
            policy = np.concatenate(annotated.column("source").to_numpy(zero_copy_only=False)) == 1
            columns = ("old_logprobs", "rollout_logprobs")
            mine, theirs = (
                np.concatenate(annotated.column(c).to_numpy(zero_copy_only=False))[policy]
                for c in columns
            )
            np.testing.assert_allclose(mine, theirs, atol=1e-4)
            session.train_step(session.compute_advantages(scored, "rloo"))
        assert session.describe().loc["engine", "version"] == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Engine("vllm", count=2), "cluster"),
        (Engine("hf", sleep=True, tensor_parallel=2), r"tensor_parallel, sleep.*no effect"),
        (Engine("vllm", gpu_memory_utilization=1.5, max_model_len=1), r"(?s)max_model_len.*1.5"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_loaded(settings, said):
    with pytest.raises(ConfigError, match=said):
        nbrl.connect(engine=settings)
