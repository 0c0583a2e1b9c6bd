// @ts-check
// The source side: a field that grows with its text, over a copy of the text on which words are marked.

import { html, useRef } from "./html.js";
import { useLanguage } from "./language.js";

/** @typedef {import("./answer.js").Answer} Answer */
/** @typedef {{sentence: number, word: number}} Place */

/**
 * @param {{
 *   text: string, language: string | null, limit: number, length: number, answer: Answer | null, marked: number[],
 *   markedSentence: number | null, examples: string[],
 *   onText: (text: string, isWhole: boolean) => void, onComposing: () => void, onPoint: (offset: number | null) => void,
 *   onClear: () => void,
 * }} props
 */
export function SourcePane(props) {
  const { text, limit, length, onText, onPoint } = props;
  const { t, number } = useLanguage();
  const composing = useRef(false);
  const isOver = length > limit;

  /** @param {any} event */
  function onInput(event) {
    onText(event.currentTarget.value, !composing.current && !event.isComposing);
  }

  /** @param {any} event */
  function onCompositionEnd(event) {
    composing.current = false;
    onText(event.currentTarget.value, true);
  }

  function onCompositionStart() {
    composing.current = true;
    props.onComposing();
  }

  /** @param {any} event */
  function onCaret(event) {
    const { selectionStart, selectionEnd } = event.currentTarget;
    onPoint(selectionStart === selectionEnd ? selectionStart : null);
  }

  /** @param {any} event */
  function onMove(event) {
    const found = document.elementsFromPoint(event.clientX, event.clientY).find((one) => one.matches(".mirror i"));
    onPoint(found instanceof HTMLElement ? Number(found.dataset.start) : null);
  }

  return html`<section class="pane source" aria-label=${t("source")}>
    <div class="grow" onMouseMove=${onMove} onMouseLeave=${() => onPoint(null)}>
      <${Mirror} ...${props} />
      <textarea
        id="source" dir="auto" lang=${props.language ?? undefined} rows="3" spellcheck=${false} autocomplete="off"
        autocapitalize="off" aria-label=${t("source-field")} aria-describedby="source-count"
        aria-invalid=${isOver ? "true" : undefined} placeholder=${t("source-placeholder")} value=${text}
        onInput=${onInput} onCompositionStart=${onCompositionStart} onCompositionEnd=${onCompositionEnd}
        onKeyUp=${onCaret} onClick=${onCaret} onBlur=${() => onPoint(null)}
      ></textarea>
    </div>
    ${text === "" && html`<${Examples} examples=${props.examples} onText=${onText} />`}
    <div class="bar">
      <span id="source-count" class=${isOver ? "count over" : "count"}>
        ${t("count", { count: number(length), limit: number(limit) })}
        ${isOver && html` <b role="alert">${t("over", { count: number(length - limit) })}</b>`}
      </span>
      <button type="button" class="plain" hidden=${text === ""} onClick=${props.onClear}>${t("clear")}</button>
    </div>
  </section>`;
}

/** The text once more, behind the field: it gives the field its height and carries the marks. */
function Mirror({ text, answer, marked, markedSentence }) {
  // Offsets belong to the text that was asked for: while it is being changed nothing is marked.
  const sentences = answer?.sourceText === text ? answer.sentences : [];
  /** @type {unknown[]} */
  const parts = [];
  let end = 0;
  sentences.forEach((sentence, index) => {
    sentence.sourceWords.forEach((word, place) => {
      if (word.start > end) parts.push(text.slice(end, word.start));
      const isOn = index === markedSentence && marked.includes(place);
      parts.push(html`<i class=${isOn ? "on" : ""} data-start=${word.start}>${text.slice(word.start, word.end)}</i>`);
      end = word.end;
    });
  });
  return html`<div class="mirror" dir="auto" aria-hidden="true">${parts}${text.slice(end)}${"\u200b"}</div>`;
}

function Examples({ examples, onText }) {
  const { t } = useLanguage();
  if (!examples.length) return null;
  return html`<div class="examples">
    <p class="soft">${t("examples")}</p>
    ${examples.map(
      (one) => html`<button type="button" class="chip" dir="auto" onClick=${() => onText(one, true)}>${one}</button>`,
    )}
  </div>`;
}
