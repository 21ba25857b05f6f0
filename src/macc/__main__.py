"""``python -m macc``: the command line without an installed script."""

from macc.cli import main

main()
