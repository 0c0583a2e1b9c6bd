// @ts-check
// What was translated before: taken up again, deleted one by one or all at once.

import { drop, dropAll } from "./history.js";
import { html, useState } from "./html.js";
import { Icon } from "./icons.js";
import { useLanguage } from "./language.js";

/** @typedef {import("./history.js").Entry} Entry */

/**
 * @param {{
 *   history: Entry[], setHistory: (entries: Entry[]) => void, models: import("./service.js").Model[],
 *   onRecall: (entry: Entry) => void,
 * }} props
 */
export function HistoryPanel({ history, setHistory, models, onRecall }) {
  const { t, number } = useLanguage();
  const [isAsking, setAsking] = useState(false);
  if (!history.length) return null;
  return html`<details class="card history">
    <summary><h2><${Icon} name="history" /> ${t("history")} <span class="soft">${number(history.length)}</span></h2></summary>
    <p class="soft">${t("history-text")}</p>
    <ul>
      ${history.map(
        (entry) => html`<li key=${entry.id}>
          <${Row} entry=${entry} isServed=${models.some((one) => one.name === entry.model)} onRecall=${onRecall}
            onDrop=${() => setHistory(drop(history, entry.id))} />
        </li>`,
      )}
    </ul>
    ${
      isAsking
        ? html`<p>
            ${t("history-sure")}${" "}
            <button type="button" class="plain" id="history-clear-yes" onClick=${() => setHistory(dropAll())}>${t("delete-all")}</button>
            <button type="button" class="plain" onClick=${() => setAsking(false)}>${t("keep")}</button>
          </p>`
        : html`<p><button type="button" class="plain" id="history-clear" onClick=${() => setAsking(true)}>${t("delete-all")}</button></p>`
    }
  </details>`;
}

function Row({ entry, isServed, onRecall, onDrop }) {
  const { t, age } = useLanguage();
  return html`<button type="button" class="entry" disabled=${!isServed} onClick=${() => onRecall(entry)}>
      <span dir="auto">${entry.text}</span>
      <span dir="auto" class="target">${entry.target}</span>
      <span class="soft">${entry.model} · ${age(entry.at)}</span>
    </button>
    <button type="button" class="plain square" aria-label=${t("delete-one", { text: entry.text.slice(0, 40) })} onClick=${onDrop}><${Icon} name="trash" /></button>`;
}
