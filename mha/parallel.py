"""One layer on several processes, each with some of its heads: what each of them holds.

Each projects, attends and joins with its own rows of W_q, W_k and W_v and its own columns of W_o, and hears
nothing from the others. One sum over all of them, at the end, makes the output.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3. Its matrices are ours transposed: rows as nn.Linear
stores them are columns there, "column parallel", and the other way round.
"""

from mha._validate import check_size
from mha.attention import MultiHeadAttention
from mha.pruning import check_layer, prune_heads


def head_shards(layer: MultiHeadAttention, world_size: int) -> list[MultiHeadAttention]:
    """Cut a layer into layers of num_heads / world_size heads each, whose outputs add up to the layer's.

    Args:
        layer: stays as it is.
        world_size: how many processes share it, a divisor of num_heads.

    Returns:
        a layer for each rank: rank 0 has the first heads, and it alone the bias of W_o, which the sum has to
        count once.

    Raises:
        TypeError, ValueError: if `layer` is not a `MultiHeadAttention`, or world_size is not a positive
            integer that divides its num_heads.

    Source: Shoeybi et al. 2019, section 3, figure 3b.
    """
    check_layer(layer)
    check_size("world_size", world_size)
    if layer.num_heads % world_size:
        raise ValueError(f"num_heads={layer.num_heads} is not divisible by world_size={world_size}")
    h = layer.num_heads // world_size
    shards = [prune_heads(layer, range(rank * h, (rank + 1) * h)) for rank in range(world_size)]
    for shard in shards[1:]:
        shard.W_o.bias = None
    return shards
