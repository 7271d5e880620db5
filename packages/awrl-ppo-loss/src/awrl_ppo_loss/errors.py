"""Errors of the package.

    PPOLossError
    |-- ArgumentError   (ValueError)  shape, device, value or meaning of an argument
    |-- ArgumentTypeError (TypeError) dtype or type of an argument
    `-- OptionError     (ValueError)  an option outside its allowed set or range

None is raised for what a *masked* position holds, and none for a non-finite loss: the loss is
returned as it is, so that the trainer can see it and skip the step.
"""


class PPOLossError(Exception):
    """Root of every error that this package raises on purpose."""


class ArgumentError(PPOLossError, ValueError):
    """A tensor has the wrong shape, device or meaning. Not raised for non-finite values."""


class ArgumentTypeError(PPOLossError, TypeError):
    """A tensor has the wrong dtype. Not raised for a wrong shape."""


class OptionError(PPOLossError, ValueError):
    """An option lies outside its allowed set or range. Not raised for a misspelt keyword."""
