"""Files: what is written whole or not at all, and what is read without trusting it."""
