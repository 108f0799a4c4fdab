"""The generated CRD: current, structural, and without what an API server refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, Field

from mocker_operator.api import crd, crd_yaml
from mocker_operator.api.structural import structural

ROOT = Path(__file__).parents[3]
FORBIDDEN = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title", "examples", "nullable"}


def version() -> dict[str, Any]:
    found: dict[str, Any] = crd()["spec"]["versions"][0]
    return found


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from schemas(item, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key], f"{path}[]")


SCHEMAS = list(schemas(version()["schema"]["openAPIV3Schema"]))


def test_the_file_in_crds_is_current():
    path = ROOT / "crds/mockerdeployments.mocker.dev.yaml"
    assert path.read_text() == crd_yaml(), "run: mocker-operator crd > crds/..."


def test_the_file_is_the_definition():
    assert yaml.safe_load(crd_yaml()) == crd()
    assert "&id" not in crd_yaml()


def test_every_schema_is_structural():
    for path, schema in SCHEMAS:
        assert not FORBIDDEN & schema.keys(), path
        assert "type" in schema or schema["x-kubernetes-int-or-string"] is True, path
        assert not ("properties" in schema and "additionalProperties" in schema), path
        for bound in ("exclusiveMinimum", "exclusiveMaximum"):
            assert schema.get(bound, True) is True, path


def test_no_default_holds_a_null():
    defaults = {path: schema["default"] for path, schema in SCHEMAS if "default" in schema}
    assert defaults[".spec.frontend.replicas"] == 1
    assert defaults[".spec.scaling.source"] == "manual"
    assert "null" not in yaml.safe_dump(defaults)


def test_overrides_of_a_role_have_no_defaults():
    assert not [p for p, s in SCHEMAS if p.startswith(".spec.decode.engine") and "default" in s]


def test_everything_is_bounded():
    for path, schema in SCHEMAS:
        if not path.startswith((".spec", ".status")) or "enum" in schema or "format" in schema:
            continue
        match schema.get("type"):
            case "array":
                assert "maxItems" in schema, path
            case "string":
                assert "maxLength" in schema, path
            case "integer" | "number":
                assert {"minimum", "maximum"} <= schema.keys(), path
            case "object" if "additionalProperties" in schema:
                assert "maxProperties" in schema, path


def test_every_list_says_how_it_merges():
    for path, schema in SCHEMAS:
        if schema.get("type") == "array":
            assert "x-kubernetes-list-type" in schema, path


def test_every_field_is_described():
    for path, schema in SCHEMAS:
        if path.startswith((".spec.", ".status.")) and "[]" not in path:
            assert schema.get("description"), path


def test_columns_show_what_status_has():
    paths = {path for path, _ in SCHEMAS}
    for column in version()["additionalPrinterColumns"]:
        if column["jsonPath"].startswith(".status.") and "[" not in column["jsonPath"]:
            assert column["jsonPath"] in paths
    names = [c["name"] for c in version()["additionalPrinterColumns"] if not c.get("priority")]
    assert names == ["Ready", "Prefill", "Decode", "Endpoint", "Age"]


def test_the_greatest_integer_is_a_format_and_no_bound():
    seed = dict(SCHEMAS)[".spec.engine.seed"]
    assert "maximum" not in seed
    assert seed["format"] == "int64"


def test_an_exclusive_bound_takes_the_form_of_openapi_3_0():
    ratio = dict(SCHEMAS)[".spec.engine.decodeSpeedupRatio"]
    assert (ratio["minimum"], ratio["exclusiveMinimum"]) == (0, True)


class Union(BaseModel):
    value: int | list[int]


class Unknown(BaseModel):
    value: Annotated[int, Field(json_schema_extra={"deprecated": True})]


class Anything(BaseModel):
    value: Any


class MisplacedBound(BaseModel):
    value: Annotated[dict[str, str], Field(json_schema_extra={"maxLength": 3})]


@pytest.mark.parametrize("model", [Union, Unknown, Anything, MisplacedBound])
def test_what_has_no_structural_form_is_an_error(model):
    with pytest.raises(TypeError, match="no structural form"):
        structural(model.model_json_schema())
