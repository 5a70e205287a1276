"""The operator program of midstream, which never imports jax."""

import warnings

from midstream_core import __version__

# requests silences this warning itself, but its filter is lost where two threads import the clients of two services:
# one restores the filters that it has found. Then it is on stderr, or the last line of a migration's log.
warnings.filterwarnings("ignore", "SOCKS support in urllib3")

__all__ = ["__version__"]
