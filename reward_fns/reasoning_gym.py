"""What the task's own scorer says of the answer, 0 to 1, for prompts of ``reasoning-gym:<task>``.

The final answer is what stands between the last ``<answer>`` tags, or else all text after the
thoughts. Needs ``pip install 'nbrl[data]'``.
"""

from typing import Any

MOST_CHARACTERS = 10_000
"""A longer answer gets 0: some scorers take quadratic time."""


def final_answer(response: str) -> str:
    """What is handed to the scorer: without thoughts, tags and blanks around it."""
    rest = response.rpartition("</think>")[2].partition("<think>")[0]
    _, opened, inside = rest.rpartition("<answer>")
    if opened and "</answer>" in inside:
        return inside.partition("</answer>")[0].strip()
    return rest.strip()


def reward(response: str, label: str, metadata: dict[str, Any]) -> float:
    """The scorer's own number; 0 for an empty answer, whatever the scorer gives for trying."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise ImportError("reasoning-gym is missing; run: pip install 'nbrl[data]'") from error
    entry = metadata.get("entry", metadata)
    if "source_dataset" not in entry:
        raise ValueError(
            "the prompt's metadata names no 'source_dataset'; load the prompts with "
            f"nbrl.load_prompts('reasoning-gym:<task>'). It has {sorted(metadata)}."
        )
    answer = final_answer(response)
    if not answer or len(answer) > MOST_CHARACTERS:
        return 0.0
    score = reasoning_gym.get_score_answer_fn(entry["source_dataset"])
    return float(score(answer, {"question": "", "answer": label, "metadata": entry}))
