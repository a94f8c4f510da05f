"""``python -m dedup_sdk._cli`` is the command ``dedup``."""

from dedup_sdk._cli import main

if __name__ == "__main__":
    main()
