"""The `unfed` command, also as `python -m unfed`."""

import sys

from unfed import plugins


def main() -> None:
    """Take the current folder off the path, then read the command line."""
    plugins.leave_current_folder()
    try:  # it imports much, and none of it may come from the current folder
        from unfed.cli.main import main as command_line
    except KeyboardInterrupt:  # nothing was begun
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
