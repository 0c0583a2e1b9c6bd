"""The web page when something is amiss: a service that is busy, closed or strange, and text that is markup."""

import json
from pathlib import Path

import pytest

from browser import Browser
from golden.make import MODEL
from malmoi.explain import explain
from malmoi.report.explanation import explanation_page
from page_acts import MARKUP, OUTPUT, TEXT, WHOLE, rest, translate, write
from page_service import KEY, LIMIT, Service, run_rows

AXE = Path(__file__).parents[1] / "npm" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_asks_for_patience_is_asked_again(page: Browser, service: Service, status: int) -> None:
    service.faults = [(status, {"Retry-After": "1"})]
    write(page, TEXT)
    page.wait("document.querySelector('.fault') !== null")
    said = {429: "Many are asking", 503: "being restarted"}[status]
    assert said in page.run("document.querySelector('.fault').textContent")
    page.wait(WHOLE)
    assert page.run("document.querySelector('.fault')") is None
    assert len(service.bodies("/api/stream")) == 2


def test_how_long_it_takes_is_said_and_need_not_be_waited_for(page: Browser, service: Service) -> None:
    service.faults = [(429, {"Retry-After": "50"})]
    write(page, TEXT)
    page.wait("/Once more in (49|50) s/.test(document.querySelector('.fault')?.textContent)")
    page.click(".fault button")
    page.wait(WHOLE)
    assert page.run("document.querySelector('.fault')") is None
    assert len(service.bodies("/api/stream")) == 2


