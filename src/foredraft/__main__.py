"""`python -m foredraft`, and `accelerate launch -m foredraft train ...`."""

from foredraft.cli.main import main

if __name__ == "__main__":
    main()
