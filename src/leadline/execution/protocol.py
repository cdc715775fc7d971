"""What goes over a worker's private descriptors: frames of 8 bytes of length and a msgpack body."""

import signal

import msgspec

HEADER = 8
RESULT_LIMIT = 64 << 20  # bytes of one frame; larger texts go through the store
STACK_SIGNAL = signal.SIGUSR1  # asks a worker for its Python stack in the log


class Hello(msgspec.Struct, frozen=True):
    """The first frame a worker sends: it is up and can import leadline."""

    pid: int
    python: str


class Call(msgspec.Struct, frozen=True):
    """A request: run `function` ("module:name") on the encoded record."""

    function: str
    request: msgspec.Raw


class Failure(msgspec.Struct, frozen=True):
    """An exception. `error` names a class of leadline.errors, or is empty for any other exception of class `kind`."""

    kind: str
    message: str
    error: str = ""
    where: str = ""
    remedy: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The reply to a `Call`: a result or a failure."""

    result: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil
    failure: Failure | None = None


def frame(body: bytes) -> bytes:
    """`body` with its length in front."""
    return len(body).to_bytes(HEADER, "big") + body
