"""Adapters for libraries that people train with; only its own module imports each."""
