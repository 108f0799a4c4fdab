"""The one error of the resource's boundary."""


class InvalidSpec(ValueError):
    """A MockerDeployment that cannot be carried out as written.

    Attributes:
        path: Field at fault, such as `spec.decode.replicas`.
        reason: What is wrong with it and what would be right.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
