"""Marking a whole layer, given as a class, built, or as a function with its weights.

`marking` is the way through: `making` makes a layer of a class, `calls` calls it, `reading` says what its
weights are taken for, `inputs` and `own_input` what it is tried on, `behaviour` looks at what one call does
not show, and `verdict` says it.
"""
