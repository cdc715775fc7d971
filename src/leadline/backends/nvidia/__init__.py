"""The back-end for GPUs that upstream Triton compiles for: NVIDIA ahead of time to SASS, AMD to assembly text."""

from leadline.execution.target import KNOWN_TARGETS


class NvidiaBackend:
    """Ahead-of-time compiling, pass stepping and probing with the installed triton; needs no device."""

    name = "nvidia"
    targets = tuple(target for target in KNOWN_TARGETS if target.startswith(("cuda:", "hip:")))
    functions = {
        "compile": "leadline.backends.nvidia.compile:compile_launch",
        "explain": "leadline.backends.nvidia.passes:explain",
        "probe": "leadline.backends.nvidia.probe:run_probe",
    }
