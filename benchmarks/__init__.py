"""Speed claims, each a ratio of two things timed in one run; ``python -m benchmarks`` prints them
all.
"""
