"""``python -m dedup_sdk.cli`` is the command ``dedup``."""

from dedup_sdk.cli import main

if __name__ == "__main__":
    main()
