"""``python -m edgespec`` is the command line."""

from edgespec.cli.main import main

if __name__ == "__main__":
    main()
