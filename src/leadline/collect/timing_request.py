"""What is asked of `collect.timing`. Apart, so that the main process can ask without importing torch."""

from leadline.model import KernelCase, Record


class ProfileRequest(Record, frozen=True):
    """Time the launches of one case. `store` is the store's home, where measured ceilings are kept ("" = measure again)."""

    case: KernelCase
    case_name: str
    store: str = ""
    seed: int = 0
    budget_s: float = 2.0
    # Who imports the case, by name: `ingest` stands beside `collect`, and neither imports the other.
    loader: str = "leadline.ingest.program:load_program"
