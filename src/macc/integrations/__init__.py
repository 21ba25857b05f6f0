"""Adapters for libraries that people already train with; each is imported only by its own
module.
"""
