"""What travels between the programs: events, metrics, registrations, decisions and arguments.

Every other package imports this one and no package imports another program, so a format has one
home. Nothing here does I/O.
"""

__version__ = "0.1.0"
