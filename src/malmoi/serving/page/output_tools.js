// @ts-check
// What can be done with an output: copied, shaded, taken back, explained; and the legend of the shades.

import { answerText } from "./answer.js";
import { STEPS } from "./confidence.js";
import { html, useEffect, useState } from "./html.js";
import { Icon } from "./icons.js";
import { useLanguage } from "./language.js";

/**
 * @param {{
 *   state: import("./translating.js").State, shaded: boolean, isExplaining: boolean, mayExplain: boolean,
 *   onShaded: (value: boolean) => void, onUndo: () => void, onExplain: () => void,
 * }} props
 */
export function OutputTools({ state, shaded, isExplaining, mayExplain, onShaded, onUndo, onExplain }) {
  const { t } = useLanguage();
  const answer = state.phase === "done" ? state.answer : null;
  return html`
    ${answer && html`<${Notes} answer=${answer} />`}
    <div class="sureness">
      <label><input
        type="checkbox" id="shaded" checked=${shaded} onChange=${(event) => onShaded(event.currentTarget.checked)}
      /> ${t("shade")}</label>
      ${shaded && html`<${Legend} />`}
    </div>
    <div class="bar">
      <span class="soft">${answer && state.earlier.length === 0 && t("legend-click")}</span>
      <span class="tools">
        ${
          state.earlier.length > 0 &&
          html`<button type="button" class="plain" id="undo" onClick=${onUndo}><${Icon} name="undo" /> ${t("undo")}</button>`
        }
        ${
          mayExplain &&
          html`<button
            type="button" class="plain" id="explain" aria-pressed=${isExplaining ? "true" : "false"} disabled=${!answer && !isExplaining}
            onClick=${onExplain}
          ><${Icon} name="explain" /> ${t("explain")}</button>`
        }
        <${Copy} text=${answer ? answerText(answer) : ""} />
      </span>
    </div>
  `;
}

/** What the service says of an answer, and what can be seen in it. */
function Notes({ answer }) {
  const { t } = useLanguage();
  const isCut = answer.sentences.some((/** @type {import("./answer.js").Sentence} */ one) => !one.finished);
  const notes = [...answer.notes, ...(isCut ? [t("unfinished")] : [])];
  return notes.length > 0 && html`<ul class="notes">${notes.map((note) => html`<li>${note}</li>`)}</ul>`;
}

function Legend() {
  const { t } = useLanguage();
  const ranges = STEPS.map(({ name, least }, index) => {
    const most = index === 0 ? 1 : STEPS[index - 1].least;
    return { name, text: index === 0 ? `≥ ${100 * least} %` : index === 3 ? `< ${100 * most} %` : `${100 * least}–${100 * most} %` };
  });
  return html`<span class="legend shaded">${ranges.map(({ name, text }) => html`<span class=${`word ${name}`}>${text}</span>`)}</span>`;
}

function Copy({ text }) {
  const { t } = useLanguage();
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setDone(false), 2000);
    return () => clearTimeout(timer);
  }, [isDone]);
  useEffect(() => setDone(false), [text]);

  return html`<button
      type="button" class="plain" id="copy" disabled=${text === ""} onClick=${async () => setDone(await copyText(text))}
    ><${Icon} name=${isDone ? "done" : "copy"} /> ${isDone ? t("copied") : t("copy")}</button
    ><span class="unseen" role="status">${isDone ? t("copied") : ""}</span>`;
}

/**
 * @param {string} text
 * @returns {Promise<boolean>} whether it lies on the clipboard
 */
async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Refused: the way below may still be open.
    }
  }
  // A page that came over plain HTTP from another machine has no clipboard of its own.
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  return isDone;
}
