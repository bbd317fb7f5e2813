"""The keys of ``training:`` and the checks of their values."""
