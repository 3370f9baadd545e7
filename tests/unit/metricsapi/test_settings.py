"""The command line: what is wrong is said before anything starts."""

from __future__ import annotations

import pytest

from cosyvoice_operator.metricsapi.settings import Settings, parse

NEEDED = ["--namespace=speech", "--service=metrics", "--secret=serving", "--cluster-role=owner"]


def parsed(*more: str) -> Settings:
    return parse([*NEEDED, *more])


def test_the_defaults_serve_a_cluster() -> None:
    settings = parsed()
    assert (settings.port, settings.scrape_interval, settings.max_age) == (10250, 5.0, 12.0)


def test_the_certificate_bears_the_names_of_the_service() -> None:
    assert parsed().dns_names == ["metrics.speech.svc", "metrics.speech.svc.cluster.local"]


def test_it_finds_itself_by_the_name_of_the_service_unless_told_otherwise() -> None:
    assert parsed().own_url == "https://metrics.speech.svc:443"
    assert parsed("--own-address=localhost:7").own_url == "https://localhost:7"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--port=0", "0 is no port"),
        ("--port=70000", "70000 is no port"),
        ("--scrape-interval=0", "0 is not between 0 and 3600 seconds"),
        ("--scrape-timeout=6", "--scrape-timeout 6 is longer than --scrape-interval 5: make it shorter"),
        ("--scrape-concurrency=0", "--scrape-concurrency 0: at least 1"),
        ("--log-level=LOUD", "LOUD"),
        ("--unknown", "unrecognized arguments: --unknown"),
    ],
)
def test_a_wrong_value_is_named(flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(flag)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_place_in_the_cluster_is_named(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([flag for flag in NEEDED if flag != missing])
    assert missing.partition("=")[0] in capsys.readouterr().err
