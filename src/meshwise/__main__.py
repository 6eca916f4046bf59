"""`python -m meshwise` is `meshwise`."""

from meshwise.ui.cli.main import main

if __name__ == "__main__":
    main()
