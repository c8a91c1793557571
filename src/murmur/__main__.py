"""Entry point of `python -m murmur`."""

from murmur.cli import main

if __name__ == "__main__":
    main()
