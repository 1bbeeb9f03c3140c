"""The built-in programs."""
