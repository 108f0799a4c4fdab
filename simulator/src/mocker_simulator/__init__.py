"""A fleet of mock engines in virtual time: the live engine's code with another clock."""
