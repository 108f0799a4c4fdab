"""Errors of the operator that are not about one API call or one spec."""


class OperatorError(Exception):
    """Root of the errors that the operator raises on purpose."""


class InvalidConfig(OperatorError):
    """A flag, a variable or a kubeconfig that cannot be used; the text names it and the remedy."""


class SourceUnavailable(OperatorError):
    """The planner's bucket cannot be reached; the caller tries again later."""


class OperatorFailed(OperatorError):
    """A part of the operator has ended for good; the process is to be started again."""
