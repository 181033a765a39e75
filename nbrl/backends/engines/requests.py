"""Judges prompts before anything is generated; may import ``protocols`` and ``errors``."""

from collections.abc import Sequence

from nbrl.errors import DataError
from nbrl.protocols import GenerationRequest

SHOWN = 10


def check_prompts(
    requests: Sequence[GenerationRequest], *, name: str, context_length: int, vocabulary: int
) -> None:
    """Raise for prompts that cannot be answered, naming them.

    Args:
        requests: What is asked for.
        name: The model's, for the message.
        context_length: Tokens that prompt and answer share.
        vocabulary: Ids run from 0 up to this.

    Raises:
        DataError: A prompt is empty, holds other ids, or leaves no room for an answer.
    """
    problems = []
    for request in requests:
        ids = request.token_ids
        if not ids:
            problems.append(f"{request.prompt_id!r} is empty")
        elif len(ids) >= context_length:
            problems.append(f"{request.prompt_id!r} has {len(ids)} tokens")
        elif not 0 <= min(ids) <= max(ids) < vocabulary:
            problems.append(f"{request.prompt_id!r} holds ids outside 0 .. {vocabulary - 1}")
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise DataError(
            f"rollout of {len(requests)} prompts: {len(problems)} cannot be answered by model "
            f"{name!r}, whose context of {context_length} tokens must hold a prompt of at least "
            f"one token and one token of answer: {'; '.join(problems[:SHOWN])}{more}. Filter them "
            "out, e.g. prompts.filter(lambda row: ...), or shorten them."
        )
