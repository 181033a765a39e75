"""The embedded engine against transformers' own ``generate`` and a plain full forward."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from nbrl.backends.engines.hf import HFEngine
from nbrl.backends.models import LoadedModel, load_policy
from nbrl.config import Lora, Model, Sampling
from nbrl.errors import ConfigError, DataError, RolloutError
from nbrl.protocols import Generation, GenerationRequest

ENDS = (97, 1)


def quiet(units: int, tokens: int) -> None:
    """An ``advance`` that shows nothing."""


def requests_of(num_prompts: int = 6, n: int = 3, longest: int = 12) -> list[GenerationRequest]:
    rng = np.random.default_rng(5)
    return [
        GenerationRequest(
            prompt_id=f"p{i}",
            token_ids=tuple(rng.integers(2, 97, rng.integers(1, longest + 1)).tolist()),
            seeds=tuple(2**62 + 100 * i + k for k in range(n)),
        )
        for i in range(num_prompts)
    ]


def by_sample(generations: Sequence[Generation]) -> dict[tuple[str, int], Generation]:
    return {(g.prompt_id, g.sample_index): g for g in generations}


def assert_same(one: Sequence[Generation], two: Sequence[Generation]) -> None:
    left, right = by_sample(one), by_sample(two)
    assert left.keys() == right.keys()
    for key, a in left.items():
        b = right[key]
        assert a.token_ids.tolist() == b.token_ids.tolist(), key
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
        assert a.finish_reason == b.finish_reason


def plain_logprobs(
    module: Callable, prompt: Sequence[int], answer: np.ndarray, temperature: float
) -> np.ndarray:
    ids = torch.tensor([[*prompt, *answer.tolist()]])
    with torch.no_grad():
        logits = module(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    scored = torch.log_softmax(logits / temperature, -1)
    return scored.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1).numpy()


def test_greedy_equals_transformers_generate(random_policy: LoadedModel):
    requests = requests_of(num_prompts=12, n=1)
    answers = HFEngine(random_policy).generate(
        requests, Sampling(temperature=0.0, max_new_tokens=40), quiet
    )
    assert {g.finish_reason for g in answers} == {"stop", "length"}
    for request, answer in zip(requests, answers, strict=True):
        expected = random_policy.module.generate(
            torch.tensor([request.token_ids]), max_new_tokens=40, do_sample=False
        )
        assert answer.token_ids.tolist() == expected[0, len(request.token_ids) :].tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=20),
        Sampling(max_new_tokens=20, temperature=0.6, top_p=0.8, top_k=9),
        Sampling(max_new_tokens=20, temperature=0.0),
    ],
)
def test_logprobs_equal_a_plain_forward(random_policy: LoadedModel, sampling: Sampling):
    requests = requests_of()
    prompts = {r.prompt_id: r.token_ids for r in requests}
    temperature = sampling.logprob_temperature
    for g in HFEngine(random_policy).generate(requests, sampling, quiet):
        expected = plain_logprobs(
            random_policy.module, prompts[g.prompt_id], g.token_ids, temperature
        )
        np.testing.assert_allclose(g.logprobs, expected, atol=1e-5)
        assert g.logprobs.dtype == np.float32
        assert g.token_ids.dtype == np.int32


def test_the_same_call_gives_the_same_bits(random_policy: LoadedModel):
    engine, sampling = HFEngine(random_policy), Sampling(max_new_tokens=16)
    one = engine.generate(requests_of(), sampling, quiet)
    two = engine.generate(requests_of(), sampling, quiet)
    for a, b in zip(one, two, strict=True):
        assert a.token_ids.tobytes() == b.token_ids.tobytes()
        assert a.logprobs.tobytes() == b.logprobs.tobytes()


@pytest.mark.parametrize("max_batch", [1, 4, 5, 512])
def test_a_sample_does_not_depend_on_its_neighbours(random_policy: LoadedModel, max_batch: int):
    requests, sampling = requests_of(num_prompts=8, n=4), Sampling(max_new_tokens=24)
    whole = HFEngine(random_policy).generate(requests, sampling, quiet)
    other = HFEngine(random_policy, max_batch=max_batch).generate(requests[::-1], sampling, quiet)
    assert_same(whole, other)
    alone = HFEngine(random_policy).generate(requests[3:4], sampling, quiet)
    assert_same(alone, [g for g in whole if g.prompt_id == "p3"])


def test_results_stand_in_the_order_of_requests_and_seeds(random_policy: LoadedModel):
    requests = requests_of()
    answers = HFEngine(random_policy).generate(requests, Sampling(max_new_tokens=8), quiet)
    expected = [(r.prompt_id, k) for r in requests for k in range(len(r.seeds))]
    assert [(g.prompt_id, g.sample_index) for g in answers] == expected
    assert len({tuple(g.token_ids.tolist()) for g in answers}) > len(requests)


def test_answers_end_with_any_eos_and_hold_it(random_policy: LoadedModel):
    answers = HFEngine(random_policy).generate(
        requests_of(num_prompts=40, n=8), Sampling(max_new_tokens=30), quiet
    )
    stopped = [g for g in answers if g.finish_reason == "stop"]
    assert {int(g.token_ids[-1]) for g in stopped} == set(ENDS)
    for g in answers:
        assert not np.isin(g.token_ids[:-1], ENDS).any()
        if g.finish_reason == "length":
            assert len(g.token_ids) == 30
            assert g.token_ids[-1] not in ENDS


def test_eos_on_the_last_token_allowed_is_a_stop(random_policy: LoadedModel):
    engine, requests = HFEngine(random_policy), requests_of(num_prompts=40, n=8)
    free = engine.generate(requests, Sampling(max_new_tokens=30), quiet)
    stopped = next(g for g in free if g.finish_reason == "stop" and len(g.token_ids) > 1)
    key, length = (stopped.prompt_id, stopped.sample_index), len(stopped.token_ids)
    at = by_sample(engine.generate(requests, Sampling(max_new_tokens=length), quiet))[key]
    before = by_sample(engine.generate(requests, Sampling(max_new_tokens=length - 1), quiet))[key]
    assert (at.finish_reason, len(at.token_ids)) == ("stop", length)
    assert (before.finish_reason, len(before.token_ids)) == ("length", length - 1)


def test_stop_strings_work_across_tokens_and_are_kept(random_policy: LoadedModel):
    engine, requests = HFEngine(random_policy), requests_of(num_prompts=4, n=2)
    sampling = Sampling(temperature=1.0, max_new_tokens=30)
    decode = random_policy.tokenizer.decode
    free = engine.generate(requests, sampling, quiet)
    longest = max(free, key=lambda g: len(g.token_ids))
    stop = decode(longest.token_ids[4:7].tolist())
    assert len(stop) == 3
    cut = engine.generate(requests, Sampling(max_new_tokens=30, stop=("never here", stop)), quiet)
    for a, b in zip(free, cut, strict=True):
        text = decode(a.token_ids.tolist())
        if stop in text:
            end = text.index(stop) + 3  # one character is one token
            assert b.token_ids.tolist() == a.token_ids[:end].tolist()
            assert b.finish_reason == "stop"
        else:
            assert b.token_ids.tolist() == a.token_ids.tolist()
    same = by_sample(cut)[longest.prompt_id, longest.sample_index]
    assert len(same.token_ids) <= 7


def test_without_a_limit_answers_go_to_the_end_of_the_context(random_policy: LoadedModel):
    requests = requests_of(num_prompts=20, n=4)
    prompts = {r.prompt_id: r.token_ids for r in requests}
    answers = HFEngine(random_policy, max_batch=7).generate(requests, Sampling(), quiet)
    cut = [g for g in answers if g.finish_reason == "length"]
    assert cut
    assert all(len(prompts[g.prompt_id]) + len(g.token_ids) == 64 for g in cut)
    g = cut[0]
    expected = plain_logprobs(random_policy.module, prompts[g.prompt_id], g.token_ids, 1.0)
    np.testing.assert_allclose(g.logprobs, expected, atol=1e-5)


def test_prompts_that_cannot_be_answered_are_named_before_work(random_policy: LoadedModel):
    good, empty, long, alien = (
        GenerationRequest(prompt_id=name, token_ids=ids, seeds=(1,))
        for name, ids in [("a", (5,)), ("b", ()), ("c", (5,) * 64), ("d", (5, 98))]
    )
    drawn: list[int] = []
    with pytest.raises(DataError, match=r"3 cannot .*64 tokens.*'b' is empty.*'c' has 64.*'d' h"):
        HFEngine(random_policy).generate(
            [good, empty, long, alien], Sampling(), lambda units, tokens: drawn.append(tokens)
        )
    assert not drawn
    fits = GenerationRequest(prompt_id="e", token_ids=(5,) * 63, seeds=(1,))
    assert len(HFEngine(random_policy).generate([fits], Sampling(), quiet)[0].token_ids) == 1


def test_nothing_asked_gives_nothing(random_policy: LoadedModel):
    assert HFEngine(random_policy).generate([], Sampling(), quiet) == []
    seedless = GenerationRequest(prompt_id="a", token_ids=(5,), seeds=())
    assert HFEngine(random_policy).generate([seedless], Sampling(), quiet) == []


def test_advance_counts_every_sample_and_token(random_policy: LoadedModel):
    calls: list[tuple[int, int]] = []
    answers = HFEngine(random_policy, max_batch=5).generate(
        requests_of(), Sampling(max_new_tokens=9), lambda *done: calls.append(done)
    )
    assert sum(units for units, _ in calls) == len(answers) == 18
    assert sum(tokens for _, tokens in calls) == sum(len(g.token_ids) for g in answers)


def test_an_interrupt_gives_the_finished_samples(random_policy: LoadedModel):
    engine, requests = HFEngine(random_policy, max_batch=3), requests_of(num_prompts=8, n=3)
    sampling = Sampling(max_new_tokens=12)
    whole = engine.generate(requests, sampling, quiet)
    done = 0

    def interrupt(units: int, tokens: int) -> None:
        nonlocal done
        done += units
        if done >= 7:
            raise KeyboardInterrupt

    partial = engine.generate(requests, sampling, interrupt)
    assert len(partial) == done < len(whole)
    assert_same(partial, [by_sample(whole)[g.prompt_id, g.sample_index] for g in partial])


def test_nothing_of_the_module_or_of_torch_is_changed(random_policy: LoadedModel):
    module = random_policy.module
    module.train()
    module.model.layers[1].eval()
    modes = [part.training for part in module.modules()]
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.random.get_rng_state()

    def fail(units: int, tokens: int) -> None:
        raise RuntimeError("as a progress bar may")

    engine = HFEngine(random_policy)
    engine.generate(requests_of(), Sampling(max_new_tokens=4), quiet)
    with pytest.raises(RuntimeError, match="as a progress bar"):
        engine.generate(requests_of(), Sampling(max_new_tokens=4), fail)
    assert [part.training for part in module.modules()] == modes
    assert module.config._attn_implementation == "sdpa"
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(weights[name], t) for name, t in module.state_dict().items())
    module(torch.tensor([[5, 6]])).logits.sum().backward()
    assert module.model.norm.weight.grad is not None


def test_a_training_step_is_at_once_what_is_sampled_from(random_policy: LoadedModel):
    engine, sampling = HFEngine(random_policy), Sampling(max_new_tokens=8)
    before = engine.generate(requests_of(), sampling, quiet)
    with torch.no_grad():
        random_policy.module.model.layers[0].mlp.down_proj.weight.mul_(-1)
    engine.load_weights(random_policy.module.named_parameters(), version=4)
    after = engine.generate(requests_of(), sampling, quiet)
    assert [g.version for g in before + after] == [0] * 18 + [4] * 18
    assert any(
        a.token_ids.tolist() != b.token_ids.tolist() for a, b in zip(before, after, strict=True)
    )
    assert engine.describe()["version"] == 4


def test_weights_of_another_copy_are_copied(random_policy: LoadedModel, random_checkpoint: str):
    other = load_policy(Model(random_checkpoint))
    with torch.no_grad():
        other.module.model.norm.weight.mul_(0.5)
    engine = HFEngine(random_policy)
    engine.load_weights(other.module.named_parameters(), version=1)
    sampling = Sampling(max_new_tokens=8)
    assert_same(
        engine.generate(requests_of(), sampling, quiet),
        HFEngine(other).generate(requests_of(), sampling, quiet),
    )
    held = random_policy.module.model.norm.weight.clone()
    bad = [("model.norm.weight", torch.zeros(128)), ("model.norm.bias", torch.zeros(128))]
    with pytest.raises(RolloutError, match=r"model\.norm\.bias.*no such weight"):
        engine.load_weights(bad, version=2)
    assert torch.equal(random_policy.module.model.norm.weight, held)
    assert engine.describe()["version"] == 1


def test_eager_attention_gives_the_same_answers(random_policy: LoadedModel, random_checkpoint: str):
    eager = load_policy(Model(random_checkpoint, attention="eager"))
    sampling = Sampling(max_new_tokens=16)
    assert_same(
        HFEngine(eager, max_batch=7).generate(requests_of(), sampling, quiet),
        HFEngine(random_policy).generate(requests_of(), sampling, quiet),
    )


def test_an_adapter_is_sampled_from(random_policy: LoadedModel, random_checkpoint: str):
    adapted = load_policy(Model(random_checkpoint, lora=Lora(rank=2)))
    sampling = Sampling(max_new_tokens=16)
    fresh = HFEngine(adapted).generate(requests_of(), sampling, quiet)
    assert_same(fresh, HFEngine(random_policy).generate(requests_of(), sampling, quiet))
    with torch.no_grad():
        for name, parameter in adapted.module.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.2)
    requests = requests_of()
    g = HFEngine(adapted).generate(requests, sampling, quiet)[0]
    expected = plain_logprobs(adapted.module, requests[0].token_ids, g.token_ids, 1.0)
    np.testing.assert_allclose(g.logprobs, expected, atol=1e-4)
    assert not np.allclose(
        expected,
        plain_logprobs(random_policy.module, requests[0].token_ids, g.token_ids, 1.0),
        atol=1e-2,
    )


def test_bfloat16_weights_get_a_float32_head(random_policy: LoadedModel):
    random_policy.module.bfloat16()
    engine, requests = HFEngine(random_policy), requests_of(num_prompts=2)
    answers = engine.generate(requests, Sampling(max_new_tokens=6), quiet)
    prompts = {r.prompt_id: r.token_ids for r in requests}
    wide = random_policy.module.lm_head.weight.detach().float()
    for g in answers:
        ids = torch.tensor([[*prompts[g.prompt_id], *g.token_ids.tolist()]])
        with torch.no_grad():
            hidden = random_policy.module.model(ids).last_hidden_state[0].float()
        at = len(prompts[g.prompt_id])
        scored = torch.log_softmax(hidden[at - 1 : -1] @ wide.T, -1)
        expected = scored.gather(-1, ids[0, at:, None]).squeeze(-1).numpy()
        # The hidden states are bfloat16's; only the head must not add to that.
        np.testing.assert_allclose(g.logprobs, expected, atol=0.15)
        assert not np.array_equal(g.logprobs, torch.from_numpy(g.logprobs).bfloat16().float())


def shaped(random_policy: LoadedModel, module: torch.nn.Module) -> LoadedModel:
    return LoadedModel(
        module=module.eval(),
        tokenizer=random_policy.tokenizer,
        eos_ids=ENDS,
        pad_id=0,
        context_length=64,
        name="shaped",
    )


SHAPE = {
    "vocab_size": 98,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "initializer_range": 0.2,
}


def test_other_architectures_are_decoded_alike(random_policy: LoadedModel):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        llama = shaped(random_policy, LlamaForCausalLM(LlamaConfig(**SHAPE)))
    requests = requests_of()
    prompts = {r.prompt_id: r.token_ids for r in requests}
    for g in HFEngine(llama, max_batch=7).generate(requests, Sampling(max_new_tokens=20), quiet):
        expected = plain_logprobs(llama.module, prompts[g.prompt_id], g.token_ids, 1.0)
        np.testing.assert_allclose(g.logprobs, expected, atol=1e-5)


def test_a_sliding_window_is_an_error_only_where_it_would_matter(random_policy: LoadedModel):
    config = MistralConfig(**SHAPE, sliding_window=20)
    engine = HFEngine(shaped(random_policy, MistralForCausalLM(config)))
    assert len(engine.generate(requests_of(), Sampling(max_new_tokens=8), quiet)) == 18
    with pytest.raises(ConfigError, match=r"sliding attention window.* is 20"):
        engine.generate(requests_of(), Sampling(max_new_tokens=30), quiet)
