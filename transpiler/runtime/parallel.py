"""Sizes that tensor-parallel ranks must share evenly.

vLLM's layers assert it without naming the config field.
"""

from __future__ import annotations

from vllm.distributed import get_tensor_model_parallel_world_size


def require_divisible(size: int, field: str, replicable: bool = False) -> None:
    """Refuse a size that the tensor-parallel ranks cannot share.

    Args:
        size: Number of heads or of columns.
        field: Config field it comes from, for the message.
        replicable: Whether ranks may hold copies when there are more ranks than
            `size`, as key and value heads may.

    Raises:
        ValueError: It does not divide.
    """
    ranks = get_tensor_model_parallel_world_size()
    if size % ranks and not (replicable and ranks % size == 0):
        raise ValueError(
            f"{field}={size} cannot be shared by tensor_parallel_size={ranks} ranks"
        )


def require_multiple(size: int, by: int, field: str, by_field: str) -> None:
    """Refuse a size that is no multiple of another: upstream rounds the quotient down.

    Args:
        size: For example the hidden size.
        by: For example the number of heads.
        field: Config field that `size` comes from, for the message.
        by_field: Config field that `by` comes from.

    Raises:
        ValueError: It is no multiple.
    """
    if size % by:
        raise ValueError(f"{field}={size} is not a multiple of {by_field}={by}")
