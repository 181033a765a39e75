"""Token ids are the record: what was sampled is trained on, whatever its text encodes to (B05)."""

import itertools

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import nbrl
from nbrl.stages.batching import make_batches

VOCAB = {"<pad>": 0, "<eos>": 1, "he": 2, "llo": 3, "hello": 4, "q": 5}
HE, LLO = VOCAB["he"], VOCAB["llo"]


@pytest.fixture
def ambiguous(tmp_path):
    """A checkpoint whose text 'hello' is one token to the tokenizer, and two to the sampler."""
    words = Tokenizer(models.WordLevel(VOCAB))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("hello|he|llo|q"), "isolated")
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(VOCAB),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_sampled_ids_are_never_encoded_again(ambiguous, tmp_path):
    prompts = nbrl.Prompts(
        table=nbrl.load_prompts("arithmetic", max_samples=1).table.set_column(1, "prompt", [["q"]])
    )
    session = nbrl.connect(
        model=str(ambiguous), prompts=prompts, run_dir=tmp_path / "run", progress="quiet"
    )
    rollouts = session.rollout(prompts, n=64, sampling=nbrl.Sampling(max_new_tokens=6))
    split = [
        i
        for i, ids in enumerate(rollouts.table["token_ids"].to_pylist())
        if any(pair == (HE, LLO) for pair in itertools.pairwise(ids))
    ]
    assert split, "no sample spells hello by two tokens; draw more"
    text = rollouts.table["response"].to_pylist()[split[0]]
    assert "hello" in text
    batches = make_batches(rollouts, {}, max_tokens=10_000)
    rows = {int(row): (b, i) for b in batches for i, row in enumerate(b.rows)}
    for i in split:
        batch, at = rows[i]
        trained = batch.input_ids[at][batch.attention_mask[at]].tolist()
        assert trained == rollouts.table["token_ids"].to_pylist()[i]
        assert int(batch.mask[at].sum()) == rollouts.table["source"].to_pylist()[i].count(1)
    batch = session.compute_advantages(
        session.score(rollouts, lambda response: float(len(response))), "grpo"
    )
    terms = session.train_step(batch).tokens
    ratio = [np.array(row) for row in terms["ratio"].to_pylist()]
    assert all(
        len(r) == len(t)
        for r, t in zip(ratio, batch.scored.rollouts.table["token_ids"].to_pylist(), strict=True)
    )
    session.close()
