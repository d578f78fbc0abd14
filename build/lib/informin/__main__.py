"""`python -m informin`: the same as the `informin` command."""

from informin.cli import main

if __name__ == "__main__":
    main()
