"""``python -m twophase.cli``."""

from twophase.cli.commands import main

if __name__ == "__main__":
    main(prog_name="twophase")
