"""Numbers in Prometheus' text format."""

from malmoi.serving.metrics import Metrics


def test_counts_gauges_and_seconds() -> None:
    metrics = Metrics()
    metrics.add("requests", route="/translate", status="200")
    metrics.add("requests", 2, route="/translate", status="200")
    metrics.set("live_sentences", 3, model='a"b\\')
    for seconds in (0.001, 0.005, 0.3, 1000.0):
        metrics.observe(seconds, route="/x")
    lines = metrics.as_text().split("\n")
    assert 'malmoi_requests_total{route="/translate",status="200"} 3' in lines
    assert 'malmoi_live_sentences{model="a\\"b\\\\"} 3' in lines
    assert 'malmoi_request_seconds_bucket{route="/x",le="0.005"} 2' in lines
    assert 'malmoi_request_seconds_bucket{route="/x",le="0.5"} 3' in lines
    assert 'malmoi_request_seconds_bucket{route="/x",le="+Inf"} 4' in lines
    assert 'malmoi_request_seconds_count{route="/x"} 4' in lines
    assert 'malmoi_request_seconds_sum{route="/x"} 1000.306000' in lines
    assert lines[-1] == "" and "# TYPE malmoi_steps_total counter" in lines
