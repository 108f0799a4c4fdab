"""The MockerDeployment resource: its models, their validation and the CRD made from them."""

from mocker_operator.api.crd import crd, crd_yaml
from mocker_operator.api.engine_arguments import engine_arguments, engine_file
from mocker_operator.api.errors import InvalidSpec
from mocker_operator.api.parse import parse_spec
from mocker_operator.api.spec import MockerDeploymentSpec

__all__ = [
    "InvalidSpec",
    "MockerDeploymentSpec",
    "crd",
    "crd_yaml",
    "engine_arguments",
    "engine_file",
    "parse_spec",
]
