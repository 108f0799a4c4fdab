"""Limits of the OpenAI API that workers set and frontends measure by."""

from typing import Final

MAX_CHOICES: Final = 1024
"""Answers that one request may ask for: prompts times `n`."""
