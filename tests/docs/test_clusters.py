from __future__ import annotations

import re
import sys
import tomllib
from types import ModuleType

import pytest

from spark_backfill.options import parse_options
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "spark-clusters.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def version(text: str) -> tuple[int, ...]:
    """The numbers of a version."""
    return tuple(map(int, text.split(".")))


def test_the_image_has_a_python_that_the_package_takes() -> None:
    """The Dockerfile makes its own environment, with extras that exist; the job is where that environment has it."""
    [image] = re.findall(r"^```dockerfile\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    [made] = re.findall(r"uv venv --python (\S+) (\S+)", image)
    assert version(made[0]) >= version(PROJECT["requires-python"].removeprefix(">="))
    assert f"Programming Language :: Python :: {made[0]}" in PROJECT["classifiers"]
    [extras] = re.findall(r"uv pip install --python \S+ 'dedup-sdk\[([\w,]+)\]'", image)
    assert {"cluster", *extras.split(",")} <= set(PROJECT["optional-dependencies"])
    assert f"PYSPARK_PYTHON={made[1]}/bin/python3\n" in image
    assert f"local://{made[1]}/lib/python{made[0]}/site-packages/spark_backfill/job.py" in PAGE
    assert (ROOT / "spark_backfill" / "job.py").exists()


@pytest.mark.parametrize("status", [0, 1])
def test_the_script_for_services_ends_as_the_job_does(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments are those of the job; it ends by itself where the job is done, else with the job's status."""
    [source] = re.findall(r"^```python\n(# backfill/job\.py.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    given: list[str] = []

    def main(arguments: list[str]) -> int:
        given.extend(arguments)
        return status

    job = ModuleType("job")
    vars(job)["main"] = main
    monkeypatch.setitem(sys.modules, "spark_backfill.job", job)
    program = compile(source, "job.py", "exec")
    if status:
        with pytest.raises(SystemExit) as ended:
            exec(program, {})  # noqa: S102 (the page's own text)
        assert ended.value.code == status
    else:
        exec(program, {})  # noqa: S102
    assert parse_options(given, pytest.fail).output == "s3://bucket/snapshot"