def test_faults_are_told_and_tried_again(page: Browser, service: Service) -> None:
    service.faults = [(500, {}), (400, {})]
    write(page, TEXT)
    page.wait("document.querySelector('.fault') !== null")
    assert "a fault of the tests" in page.run("document.querySelector('.fault').textContent")
    page.click(".fault button")
    page.wait("document.querySelector('.fault')?.textContent.startsWith('The service cannot take this')")
    assert page.run("document.querySelector('.fault button')") is None
    page.send("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    write(page, " and")
    page.wait("document.querySelector('.fault')?.textContent.startsWith('The service does not answer')")
    page.send("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    page.wait(f"{OUTPUT} === '두 작은 개가 잡니다 그리고'")
    assert page.run("document.querySelector('.fault')") is None


def test_a_text_that_is_too_long_is_not_sent(page: Browser, service: Service) -> None:
    write(page, "두")
    write(page, "두" * LIMIT)
    page.wait("document.querySelector('#source-count').textContent.includes('1 too many')")
    rest(page, 600)
    assert service.bodies("/api/stream") == []
    assert page.run("document.querySelector('#source').getAttribute('aria-invalid')") == "true"
    assert page.run("document.querySelector('#output').getAttribute('aria-busy')") is None


def test_a_key_is_asked_for(page: Browser, service: Service) -> None:
    service.key_required = True
    page.visit(service.address)
    write(page, TEXT)
    page.wait("document.querySelector('.fault')?.textContent.startsWith('The key is missing')")
    page.run("document.querySelector('#key').focus()")
    page.type(KEY)
    page.press("Enter")
    page.wait("document.querySelector('.key button').textContent === 'In use'")
    assert not page.run(WHOLE)
    write(page, " and")
    page.wait(WHOLE)
    page.visit(service.address)
    translate(page)
    # The key was kept: the page asks for it no more.
    assert page.run("document.querySelector('.fault')") is None


def test_what_the_service_says_of_an_answer_is_shown(page: Browser, service: Service) -> None:
    service.notes, service.finished = ["a <b>note</b>"], False
    translate(page)
    notes = "[...document.querySelectorAll('.notes li')].map((one) => one.textContent)"
    assert page.run(notes)[0] == "a <b>note</b>"
    assert page.run(notes)[1].startswith("The model came to no end")


def test_markup_is_text(page: Browser, service: Service) -> None:
    translate(page, MARKUP)
    assert page.run(OUTPUT) == MARKUP.upper()
    page.click('[data-place="0.0"]')
    page.wait("document.querySelectorAll('[role=option]').length === 3")
    assert page.run("[document.images.length, document.querySelectorAll('#translate b b').length]") == [1, 0]


def test_an_explanation_runs_in_its_frame_and_nowhere_else(page: Browser, service: Service) -> None:
    service.explanation = explanation_page(explain(MODEL, "two small dogs sleep."))
    translate(page)
    page.click("#explain")
    page.wait("document.querySelector('iframe') !== null")
    assert page.run("document.querySelector('iframe').getAttribute('sandbox')") == "allow-scripts"
    assert page.run("document.querySelector('iframe').contentDocument") is None
    (body,) = service.bodies("/api/explain")
    assert body == {"model": "en-ko", "text": TEXT, "language": "en"}
    page.until(lambda: page.frame_says("document.documentElement.dataset.ready") == "yes", "the frame is ready")
    assert page.frame_says("getComputedStyle(document.querySelector('.top')).display") == "flex"
    assert "how" in page.frame_says("document.querySelector('main').innerText").lower()
    page.choose("#language", "ko")
    page.until(lambda: len(service.bodies("/api/explain")) == 2, "asked for anew")
    assert service.bodies("/api/explain")[-1]["language"] == "ko"
    assert "by itself" not in page.run("document.querySelector('.explain').innerText")
    page.choose("#language", "en")
    page.click('[data-place="0.0"]')
    page.wait("document.querySelectorAll('[role=option]').length === 3")
    page.click("#choice-1")
    page.wait("document.querySelector('.explain').innerText.includes('finds by itself')")
    page.click(".explain .plain")
    page.wait("document.querySelector('iframe') === null")


def test_runs_are_drawn_and_followed(page: Browser, service: Service) -> None:
    page.run("location.hash = 'runs'")
    page.wait("document.querySelectorAll('.uplot').length === 2")
    checked = "[...document.querySelectorAll('[name=run]:checked')].map((one) => one.value)"
    assert page.run(checked) == ["second"]
    page.click("[name=run][value=first]")
    page.wait("document.querySelectorAll('.chart:first-child .values li').length === 2")
    label = "document.querySelector('.plot').getAttribute('aria-label')"
    assert page.run(label).startswith("loss · training. second: best 1.371 at step 600, last 1.371. first: best 0.7273")
    differing = "[...document.querySelectorAll('.differs')].map((one) => one.innerText.split(/\\s+/))"
    assert page.run(differing) == [["≠", "differs", "model.width", "256", "128"]]
    page.click("#all-settings")
    page.wait("document.querySelectorAll('.settings-table tbody tr').length === 3")
    assert not page.run("document.querySelector('.run-list').innerText.includes('Not shown')")
    service.left_out = 1234
    page.wait("document.querySelector('.run-list').innerText.includes('Not shown: 1,234 that changed earlier.')")
    service.runs["second"] = (run_rows(1.2, 800), "finished", 256)
    page.wait("document.querySelectorAll('.runs .status.finished').length === 2")
    page.wait(f"{label}.includes('at step 800')")
    service.runs["second"] = (run_rows(1.3, 300), "running", 256)
    page.wait(f"{label}.includes('second: best 2.6 at step 300')")
    before = page.run("document.querySelector('canvas').toDataURL()")
    page.click("[name=axis][value=seconds]")
    page.wait(f"document.querySelector('canvas').toDataURL() !== {json.dumps(before)}")
    page.click("#metrics [value=nll]")
    page.wait("document.querySelectorAll('.uplot').length === 3")
    page.hover(".plot")
    page.wait("document.querySelector('.values b') !== null")


def test_pieces_of_the_page_by_themselves(page: Browser) -> None:
    stream = ': hello\r\nevent: partial\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:x\n\nevent: done\rdata: ü\r\rid: 3\n\n'
    script = f"""(async () => {{
      const {{ eventParser }} = await import('./events.js');
      const stream = {json.dumps(stream)}, found = [];
      for (let size = 1; size < 9; size++) {{
        const push = eventParser(), events = [];
        for (let at = 0; at < stream.length; at += size) events.push(...push(stream.slice(at, at + size)));
        found.push(JSON.stringify(events));
      }}
      return [...new Set(found)];
    }})()"""
    (events,) = page.run(script)
    assert json.loads(events) == [
        {"event": "partial", "data": '{"a":\n1}'},
        {"event": "message", "data": "x"},
        {"event": "done", "data": "ü"},
    ]
    rows = "[{step: 1}, {step: 2, loss: 1}], [{step: 2, loss: 1}, {step: 2, valid_loss: 3}, {step: 3}], 1"
    joined = page.run(f"import('./watch.js').then((m) => m.joinRows({rows}))")
    assert [row["step"] for row in joined] == [1, 2, 2, 3]
    differences = "import('./words.js').then((m) => m.differences('a new dog runs', 'the dog runs'))"
    assert [one["text"] for one in page.run(differences) if one["marked"]] == ["a", "new"]
    percents = "import('./confidence.js').then((m) => [1, 0.9999, 0.5, 0.004, 0.0001].map(m.percent))"
    assert page.run(percents) == ["100 %", "> 99 %", "50 %", "0.4 %", "< 0.1 %"]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("is_dark", [False, True])
def test_nothing_sticks_out_and_everyone_can_read_it(
    page: Browser, service: Service, width: int, is_dark: bool
) -> None:
    page.visit(service.address, width, is_dark=is_dark)
    page.choose("#language", "ko" if is_dark else "en")
    translate(page, f"{TEXT}. The small dogs sleep and sleep and sleep and sleep")
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.run(fits)
    page.wait("document.querySelector('.history') !== null")
    page.click(".history summary")
    page.click('[data-place="1.6"]')
    page.wait("document.querySelectorAll('[role=option]').length === 3")
    assert page.run(fits)
    check_with_axe(page)
    page.run("location.hash = 'runs'")
    page.wait("document.querySelectorAll('.uplot').length === 2")
    page.click("[name=run][value=first]")
    page.wait("document.querySelector('.differs') !== null")
    assert page.run(fits)
    check_with_axe(page)


def check_with_axe(page: Browser) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core is installed (npm ci --prefix tests/npm)")
    page.run(AXE.read_text(encoding="utf-8") + "; undefined")
    found = page.run("axe.run(document).then((done) => done.violations)")
    told = [(one["id"], one["impact"], [node["html"][:200] for node in one["nodes"]]) for one in found]
    assert [one for one in told if one[1] in ("serious", "critical", "moderate")] == []
