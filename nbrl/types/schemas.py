"""The columns that the values of samples must have, and the words that may stand in them.

Imports pyarrow only. A value may have more columns than these.
"""

import pyarrow as pa

SOURCE_PROMPT, SOURCE_POLICY, SOURCE_ENVIRONMENT = 0, 1, 2
"""Who wrote a token."""

FINISH_REASONS = ("stop", "length", "interrupted", "error")
"""How an answer ended."""
STATUSES = ("ok", "error", "timeout", "unparsed", "excluded")
"""What became of a reward."""

PROMPT_COLUMNS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("messages", pa.string()),
        ("label", pa.string()),
        ("metadata", pa.string()),
    ]
)
ROLLOUT_COLUMNS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("prompt_id", pa.string()),
        ("group_id", pa.string()),
        ("response", pa.string()),
        ("finish_reason", pa.string()),
        ("truncated", pa.bool_()),
        ("temperature", pa.float64()),
        ("seed", pa.uint64()),
        ("version_min", pa.int64()),
        ("version_max", pa.int64()),
        ("num_turns", pa.int32()),
        ("seconds", pa.float64()),
        ("error", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("source", pa.list_(pa.int8())),
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("policy_version", pa.list_(pa.int64())),
    ]
)
SCORED_COLUMNS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("total", pa.float64()),
        ("status", pa.string()),
        ("error", pa.string()),
    ]
)
ADVANTAGED_COLUMNS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("reward", pa.float64()),
        ("group_mean", pa.float64()),
        ("group_std", pa.float64()),
        ("live", pa.bool_()),
        ("mask", pa.list_(pa.bool_())),
        ("advantages", pa.list_(pa.float32())),
        ("returns", pa.list_(pa.float32())),
        ("kl", pa.list_(pa.float32())),
    ]
)
