import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_protocol.json_nesting import MAX_LEVELS, TooDeep, check_nesting

texts = st.text(alphabet='[]{}"\\\\a\n')
values = st.recursive(
    texts | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
)


def levels(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


@given(values, st.integers(MAX_LEVELS - 8, MAX_LEVELS + 8))
def test_brackets_count_where_they_are_no_text(value, around):
    payload = ("[" * around + json.dumps(value) + "]" * around).encode()
    if around + levels(value) > MAX_LEVELS:
        with pytest.raises(TooDeep, match="nested deeper than 100 levels"):
            check_nesting(payload)
    else:
        check_nesting(payload)


@pytest.mark.parametrize("payload", [b"", b"]]]", b"[" * 100, b"{}" * 5000])
def test_what_is_not_deep_is_left_to_the_parser(payload):
    check_nesting(payload)
