"""What fuzzers feed to decoders of JSON and MessagePack."""

from hypothesis import strategies as st


def nested(scalars, names):
    """Return a strategy for lists and objects of scalars, many under names that decoders know."""
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(names | st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=20,
    )
