"""Training and export of model packages. Needs the [train] extra; nothing at run time imports this package."""
