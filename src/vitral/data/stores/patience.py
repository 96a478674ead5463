"""How long to go on with a server that breaks off, stalls, or says that it is busy."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from vitral.errors import DataError

Tell = Callable[[str], None]  # a sentence about what goes on


def silent(sentence: str) -> None:
    """For those who want no sentences."""


class Broken(Exception):
    """The connection, not the file: worth another try, but not before `after` seconds."""

    def __init__(self, sentence: str, after: float = 0.0) -> None:
        super().__init__(sentence)
        self.after = after


@dataclass(frozen=True)
class Patience:
    """Tries without a byte before it ends: 0.5, 1, 2, … and then 30 s lie between two, about three minutes in all."""

    tries: int = 12
    first: float = 0.5
    longest: float = 30.0
    silence: float = 20.0  # seconds without a byte after which a connection counts as broken
    most_after: float = 300.0  # seconds that a server may ask for

    def seconds(self, key: str, tries: int) -> float:
        """How long to wait after so many tries. Half of it is a hash of what is asked for: when a server comes back,
        not everybody stands at its door in the same moment, and yet nothing here is left to chance.

        >>> [round(Patience().seconds("http://here/a.tar 0", tries), 2) for tries in range(4)]
        [0.49, 0.72, 1.93, 3.5]
        """
        share = int.from_bytes(blake2b(f"{key} {tries}".encode(), digest_size=4).digest(), "big") / 2**32
        return min(self.longest, self.first * 2.0**tries) * (1 + share) / 2


PATIENT = Patience()


class Retries:
    """What all tries of a store share: its patience, whom to tell, and whether it is closed."""

    def __init__(self, patience: Patience = PATIENT, tell: Tell = silent) -> None:
        self.patience, self.tell = patience, tell
        self._closed = threading.Event()

    def of(self, address: str, place: int) -> "Tries":
        """For the bytes of a file from this place on."""
        return Tries(self, address, place)

    def wait(self, seconds: float) -> None:
        """Wait, unless all is closed meanwhile."""
        if self._closed.wait(seconds):
            raise DataError("What was read from far was closed.")

    def close(self) -> None:
        """Whoever waits for another try ends now."""
        self._closed.set()


class Tries:
    """The tries of one thing that is asked for."""

    def __init__(self, retries: Retries, address: str, place: int) -> None:
        self._retries, self._address, self._key = retries, address, f"{address} {place}"
        self._count, self._waited = 0, 0.0

    def succeed(self) -> None:
        """It got further: patience begins anew."""
        self._count, self._waited = 0, 0.0

    def fail(self, broken: Broken) -> None:
        """Wait for the next try; or give up, with a sentence."""
        patience = self._retries.patience
        if broken.after > patience.most_after:
            raise DataError(
                f"{self._address} cannot be read: {broken} It asks to come back in {broken.after / 60:,.0f} minutes."
            )
        if self._count == patience.tries:
            raise DataError(
                f"{self._address} cannot be read: {broken} It was tried {self._count + 1} times in "
                f"{self._waited:.0f} s. Is there a network, and is the server well?"
            )
        seconds = max(broken.after, patience.seconds(self._key, self._count))
        self._count += 1
        self._waited += seconds
        if self._count == 4:  # before that it is nobody's concern
            self._retries.tell(f"{self._address}: {broken} It is tried again.")
        self._retries.wait(seconds)
