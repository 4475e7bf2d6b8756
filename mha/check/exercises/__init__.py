"""The exercises, in the order of the course; a file for each topic."""

from mha.check.exercise import Exercise
from mha.check.exercises import (
    attention,
    cache,
    cross,
    heads,
    loading,
    masks,
    parallel,
    positions,
    pruning,
    shapes,
    specialisation,
    tiles,
    torch_api,
)

EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for exercise in (
        shapes.SHAPES_OF_THE_LAYER,
        heads.LINEAR_PROJECTION,
        heads.SPLIT_HEADS,
        attention.SCALED_DOT_PRODUCT_ATTENTION,
        heads.MERGE_HEADS,
        heads.OUTPUT_PROJECTION,
        loading.FROM_TORCH_MHA,
        masks.CAUSAL_MASK,
        masks.PADDING_MASK,
        torch_api.CALL_TORCH_MHA,
        torch_api.CALL_TORCH_SDPA,
        cross.CROSS_ATTENTION,
        specialisation.SPECIALISATION,
        pruning.PRUNE_HEADS,
        positions.APPLY_ROPE,
        positions.ALIBI_SLOPES,
        loading.LOAD_BERT_LAYER,
        cache.KV_CACHE,
        cache.CACHED_ATTENTION,
        heads.REPEAT_KV,
        tiles.ONLINE_ATTENTION,
        parallel.HEAD_SHARDS,
    )
}
