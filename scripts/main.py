"""The command line `relay` without installation, as jobs start it: it imports from its own folder, and no other."""

from relay.commands import main

if __name__ == "__main__":
    main()
