"""Prometheus and Grafana ask for what the service really exports: every name, every label, from a live server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.compose import BASE, load
from tests.deploy.dockerfile import ROOT
from tests.fixtures.live import serving

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "qkv.json").read_text())
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
SERVICES: dict[str, Any] = load(BASE)["services"]
# What Prometheus adds to every series.
OF_THE_SCRAPE = {"job", "instance"}

TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
QUERIES = [(f"{title} {target['refId']}", target["expr"]) for title, target in TARGETS]
QUERIES += [(rule["alert"], rule["expr"]) for rule in ALERTS]


def parse(query: str) -> Any:
    """The syntax tree. Grafana's own variable for the window of a rate becomes a window."""
    return promql_parser.parse(query.replace("$__rate_interval", "1m"))


def nodes(tree: Any) -> Iterator[Any]:
    """The tree and everything below it."""
    yield tree
    for name in ("lhs", "rhs", "expr", "param", "vector_selector", "args"):
        below = getattr(tree, name, None)
        for node in below if isinstance(below, list) else [below]:
            if node is not None:
                yield from nodes(node)


def selectors(tree: Any) -> list[Any]:
    """Every series that a query reads."""
    return [node for node in nodes(tree) if isinstance(node, promql_parser.VectorSelector)]


def grouped_by(tree: Any) -> set[str]:
    """Every label that an aggregation keeps."""
    modifiers = [node.modifier for node in nodes(tree) if isinstance(node, promql_parser.AggregateExpr)]
    return {label for modifier in modifiers if modifier is not None for label in modifier.labels}


@pytest.fixture(scope="module")
def exported(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every series of a live server that has answered and refused, with the labels that it carries."""
    found: dict[str, set[str]] = {}
    with serving(tmp_path_factory.mktemp("logs") / "log", str(tiny_bundle)) as server:
        server.post("/v1/embeddings", {"input": ["hello world", "a cat"]})
        server.post("/v1/encode", {"input": "hello world", "include": ["attention"]})
        server.post("/v1/encode", {"input": []})
        for family in text_string_to_metric_families(server.get("/metrics").text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(("name", "query"), QUERIES, ids=[name for name, _ in QUERIES])
def test_a_query_names_series_and_labels_that_are_exported(
    exported: dict[str, set[str]], name: str, query: str
) -> None:
    tree = parse(query)
    read = [selector for selector in selectors(tree) if selector.name != "up"]
    assert {selector.name for selector in read} <= set(exported)
    for selector in read:
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= exported[selector.name] | OF_THE_SCRAPE, selector.name
        assert grouped_by(tree) <= exported[selector.name] | OF_THE_SCRAPE, selector.name


def test_the_search_finds_every_series_of_a_query() -> None:
    tree = parse('histogram_quantile(0.9, sum by (le) (rate(a_bucket{x="1"}[$__rate_interval]))) / scalar(max(b)) > 1')
    assert {selector.name for selector in selectors(tree)} == {"a_bucket", "b"}
    assert grouped_by(tree) == {"le"}


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[f"{title} {t['refId']}" for title, t in TARGETS])
def test_a_legend_names_labels_that_the_query_keeps(
    exported: dict[str, set[str]], title: str, target: dict[str, Any]
) -> None:
    tree = parse(target["expr"])
    kept = grouped_by(tree)
    if not any(isinstance(node, promql_parser.AggregateExpr) for node in nodes(tree)):
        kept = exported[selectors(tree)[0].name]
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept


def test_every_metric_of_ours_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    shown = {selector.name for _, target in TARGETS for selector in selectors(parse(target["expr"]))}
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported if name.startswith("qkv_")}
    assert bases == {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown if name.startswith("qkv_")}


def test_the_dashboard_shows_what_an_operator_asks_first() -> None:
    titles = " ".join(title.lower() for title, _ in TARGETS)
    for word in ("ready", "traffic", "latency", "queue", "batch fill", "padding", "tokens", "refusals", "memory"):
        assert word in titles, word
    quantiles = {target["legendFormat"] for title, target in TARGETS if title == "Latency by route"}
    assert quantiles == {"{{route}} p50", "{{route}} p95", "{{route}} p99"}


def test_no_panel_covers_another() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not own & cells, panel["title"]
        cells |= own
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_probes_and_scrapes_do_not_count_as_traffic() -> None:
    for _, query in QUERIES:
        for selector in selectors(parse(query)):
            if selector.name in ("qkv_requests_total", "qkv_request_seconds_bucket"):
                (route,) = [matcher for matcher in selector.matchers.matchers if matcher.name == "route"]
                assert route.op == promql_parser.MatchOp.NotRe
                for path in ("/health/ready", "/metrics"):
                    assert re.fullmatch(route.value, path)
                for path in ("/v1/embeddings", "/rerank"):
                    assert not re.fullmatch(route.value, path)


def test_codes_in_alerts_are_codes_of_ours() -> None:
    listed = (ROOT / "docs" / "operations.md").read_text()
    codes = {
        matcher.value
        for rule in ALERTS
        for selector in selectors(parse(rule["expr"]))
        for matcher in selector.matchers.matchers
        if matcher.name == "code"
    }
    assert codes
    assert [code for code in codes if f"| `{code}` |" not in listed] == []


def test_prometheus_reads_the_service_and_its_rules() -> None:
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["job_name"] == "qkv"
    assert job["static_configs"] == [{"targets": ["qkv:8000"]}]
    assert "qkv" in SERVICES
    for name in PROMETHEUS["rule_files"]:
        assert (DEPLOY / "prometheus" / name).is_file()
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    assert mounts["./deploy/prometheus"] == "/etc/prometheus"
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "qkv.yml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/qkv.json"
