"""``python -m cowtail``, and the ``cowtail`` command."""

from __future__ import annotations

from cowtail.cli import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
