"""What a worker tells the world: KV events, forward-pass metrics and its registration."""
