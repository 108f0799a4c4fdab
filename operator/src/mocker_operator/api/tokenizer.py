"""`spec.tokenizer`: where the workers find a model's own `tokenizer.json`.

The operator reads neither the ConfigMap nor the claim: the kubelet mounts them, and a pod waits
for one that is missing.
"""

from typing import Final, Self

from pydantic import Field, model_validator

from mocker_operator.api.fields import Struct, cel
from mocker_operator.api.template import OBJECT_NAME_PATTERN

TOKENIZER_ENV: Final = "MOCKER_TOKENIZER"
"""Variable by which a worker is told of it, so that a role cannot set it as well."""
_FILE_NAME: Final = "tokenizer.json"
_ONE_SOURCE: Final = "give one of configMap and persistentVolumeClaim"
# A leading dot is a hidden folder, but neither `.` nor `..`; `$` would begin a variable.
_SEGMENT: Final = r"\.?[^./$\s][^/$\s]*"


class ConfigMapTokenizer(Struct):
    """A key of a ConfigMap in the namespace of the resource, which holds 1 MiB at most."""

    name: str = Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)
    """Name of the ConfigMap; another name restarts the pods, another content does not."""
    key: str = Field(default=_FILE_NAME, min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    """Key of the file in it."""


class ClaimTokenizer(Struct):
    """A file on a PersistentVolumeClaim in the namespace of the resource, mounted read-only."""

    claim_name: str = Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)
    """Name of the claim."""
    path: str = Field(
        default=_FILE_NAME,
        min_length=1,
        max_length=1024,
        pattern=rf"^{_SEGMENT}(/{_SEGMENT})*$",
    )
    """Path of the tokenizer.json, or of its directory, below the root of the volume."""


class TokenizerSpec(
    Struct,
    json_schema_extra=cel(("has(self.configMap) != has(self.persistentVolumeClaim)", _ONE_SOURCE)),
):
    """Where the tokenizer.json is."""

    config_map: ConfigMapTokenizer | None = None
    """In a ConfigMap."""
    persistent_volume_claim: ClaimTokenizer | None = None
    """On a volume."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.config_map is None) == (self.persistent_volume_claim is None):
            raise ValueError(_ONE_SOURCE)
        return self

    @property
    def source(self) -> ConfigMapTokenizer | ClaimTokenizer:
        """The one source."""
        found = self.config_map or self.persistent_volume_claim
        if found is None:
            raise ValueError(_ONE_SOURCE)
        return found
