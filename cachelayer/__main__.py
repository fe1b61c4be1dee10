"""Run the command line: ``python -m cachelayer``."""

from cachelayer.cli import main

if __name__ == "__main__":
    main()
