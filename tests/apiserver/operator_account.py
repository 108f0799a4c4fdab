"""The ServiceAccount that every operator under test runs as."""

ACCOUNT = "mocker-operator"
ACCOUNT_NAMESPACE = "default"
OPERATOR_USER = f"system:serviceaccount:{ACCOUNT_NAMESPACE}:{ACCOUNT}"
