from pathlib import Path

from leadline.diagnose.dependencies import local_texts


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_what_the_kernel_imports_from_beside_it_counts(tmp_path: Path) -> None:
    write(tmp_path, kernel="import math\nfrom shared import scale\n", shared="import deeper\n", deeper="X = 1\n", stranger="Y = 1\n")
    found = local_texts(str(tmp_path / "kernel.py"))
    assert {Path(p).name: text for p, text in found.items()} == {
        "kernel.py": "import math\nfrom shared import scale\n", "shared.py": "import deeper\n", "deeper.py": "X = 1\n",
    }  # fmt: skip
    before = found
    write(tmp_path, deeper="X = 2\n")
    assert local_texts(str(tmp_path / "kernel.py")) != before


def test_another_text_and_the_folder_of_the_case(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    write(home, shared="Z = 3\n")
    write(away, kernel="")
    found = local_texts(str(away / "kernel.py"), "import shared\n", folder=str(home))
    assert found == {str(away / "kernel.py"): "import shared\n", str(home / "shared.py"): "Z = 3\n"}


def test_packages_and_relative_imports(tmp_path: Path) -> None:
    write(tmp_path, pkg__in____init__="", pkg__in__ops__in____init__="A = 1\n")
    write(tmp_path, pkg__in__ops__in__kernel="from ..base import B\nfrom . import near\n")
    write(tmp_path, pkg__in__base="from pkg.ops import A\n", pkg__in__ops__in__near="C = 1\n")
    found = local_texts(str(tmp_path / "pkg" / "ops" / "kernel.py"))
    assert {str(Path(p).relative_to(tmp_path)) for p in found} == {
        "pkg/ops/kernel.py", "pkg/base.py", "pkg/ops/near.py", "pkg/__init__.py", "pkg/ops/__init__.py",
    }  # fmt: skip


def test_installed_packages_and_broken_texts_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "site-packages" / "lib", __init__="", kernel="from lib import other\nimport numpy\n", other="")
    path = str(tmp_path / "site-packages" / "lib" / "kernel.py")
    assert list(local_texts(path)) == [path]
    assert local_texts("gone.py") == {"gone.py": ""}
    assert local_texts("gone.py", "import (") == {"gone.py": "import ("}
