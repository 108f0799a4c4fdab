"""Kopf wiring, nothing else."""
