"""The web page in a real browser, over a stand-in for the service: typed into, moved through by keys, and let down."""

from browser import Browser
from page_acts import OUTPUT, TEXT, WHOLE, focused, rest, translate, write
from page_service import LIMIT, Service


def test_a_translation_shows_as_it_is_made(page: Browser, service: Service) -> None:
    service.gate.clear()
    write(page, TEXT)
    page.wait(f"{OUTPUT} === '두'")
    assert page.run("document.querySelector('#output').getAttribute('aria-busy')") == "true"
    service.gate.set()
    page.wait(WHOLE)
    assert page.run(OUTPUT) == "두 작은 개가 잡니다"
    assert page.run("document.querySelector('#output').lang") == "ko"
    page.wait(
        "[...document.querySelectorAll('[role=status]')].some((one) => one.textContent === '두 작은 개가 잡니다')"
    )
    assert page.run("document.querySelector('#source-count').textContent.trim()") == f"20 of {LIMIT} characters"


def test_what_is_no_longer_wanted_is_dropped(page: Browser, service: Service) -> None:
    service.gate.clear()
    service.held = "two small"
    write(page, "two small")
    page.wait(f"{OUTPUT} === '두'")
    write(page, " dogs")
    page.wait(f"{OUTPUT} === '두 작은 개가'")
    service.gate.set()
    rest(page, 400)
    assert page.run(OUTPUT) == "두 작은 개가"
    assert [body["text"] for body in service.bodies("/api/stream")] == ["two small", "two small dogs"]
    page.click(".source .plain")
    page.wait(f"{OUTPUT} === 'The translation comes as you type'")


def test_another_word_is_chosen_and_the_rest_follows(page: Browser, service: Service) -> None:
    translate(page, f"{TEXT}. The small dogs sleep")
    page.click('[data-place="1.1"]')
    page.wait("document.querySelectorAll('[role=option]').length === 3")
    (body,) = service.bodies("/api/next")
    assert (body["text"], body["prefix"]) == ("The small dogs sleep", "그")
    assert page.run("document.querySelector('[aria-selected=true]').textContent").startswith("✓작은")
    assert page.run("[...document.querySelectorAll('.share')].map((one) => one.textContent)") == [
        "50 %",
        "30 %",
        "0.1 %",
    ]
    page.click("#choice-1")
    page.wait("document.querySelector('[data-place=\"1.1\"]')?.textContent === '다른'")
    assert page.run(OUTPUT) == "두 작은 개가 SLEEP. 그 다른 개가 잡니다"
    assert service.bodies("/api/stream")[-1]["prefix"] == "그 다른"
    page.click("#undo")
    page.wait(f"{OUTPUT} === '두 작은 개가 SLEEP. 그 작은 개가 잡니다'")
    assert page.run("document.querySelector('#undo')") is None


def test_everything_can_be_done_by_keys(page: Browser, service: Service) -> None:
    page.run("document.body.focus()")
    order: list[str] = []
    while not order or order[-1] != "source":
        page.press("Tab")
        order.append(page.run("document.activeElement.id || document.activeElement.textContent.trim()"))
        assert len(order) < 12
    assert order[:4] == ["Translate", "Runs", "language", "theme"]
    page.type(TEXT)
    page.wait(WHOLE)
    while not page.run("document.activeElement.matches('#output .word')"):
        page.press("Tab")
    assert focused(page) == "두"
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert focused(page) == "개가"
    assert page.run("document.activeElement.getAttribute('aria-label')") == "개가, 42 %"
    assert page.run("document.querySelector('.mirror .on').textContent") == "dogs"
    page.press("Enter")
    page.wait("document.querySelectorAll('[role=option]').length === 3")
    page.press("Escape")
    page.wait("document.querySelector('[role=listbox]') === null")
    assert focused(page) == "개가"
    page.press("Space")
    page.wait("document.querySelectorAll('[role=option]').length === 3")
    page.press("ArrowDown")
    active = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).innerText"
    assert page.run(active).split() == ["다른", "30", "%"]
    page.press("Enter")
    page.wait("document.activeElement.textContent === '다른'")
    assert page.run(OUTPUT) == "두 작은 다른 잡니다"
    page.press("End")
    assert focused(page) == "잡니다"
    page.press("Tab")
    assert page.run("document.activeElement.id") == "shaded"
    page.press("Space")
    page.wait("!document.querySelector('#output').classList.contains('shaded')")


def test_words_that_belong_together_are_marked_on_both_sides(page: Browser, service: Service) -> None:
    translate(page)
    page.hover('[data-place="0.1"]')
    page.wait("document.querySelector('.mirror .on')?.textContent === 'small'")
    assert page.run("document.querySelector('#output .on').textContent") == "작은"
    shown = "getComputedStyle(document.querySelector('[data-place=\"0.1\"]'), '::after').content"
    assert page.run(shown) == '"71 %"'
    page.hover('.mirror [data-start="10"]')
    page.wait("document.querySelector('#output .on')?.textContent === '개가'")
    steps = "[...document.querySelectorAll('#output .word')].map((one) => one.className.split(' ')[1])"
    assert page.run(steps) == ["sure", "fair", "unsure", "guess"]


