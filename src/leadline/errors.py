"""Every error a user can meet: one line that says what is wrong, where, and what to do; each knows its exit status."""


class LeadlineError(Exception):
    """Base of all expected errors. `status` is the exit status of the command line (see docs/cli.md).

    `what` is one line without a trailing full stop; `where` is a file, `file:line` or option; `remedy` is one imperative sentence.
    """

    status = 2

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.remedy = what, where, remedy

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.remedy}" if self.remedy else line


class UsageError(LeadlineError):
    """The command line, the target or the settings are wrong."""


class InternalError(LeadlineError):
    """Our own fault."""


class KernelError(LeadlineError):
    """The user's file does not parse, compile, launch or match its reference."""

    status = 3


class EvidenceError(LeadlineError):
    """Evidence that was asked for by name cannot be had here."""

    status = 4


class WorkerError(LeadlineError):
    """A worker process failed. Callers turn it into a verdict, an `Unavailable` or a `KernelError`."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "", log: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.log = log


class WorkerDied(WorkerError):
    """The process ended before it answered (signal or exit status in `what`)."""


class WorkerTimeout(WorkerError):
    """The process did not answer in time and was killed with its process group."""


class WorkerRaised(WorkerError):
    """The called function raised. `kind` is the exception's class name, `frame` is `file:line` of the innermost frame in user code."""

    def __init__(
        self, kind: str, message: str, *, frame: str = "", log: str = "", expected: bool = False, status: int = 2, remedy: str = ""
    ) -> None:
        super().__init__(message if expected else f"{kind}: {message}", where=frame, remedy=remedy, log=log)
        self.kind, self.message, self.frame, self.expected = kind, message, frame, expected
        self.status = status
