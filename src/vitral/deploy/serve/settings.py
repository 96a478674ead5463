"""What a server is told when it starts, and its limits. No torch."""

from typing import Literal

from pydantic import Field, StrictInt

from vitral.settings import Settings

PER_BATCH = 32  # pictures that a worker is given at once
MOST_JSON = 8 * 2**20  # bytes of a body of JSON: numbers written out take forty times their memory
MOST_HEAD = 32 * 2**10  # bytes of a request's address and headers
MOST_CONNECTIONS = 4_000
MOST_PIPELINED = 16  # requests on one connection that wait for the one before
HEAD_SECONDS, BODY_SECONDS = 10.0, 30.0  # in which a request's headers, and its body, have to be there
IDLE_SECONDS = 30.0  # a connection between two requests
SILENT_SECONDS = 30.0  # a client that takes nothing of its answer
MOST_MAPS = 64 * 2**20  # bytes of attention that the glass sends at once
HANG_SECONDS = 60.0  # after which a worker that is busy with one batch is ended
# In which a worker has to have its models: ten minutes read 60 GB from a disk of 100 MB a second. What takes longer
# hangs, in a network file system that has gone for example.
LOAD_SECONDS = 600.0


class ServeSettings(Settings):
    """How a server is run.

    >>> ServeSettings(models={"digits": "runs/digits"}, deadline=0.5).most_bytes
    33554432
    """

    models: dict[str, str]  # by name: a run, weights, an exported file; the first answers where none is named
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65_535)
    workers: StrictInt = Field(default=0, ge=0)  # processes; 0: by measuring
    threads: StrictInt = Field(default=0, ge=0)  # of each; 0: by measuring
    device: str = "cpu"
    deadline: float = Field(default=2.0, gt=0)  # seconds in which a picture has to come to its turn
    queue: StrictInt = Field(default=512, ge=1)  # pictures that may wait
    most_mb: StrictInt = Field(default=32, ge=1)  # of one request
    held_mb: StrictInt = Field(default=256, ge=1)  # of all requests together
    most_megapixels: StrictInt = Field(default=64, ge=1)  # of one picture
    token_file: str = ""  # a token a line, one of which has to come with a request; none: all may ask
    glass: bool = True  # whether one may look inside
    head_seconds: float = HEAD_SECONDS  # these three are other ones in tests
    body_seconds: float = BODY_SECONDS
    silent_seconds: float = SILENT_SECONDS
    code: tuple[str, ...] = ()  # files of Python that may be run
    log: Literal["events", "requests"] = "events"

    @property
    def most_bytes(self) -> int:
        """Of one request."""
        return self.most_mb * 2**20

    @property
    def is_local(self) -> bool:
        """Whether only this machine can ask."""
        return self.host in ("127.0.0.1", "localhost", "::1")

    @property
    def is_private(self) -> bool:
        """Whether not everybody can ask: only then one's own pictures are shown as examples."""
        return self.is_local or bool(self.token_file)
