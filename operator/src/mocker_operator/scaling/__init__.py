"""Where decisions come from."""
