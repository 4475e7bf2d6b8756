"""What the numbers of one call do not show."""

from mha.check.catalogue import behaviour

BY_CHANCE = behaviour(
    "behaviour-by-chance",
    "state",
    "The result depends on chance",
    "The same input gives another result the second time: random numbers enter, from dropout for instance.",
    "leave dropout to the layer, which knows whether it is being trained; a function has no such switch.",
)
STATE_KEPT = behaviour(
    "behaviour-state-kept",
    "state",
    "The result depends on the calls before",
    "The same input gives another result the second time.",
    "compute everything from the arguments; change no global, no default argument, no attribute.",
)
GRADIENT_CUT = behaviour(
    "behaviour-gradient-cut",
    "gradient",
    "The result is right, but no right gradient arrives at the inputs",
    "Nothing before it would be trained: detach(), .data, .item(), no_grad() or a new tensor is in the way.",
    "compute with the tensors themselves from the inputs to the output.",
)
GRADIENT_NAN = behaviour(
    "behaviour-gradient-nan",
    "gradient",
    "The result is right, but its gradient is NaN",
    "One step of training turns every weight into NaN: a NaN or an infinity was made and hidden later.",
    "let no NaN arise: fill with the lowest finite number, and set to 0 what is blocked after the softmax.",
)
GRADIENT_IN_PLACE = behaviour(
    "behaviour-gradient-in-place",
    "gradient",
    "The result is right, but its gradient cannot be worked out: a tensor is changed in place",
    "The backward pass needs the numbers that were overwritten, by +=, copy_ or masked_fill_ for instance.",
    "make a new tensor in each step: x = x * …, masked_fill in place of masked_fill_.",
)
INPUT_CHANGED = behaviour(
    "behaviour-input-changed",
    "side effects",
    "The result is right, but it writes into what it was given",
    "The caller's tensor holds other numbers afterwards, and a second call with it goes wrong.",
    "make a new tensor: Q = Q / x in place of Q /= x, masked_fill in place of masked_fill_.",
)
SETTING_CHANGED = behaviour(
    "behaviour-setting-changed",
    "side effects",
    "The result is right, but a setting of torch's is another afterwards",
    "Everything that runs later in the same process is changed by it.",
    "set nothing for all: give dtype=, device= or a generator to the call that needs it.",
)
OTHER_SIGNATURE = behaviour(
    "behaviour-other-signature",
    "signature",
    "It does not take the arguments that are asked for",
    "Nobody who knows the signature can call it.",
    "copy the line with `def` from the exercise, names, order and defaults.",
)
NOTHING_GIVEN = behaviour(
    "behaviour-nothing-returned",
    "result",
    "Nothing comes back",
    "The result is None: a `return` is missing, on every way or on one of the ways through the code.",
    "end each way through the code with `return`.",
)
