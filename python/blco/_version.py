from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("blco")
except PackageNotFoundError:  # imported from somewhere it was not installed to
    __version__ = "unknown"
