"""python3 -m app: serves on port 8080 until it is told to stop."""

import os
import signal
import sys

from app.server import make_server
from app.store import Store


def main():
    server = make_server(("", int(os.environ.get("PORT", "8080"))), Store.from_environment(os.environ))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("serving on port", server.server_address[1])
    server.serve_forever()


main()
