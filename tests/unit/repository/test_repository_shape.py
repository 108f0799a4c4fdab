"""Rules of the repository that no linter knows."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("protocol", "worker", "frontend", "planner", "operator", "simulator")
CODE = (*PROGRAMS, "hack", "benchmarks")
MAX_MODULE_LINES = 400
MAX_TEST_LINES = 500


def documents():
    return sorted(
        path
        for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("charts/**/*.md"))
        if ".venv" not in path.parts
    )


def modules(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def make_targets():
    makefile = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_programs_folder_is_not_a_package(program):
    # With operator/__init__.py, any Python started here would import it in place of the stdlib's.
    assert not (ROOT / program / "__init__.py").exists()
    assert not (ROOT / program / "src/__init__.py").exists()


def test_the_standard_librarys_operator_is_imported_from_the_root():
    program = "import operator; print(operator.add(1, 2))"
    done = subprocess.run(
        ["python3", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == "3", done.stderr


def test_no_module_is_longer_than_a_reader_can_hold():
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in modules(*CODE)
        if (lines := len(path.read_text().splitlines())) > MAX_MODULE_LINES
    }
    assert too_long == {}


def test_no_test_module_is_longer_than_a_reader_can_hold():
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in modules("tests")
        if (lines := len(path.read_text().splitlines())) > MAX_TEST_LINES
    }
    assert too_long == {}


def taken_for_their_texts(tree):
    """Yield the lines of `error or ...`, which is always the error: exceptions are truthy."""
    for node in ast.walk(tree):
        names = set()
        if isinstance(node, ast.ExceptHandler):
            names = {node.name}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {
                argument.arg
                for argument in (*node.args.args, *node.args.kwonlyargs)
                if isinstance(argument.annotation, ast.Name)
                and argument.annotation.id.endswith(("Exception", "Error"))
            }
        for inner in ast.walk(node) if names else ():
            if isinstance(inner, ast.BoolOp) and isinstance(inner.values[0], ast.Name):
                yield from [inner.lineno] if inner.values[0].id in names else []


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("try: f()\nexcept OSError as e: print(e or 'timeout')", [2]),
        ("try: f()\nexcept OSError as e: print(str(e) or 'timeout')", []),
        ("def f(e: Exception):\n  return g(f'{e or 1}')", [2]),
        ("def f(e: Exception | None):\n  return e or 1", []),
    ],
)
def test_an_error_taken_for_its_text_is_found(code, lines):
    assert list(taken_for_their_texts(ast.parse(code))) == lines


def test_no_error_is_taken_for_its_text():
    assert not [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules(*CODE, "tests")
        for line in taken_for_their_texts(ast.parse(path.read_text()))
    ]


def test_no_module_is_named_for_what_it_is_not_about():
    nameless = {"utils.py", "util.py", "helpers.py", "common.py", "base.py", "misc.py"}
    assert [path for path in modules(*CODE, "tests") if path.name in nameless] == []


def test_test_folders_are_not_packages():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_two_test_modules_share_a_name():
    names = [path.name for path in modules("tests") if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_the_charts_crd_is_the_generated_one():
    generated = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    chart = ROOT / "charts/mocker-operator/crds"
    assert generated
    assert {path.name: path.read_text() for path in chart.glob("*.yaml")} == generated


def test_the_charts_application_version_is_the_projects():
    text = (ROOT / "protocol/src/mocker_protocol/__init__.py").read_text()
    (version,) = re.findall(r'__version__ = "(.+)"', text)
    chart = yaml.safe_load((ROOT / "charts/mocker-operator/Chart.yaml").read_text())
    assert chart["appVersion"] == version


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_make_commands_in_documents_exist(document):
    code = re.findall(r"```.*?```|`[^`\n]+`", document.read_text(), flags=re.DOTALL)
    named = {
        target
        for piece in code
        for target in re.findall(r"(?:^|[`$;&] ?)make ([a-z][a-z-]*)", piece, flags=re.MULTILINE)
    }
    assert named <= make_targets()


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_in_documents_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    targets += re.findall(r'(?:src|srcset)="([^"]+)"', text)
    broken = [
        target
        for target in targets
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert broken == []


def test_the_readme_names_the_commands_that_do_everything():
    readme = (ROOT / "README.md").read_text()
    assert all(f"make {target}" in readme for target in ("run", "test", "down"))


def test_workflows_give_no_job_more_than_reading():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}, path.name


def test_no_test_imports_from_a_conftest():
    """Of several folders with one, Python would take whichever comes first."""
    assert not [
        str(path.relative_to(ROOT))
        for path in modules("tests")
        if re.search(r"^\s*(from|import) conftest\b", path.read_text(), re.MULTILINE)
    ]
