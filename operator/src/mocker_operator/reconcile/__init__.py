"""From what was observed to what is to be done: pure, and the heart of the operator."""
