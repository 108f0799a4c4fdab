"""Tests wait until something is so, with one patience, and never ask how soon it was."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
TIMEOUTS = {"asyncio.timeout", "asyncio.wait_for"}
CLOCKS = {"time.monotonic", "time.perf_counter", "time.time"}


def own_patiences(tree):
    """Yield the lines where a wait has a number of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in TIMEOUTS:
            values = (*node.args, *(keyword.value for keyword in node.keywords))
            if any(isinstance(value, ast.Constant) and value.value is not None for value in values):
                yield node.lineno


def haste(tree):
    """Yield the lines of assertions that a clock has not come far."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assert):
            continue
        for compared in ast.walk(node.test):
            if isinstance(compared, ast.Compare):
                sides = (compared.left, *compared.comparators)
                for (left, right), operator in zip(pairwise(sides), compared.ops, strict=True):
                    if isinstance(operator, ast.Gt | ast.GtE):
                        left, operator = right, ast.Lt()
                    if isinstance(operator, ast.Lt | ast.LtE) and reads_a_clock(left):
                        yield node.lineno


def reads_a_clock(tree):
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func) in CLOCKS for call in calls)


def found(rule):
    return [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in rule(ast.parse(path.read_text()))
    ]


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("async def f():\n  async with asyncio.timeout(5): pass", [2]),
        ("asyncio.wait_for(g(), 0.5)", [1]),
        ("asyncio.wait_for(g(), timeout=3)", [1]),
        ("asyncio.wait_for(g(), PATIENCE_S)", []),
        ("asyncio.timeout(None)", []),
    ],
)
def test_a_patience_of_its_own_is_found(code, lines):
    assert list(own_patiences(ast.parse(code))) == lines


def test_waits_of_tests_have_the_patience_of_all():
    assert found(own_patiences) == []


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("began = time.monotonic()\nassert time.monotonic() - began < 2", [2]),
        ("while True:\n  assert time.monotonic() < deadline, 'not yet'", [2]),
        ("assert 2 >= time.time() - began", [1]),
        ("assert time.monotonic() >= not_before", []),
        ("if time.monotonic() > deadline: raise NotYet", []),
    ],
)
def test_an_assertion_about_a_clock_is_found(code, lines):
    assert list(haste(ast.parse(code))) == lines


def test_no_test_asserts_how_soon_something_is_done():
    assert found(haste) == []
