"""The clients' local runs, from the dispatch to the server's use of the result."""

from fedlight.clients.clients import Clients

__all__ = ["Clients"]
