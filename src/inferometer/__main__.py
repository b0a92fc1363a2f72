"""python -m inferometer: the command line, where its script is not on the path."""

from inferometer.cli.main import main

if __name__ == "__main__":
    main()
