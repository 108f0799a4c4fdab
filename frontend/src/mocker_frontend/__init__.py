"""The OpenAI-compatible entry: prefill-then-decode orchestration over registered workers."""
