"""The first moments of a model process, before anything large is imported.

    python -m vitral.deploy.serve.start_worker FILE-DESCRIPTOR

The front ends it by closing the socket, and it heeds that at any time: while it imports, loads, or hangs in a picture.
"""

import os
import select
import signal
import sys
import threading


def main() -> None:
    """Watch the socket, and become a worker."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # are for the front, which ends this process
        signal.signal(sign, signal.SIG_IGN)
    channel = int(sys.argv[1])
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    from vitral.deploy.serve.worker import serve

    serve(channel)


def _end_with(channel: int) -> None:
    """End when the other side of the socket is closed, which poll tells without being asked."""
    watched = select.poll()
    watched.register(channel, 0)
    watched.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
