"""How large the page of a long sentence is, and how soon it answers a pointer.

`python benchmarks/explain.py`: a random model with 6 + 6 layers and 8 heads explains 200 words; a browser opens the
page, and the time from pointing at a word until the next picture is on the screen is measured word by word.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import Browser, find_browser
from explain_toys import make_model
from malmoi.config.model import TransformerConfig
from malmoi.explain import explain
from malmoi.report.explanation import explanation_page

NUM_WORDS = 200
POINT = """
new Promise((done) => {
  const words = document.querySelectorAll('#reader .from-row .word');
  const start = performance.now();
  words[%d].dispatchEvent(new PointerEvent('pointerenter', {pointerType: 'mouse'}));
  document.querySelector('#reader').getBoundingClientRect();
  const worked = performance.now() - start;
  requestAnimationFrame(() => setTimeout(() => done([worked, performance.now() - start]), 0));
})
"""


def main() -> None:
    program = find_browser()
    if program is None:
        sys.exit("no Chromium is installed")
    text = " ".join(f"w{number}" for number in range(NUM_WORDS))
    model = make_model(TransformerConfig(width=64, heads=8, feed_forward=64), [text], max_length=NUM_WORDS)
    start = time.perf_counter()
    explanation = explain(model, text)
    explained = time.perf_counter()
    page = explanation_page(explanation).encode()
    written = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Browser(program) as browser:
        path = Path(folder) / "page.html"
        path.write_bytes(page)
        opening = time.perf_counter()
        browser.open(path)
        opened = time.perf_counter()
        times = [browser.run(POINT % word) for word in range(0, NUM_WORDS, 5)]
    worked, shown = [one[0] for one in times], [one[1] for one in times]
    print(
        f"source and output   {len(explanation.source.tokens)} and {len(explanation.outputs[0].target.tokens)} tokens"
    )
    print(f"explained in        {explained - start:.1f} s, page made in {written - explained:.1f} s")
    print(f"page                {len(page) / 1e6:.2f} MB")
    print(f"opened in           {opened - opening:.1f} s")
    print(f"pointer to layout   median {statistics.median(worked):.0f} ms, longest {max(worked):.0f} ms")
    print(f"pointer to picture  median {statistics.median(shown):.0f} ms, longest {max(shown):.0f} ms")


if __name__ == "__main__":
    main()
