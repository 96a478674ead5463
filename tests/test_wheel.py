"""The package as a stranger gets it: built, installed where nothing is, used."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    def run(*command: object) -> str:
        return subprocess.run(list(map(str, command)), cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src" / "vitral").rglob("*.py")}
    assert modules | {"vitral/py.typed", "vitral/weights/timm_architectures.json"} <= inside
    assert not [name for name in inside if name.startswith("tests")]
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/src/vitral/model/vit.py") for name in archive.getnames())

    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    assert "Commands" in run(tmp_path / "env" / "bin" / "vitral", "--help")
    told = run(tmp_path / "env" / "bin" / "vitral", "train", "digits", "train.epochs=1", "--out", "run")
    assert "test accuracy" in told
    assert (tmp_path / "run" / "attention.png").is_file()
