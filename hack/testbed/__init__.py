"""A kind cluster for tests, on any machine: with image registries, or with package registries only.

Runs before any virtual environment exists, so it needs the standard library only.
"""
