"""``python -m cachelayer.cli`` is the script ``cachelayer``."""

from cachelayer.cli import main

main()
