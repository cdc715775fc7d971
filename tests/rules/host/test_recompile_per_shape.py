from leadline.model import Argument, KernelFacts, Launch, Parameter, SourceFacts, Trace
from leadline.rules.base import View
from leadline.rules.host.recompile_per_shape import RecompilePerShape


def launch(index: int, value: int, variant: str) -> Launch:
    arguments = (Argument(name="M", type="constexpr", value=value, constexpr=True),)
    return Launch(
        index=index, kernel="k", kernel_file="k.py", kernel_line=3, kernel_module="", call_file="k.py", call_line=9, grid=(1, 1, 1),
        arguments=arguments, variant=variant,
    )  # fmt: skip


def test_a_name_inside_the_name_of_a_tuned_constant_is_not_tuned() -> None:
    facts = KernelFacts(name="k", file="k.py", line=3, end_line=5, parameters=(Parameter(name="M", constexpr=True, uses=1),))

    def found(variant: str) -> list[str]:
        trace = Trace(case="c", launches=(launch(0, 64, variant), launch(1, 96, variant)))
        return [h.key for h in RecompilePerShape().suspect(View(source=SourceFacts(path="k.py", kernels=(facts,)), trace=trace))]

    assert found("BLOCK_M: 64, num_warps: 4") == ["k:M"]
    assert found("M: 64, num_warps: 4") == []
