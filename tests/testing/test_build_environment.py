"""What a build takes from the machine: pip's configuration and the Debian archive."""

from pathlib import Path

import pytest

from images import engines, pip_settings, programs, targets


def test_pip_reads_certificates_where_the_build_has_them() -> None:
    options = {"cert": "/host/ca.crt", "default-timeout": "180", "find-links": "/host/wheels"}
    assert pip_settings.render(options).splitlines() == [
        "[global]",
        f"cert = {pip_settings.CA_SECRET}",
        "default-timeout = 180",
    ]


def test_secrets_vanish_after_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = tmp_path / "host.crt"
    certificates.write_text("certificates", encoding="utf-8")
    monkeypatch.setattr(pip_settings, "host_options", lambda: {"cert": str(certificates)})
    with pip_settings.secrets(tmp_path) as secrets:
        configuration = secrets["pip.conf"]
        assert configuration.stat().st_mode & 0o077 == 0
        assert secrets["ca.crt"] == certificates
    assert not configuration.exists()
    assert certificates.exists()


def test_dockerfile_takes_the_secrets_that_a_build_gives() -> None:
    text = (targets.ROOT / "Dockerfile").read_text(encoding="utf-8")
    secrets = {"pip.conf": Path("/a"), "ca.crt": Path("/b")}
    flags = engines.Build(targets.OPERATOR, "operator:1").flags(secrets)
    secret_flags = [part for part in flags if part.startswith("id=")]
    assert secret_flags == ["id=pip.conf,src=/a", "id=ca.crt,src=/b"]
    assert f"id=ca.crt,target={pip_settings.CA_SECRET}" in text
    installing = [step for step in text.split("\nRUN ") if "--require-hashes" in step]
    assert len(installing) == 3
    assert all("id=pip.conf,target=/etc/pip.conf" in step for step in installing)


@pytest.mark.usefixtures("processes")
def test_failed_program_is_reported_with_the_end_of_its_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["sh", "-c", "echo first; echo the reason >&2; exit 3"]
    with pytest.raises(programs.ProgramError, match=r"\Athe reason\Z"):
        programs.run(command, log, shown=lambda _: False)
    assert log.read_text(encoding="utf-8") == "first\nthe reason\n"


@pytest.mark.usefixtures("processes")
def test_progress_lines_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sh", "-c", "echo STEP 1; echo noise"]
    programs.run(command, tmp_path / "log", shown=lambda line: "STEP" in line)
    shown = capsys.readouterr().err
    assert "STEP 1" in shown
    assert "noise" not in shown
