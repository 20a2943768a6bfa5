"""Generation of typed Python modules from the descriptions of endpoints, for `tidewire codegen`."""
