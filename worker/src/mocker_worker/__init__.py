"""A mock LLM engine: scheduler, KV cache and timing of a real one behind an OpenAI API."""
