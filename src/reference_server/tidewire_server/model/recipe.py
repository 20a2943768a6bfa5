"""Former name of `python -m tidewire_server.default_model.recipe`."""

from tidewire_server.default_model.recipe import main

if __name__ == "__main__":
    main()
