"""A small random policy, and micro-batches of it, for the trainer's tests."""

import dataclasses

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from nbrl.protocols import MicroBatch

VOCABULARY = 50


def make_policy(seed=0, dtype=torch.float32):
    """A Qwen2 of two layers whose distributions are far from uniform."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    return Qwen2ForCausalLM(config).to(dtype).eval()


def make_batch(lengths, *, seed=0, prompt_widths=None, columns=("advantages",)):
    """One micro-batch of random tokens; ``lengths`` are the responses'.

    Advantages and log-probs are drawn row by row, so that a part of the batch is the same rows.
    """
    rng = np.random.default_rng(seed)
    prompt_widths = prompt_widths or [int(w) for w in rng.integers(1, 5, len(lengths))]
    left, right = max(prompt_widths), max(1, *lengths)
    n = len(lengths)
    present = torch.zeros(n, left + right, dtype=torch.bool)
    for i, (p, t) in enumerate(zip(prompt_widths, lengths, strict=True)):
        present[i, left - p : left + t] = True
    ids = torch.from_numpy(rng.integers(1, VOCABULARY, (n, left + right)))
    mask = present[:, left:]

    def column(mean, scale):
        drawn = torch.from_numpy(rng.normal(mean, scale, (n, right))).float()
        return torch.where(mask, drawn, 0.0)

    drawn = {
        "advantages": column(0.0, 1.0),
        "returns": column(0.5, 1.0),
        "values": column(0.0, 0.3),
        "old_logprobs": column(-4.0, 0.3),
        "rollout_logprobs": column(-4.0, 0.3),
        "ref_logprobs": column(-4.0, 0.3),
    }
    return MicroBatch(
        rows=np.arange(n),
        input_ids=torch.where(present, ids, 0),
        attention_mask=present,
        prompt_width=left,
        mask=mask,
        temperature=torch.ones(n),
        columns={name: drawn[name] for name in columns},
    )


def part(batch, rows):
    """Some rows of a micro-batch, as a tight micro-batch of their own."""
    rows = np.asarray(rows)
    at = torch.from_numpy(rows)
    right = max(1, int(batch.mask[at].sum(1).max()))
    left = int(batch.attention_mask[at, : batch.prompt_width].sum(1).max())
    kept = slice(batch.prompt_width - left, batch.prompt_width + right)
    return dataclasses.replace(
        batch,
        rows=batch.rows[rows],
        input_ids=batch.input_ids[at, kept],
        attention_mask=batch.attention_mask[at, kept],
        prompt_width=left,
        mask=batch.mask[at, :right],
        temperature=batch.temperature[at],
        columns={name: column[at, :right] for name, column in batch.columns.items()},
    )


def split(batch, parts):
    """The batch as so many micro-batches."""
    return [part(batch, rows) for rows in np.array_split(np.arange(len(batch.rows)), parts)]


def still(units, tokens):
    """An ``advance`` that tells nobody."""
