"""Makes the tiny model: ``python -m nbrl.assets.make_tiny OUT``; imports torch, transformers.

A tokenizer of single bytes and a Qwen2 of 0.3 million parameters that has read a book of sums in
which many answers are wrong and many end in a doubtful ``?``. It knows addition, and it has
learned to blunder and to doubt as often as the book does: reinforcement learning has something
to take away. Held-out sums are not in the book. Everything is drawn from one seed.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from nbrl.backends.arithmetic import pairs

PAD, EOS = "<pad>", "<eos>"
PAD_ID, EOS_ID = 0, 1
SEED = 20250
STEPS = 1500
BATCH = 256
PEAK_LR = 2e-3
WARMUP = 100
BLUNDERS = 0.28
"""The share of answers in the book that are wrong."""
DOUBTS = 0.45
"""The share of answers in the book that end in a question mark, which makes them wrong too."""


def make_tokenizer() -> Qwen2Tokenizer:
    """One id a byte, ``byte + 2``, after ``<pad>`` and ``<eos>``: one a character in ASCII.

    Any text can be encoded. No special token is added. The class is the one that transformers takes
    for every Qwen2 checkpoint, whatever its files say; another would change when it is loaded.
    """
    # The names that byte-level tokenizers give the bytes, in the order of the bytes.
    names = sorted(bytes_to_unicode().items())
    vocab = {PAD: PAD_ID, EOS: EOS_ID, **{name: byte + 2 for byte, name in names}}
    return Qwen2Tokenizer(
        vocab=vocab,
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        # Never met, since every byte is known; its default would be one more id.
        unk_token=PAD,
        padding_side="left",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """The untrained model, from the global torch seed."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    return model


def blunder(answer: int, rng: np.random.Generator) -> int:
    """A wrong answer of the kind people give: one, two or ten off."""
    near = [answer + d for d in (-10, -2, -1, 1, 2, 10) if answer + d >= 0]
    return int(rng.choice(near))


def book_page(rng: np.random.Generator, size: int) -> list[str]:
    """``size`` lines ``a+b=c`` of the training split, some of them wrong or in doubt."""
    known = pairs("train")
    lines = []
    for a, b in known[rng.integers(len(known), size=size)].tolist():
        c = blunder(a + b, rng) if rng.random() < BLUNDERS else a + b
        doubt = "?" if rng.random() < DOUBTS else ""
        lines.append(f"{a}+{b}={c}{doubt}{EOS}")
    return lines


def _batch(
    tokenizer: Qwen2Tokenizer, lines: list[str]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, attention mask, and labels that are -100 but on the answer and its end."""
    rows = tokenizer(lines)["input_ids"]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), PAD_ID)
    labels = torch.full((len(rows), width), -100)
    equals = tokenizer.convert_tokens_to_ids("=")
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        at = row.index(equals) + 1
        labels[i, at : len(row)] = torch.tensor(row[at:])
    return ids, (ids != PAD_ID).long(), labels


def _lr(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < WARMUP:
        return PEAK_LR * (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    return PEAK_LR * (0.1 + 0.45 * (1 + np.cos(np.pi * done)))


def train(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, *, steps: int, seed: int) -> float:
    """Reads the book; returns the last loss. Weights end up rounded to bfloat16."""
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98))
    loss = torch.zeros(())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _lr(step, steps)
        ids, attention, labels = _batch(tokenizer, book_page(rng, BATCH))
        loss = model(input_ids=ids, attention_mask=attention, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return float(loss.detach())


def make(out: Path, *, steps: int = STEPS, seed: int = SEED) -> None:
    """Writes tokenizer, model and generation settings to the folder ``out``."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    train(model, tokenizer, steps=steps, seed=seed)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the tiny model that ships with nbrl.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    # One thread adds in one order: the weights do not depend on the number of cores.
    torch.set_num_threads(1)
    make(given.out, steps=given.steps)