def test_only_words_of_their_own_are_offered(page: Browser, service: Service) -> None:
    service.choices = [("작은", "두 작은"), ("작은", "두  작은"), ("은", "두은"), ("큰", "두 큰")]
    translate(page)
    page.click('[data-place="0.1"]')
    page.wait("document.querySelectorAll('[role=option]').length > 0")
    offered = "[...document.querySelectorAll('[role=option] .text')].map((one) => one.textContent)"
    assert page.run(offered) == ["작은", "큰"]


def test_an_example_is_tried_and_its_translation_copied(page: Browser, service: Service) -> None:
    page.click(".examples .chip")
    page.wait(WHOLE)
    assert page.run("document.querySelector('#source').value") == "two small dogs"
    page.click("#copy")
    page.wait("document.querySelector('#copy').textContent.trim() === 'Copied'")
    page.run("document.querySelector('#source').select()")
    page.send("Input.dispatchKeyEvent", type="keyDown", key="v", commands=["paste"])
    page.wait("document.querySelector('#source').value === '두 작은 개가'")


def test_a_whole_other_translation_is_chosen(page: Browser, service: Service) -> None:
    translate(page)
    assert page.run("document.querySelector('.alternatives mark').textContent") == "요"
    assert page.run("document.querySelector('.alternatives .score').textContent") == "Score -0.75"
    page.click(".alternatives li button")
    page.wait(f"{OUTPUT} === '두 작은 개가 잡니다 요'")


def test_history_stays_in_this_browser_until_it_is_deleted(page: Browser, service: Service) -> None:
    entries = "document.querySelectorAll('.history .entry').length"
    translate(page, "two")
    page.wait(f"{entries} === 1")
    translate(page, " small")
    page.wait("document.querySelector('.entry')?.textContent.startsWith('two small')")
    assert page.run(entries) == 1
    page.click(".source .plain")
    translate(page, "the dogs")
    page.wait(f"{entries} === 2")
    page.visit(service.address)
    assert page.run(entries) == 2
    page.click(".history summary")
    page.click(".history li:nth-child(2) .entry")
    page.wait(f"{OUTPUT} === '두 작은'")
    assert page.run("document.querySelector('#source').value") == "two small"
    page.click(".history li:nth-child(2) .square")
    page.wait(f"{entries} === 1")
    page.click("#history-clear")
    page.wait("document.querySelector('#history-clear-yes') !== null")
    page.click("#history-clear-yes")
    page.wait("document.querySelector('.history') === null")
    page.visit(service.address)
    assert page.run(entries) == 0


def test_language_and_light_are_switched_and_remembered(page: Browser, service: Service) -> None:
    ground = "getComputedStyle(document.querySelector('.desk')).backgroundColor"
    assert page.run(ground) == "rgb(255, 255, 255)"
    page.click("#theme")
    page.wait(f"{ground} === 'rgb(13, 17, 23)'")
    page.choose("#language", "ko")
    page.wait("document.documentElement.lang === 'ko'")
    translate(page)
    page.visit(service.address)
    assert page.run(ground) == "rgb(13, 17, 23)"
    assert page.run("document.title") == "malmoi · 번역"
    said = page.run("document.body.innerText")
    assert not [
        word
        for word in ("English", "Translate", "Model", "characters", "Copy")
        if word in said.replace("English\n", "")
    ]
    page.visit(service.address, is_dark=True)
    page.click("#theme")
    page.wait(f"{ground} === 'rgb(255, 255, 255)'")
    page.run("localStorage.clear()")
    page.visit(service.address, is_dark=True)
    assert page.run(ground) == "rgb(13, 17, 23)"


def test_a_character_that_is_being_put_together_is_not_translated(page: Browser, service: Service) -> None:
    page.run("document.querySelector('#source').focus()")
    page.choose("#model", "ko-en")
    page.type("a")
    for part in ("ㄱ", "개", "갯"):
        page.send("Input.imeSetComposition", text=part, selectionStart=1, selectionEnd=1)
    rest(page, 900)
    assert service.bodies("/api/stream") == []
    assert page.run("document.querySelector('#source').value") == "a갯"
    page.type("갯")
    page.wait(WHOLE)
    assert [body["text"] for body in service.bodies("/api/stream")] == ["a갯"]


def test_text_from_right_to_left(page: Browser, service: Service) -> None:
    page.choose("#model", "en-ar")
    translate(page)
    direction = "getComputedStyle(document.querySelector('{}')).direction"
    assert page.run(direction.format("#output")) == "rtl"
    assert page.run(direction.format("#source")) == "ltr"
    page.run("document.querySelector('[data-place=\"0.0\"]').focus()")
    page.press("ArrowLeft")
    assert focused(page) == "صغيران"
    page.press("ArrowRight")
    assert focused(page) == "كلبان"


def test_another_direction_and_another_model(page: Browser, service: Service) -> None:
    translate(page)
    page.click(".model-bar .round")
    page.wait("document.querySelector('#model').value === 'ko-en'")
    page.until(lambda: service.bodies("/api/stream")[-1]["text"] == "두 작은 개가 잡니다", "the output as source")
    assert service.bodies("/api/stream")[-1]["model"] == "ko-en"
    page.choose("#model", "en-ar")
    page.wait("document.querySelector('.model-bar .round').disabled")
    page.wait(WHOLE)
    page.visit(service.address)
    assert page.run("document.querySelector('#model').value") == "en-ar"
