"""More programs by a smaller block on an axis that programs already share."""

from collections.abc import Iterator

from leadline.model import KernelFacts, Launch
from leadline.rules.base import View
from leadline.rules.editing import EditError, SourceFile

LEAST_BLOCK = 32
WARP = 32


def smaller_blocks(view: View, launch: Launch, facts: KernelFacts, wanted: float) -> Iterator[tuple[str, str, dict[str, int]]]:
    """(title, whole file, constants chosen) for blocks 2 to 16 times smaller, the one that fills the device first.

    A block qualifies when the launch gives it as a literal power of two and its grid names the same number: then the axis is divided by
    it. Warps shrink with it, so that every thread keeps its work. `wanted` is how many times as many programs are asked for.
    """
    if launch.kernel_file != view.source.path or launch.call_file != view.source.path:
        return
    loops = {name for loop in facts.loops for name in (loop.step, loop.start, loop.stop)}
    for argument in launch.arguments:
        size = argument.value
        if (
            not argument.constexpr
            or argument.folded
            or not isinstance(size, int)
            or isinstance(size, bool)
            or size & (size - 1)
            or argument.name in loops
        ):
            continue
        for factor in sorted((2, 4, 8, 16), key=lambda f: (f < wanted, abs(f - wanted))):
            if size // factor < LEAST_BLOCK:
                continue
            warps = max(1, min(launch.option("num_warps", 4), size // factor // WARP))
            file = SourceFile(view.text(view.source.path))
            try:
                before = file.grid_axes(launch.call_line)
                if not any(str(size) in axis for axis in before):
                    break
                file.resize_block(launch.call_line, argument.name, size // factor)
                file.set_launch_option(launch.call_line, "num_warps", str(warps))
                yield (
                    f"{argument.name} = {size // factor}, num_warps = {warps}",
                    file.apply(),
                    {argument.name: size // factor, "num_warps": warps},
                )
            except EditError:
                break
