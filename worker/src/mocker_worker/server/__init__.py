"""The worker's HTTP edge: OpenAI API, metrics and probes."""
