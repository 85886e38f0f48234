"""``python -m cowtail``, and the ``cowtail`` command."""

from __future__ import annotations

import sys

import typer

from cowtail.cli import app, common


def main() -> None:
    """Run the command line; what the option parser complains of is one line as well."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        print("cowtail: stopped", file=sys.stderr)
        sys.exit(common.UNDETERMINED)
    except Exception as error:
        said = getattr(error, "format_message", None)  # the parser's errors share no public base
        if said is None:
            raise
        print(f"cowtail: {' '.join(said().split())}", file=sys.stderr)
        sys.exit(common.USAGE)
    sys.exit(code)


if __name__ == "__main__":
    main()
