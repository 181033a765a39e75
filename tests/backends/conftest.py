"""A random character-level model of the bundled one's shape, so that tests need no training."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from nbrl.backends.models import LoadedModel, load_policy
from nbrl.config import Model

CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved Qwen2 with peaked random weights: two EOS ids, a context of 64."""
    folder = str(tmp_path_factory.mktemp("random"))
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Qwen2ForCausalLM(config)
    module.generation_config.eos_token_id = [vocabulary["\n"], 1]
    module.save_pretrained(folder)
    return folder


@pytest.fixture
def random_policy(random_checkpoint: str) -> LoadedModel:
    """That model, loaded anew: a test may change it."""
    return load_policy(Model(random_checkpoint))
