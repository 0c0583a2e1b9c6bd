// @ts-check
// All runs, and which of them are drawn.

import { plainName, Swatch } from "./chart.js";
import { MOST_RUNS } from "./curves.js";
import { html } from "./html.js";
import { useLanguage } from "./language.js";

/** @typedef {import("./watch.js").Run} Run */

const SIGNS = { running: "●", finished: "✓", stopped: "■" };

/**
 * @param {{
 *   runs: Run[], leftOut: number, chosen: (string | null)[], isDark: boolean,
 *   onChoose: (chosen: (string | null)[]) => void,
 * }} props
 */
export function RunTable({ runs, leftOut, chosen, isDark, onChoose }) {
  const { t, number } = useLanguage();
  const isFull = chosen.filter((one) => one !== null).length >= MOST_RUNS;

  /** @param {string} name */
  function onToggle(name) {
    if (chosen.includes(name)) return onChoose(chosen.map((one) => (one === name ? null : one)));
    const free = chosen.indexOf(null);
    onChoose(free < 0 ? [...chosen, name] : chosen.map((one, place) => (place === free ? name : one)));
  }

  return html`<div class="scroll card run-list" tabindex="0" role="region" aria-labelledby="runs-title">
    <table class="runs">
      <caption id="runs-title">${t("runs-title")} <span class="soft">${t("runs-text", { most: MOST_RUNS })}</span></caption>
      <thead>
        <tr>${["run", "best", "status", "step", "parameters", "updated"].map((one) => html`<th scope="col">${t(`run-${one}`)}</th>`)}</tr>
      </thead>
      <tbody>
        ${runs.map(
          (run) => html`<${RunRow} key=${run.name} run=${run} place=${chosen.indexOf(run.name)} isFull=${isFull} isDark=${isDark} onToggle=${onToggle} />`,
        )}
      </tbody>
    </table>
    ${leftOut > 0 && html`<p class="soft">${t("runs-left-out", { count: number(leftOut) })}</p>`}
  </div>`;
}

function RunRow({ run, place, isFull, isDark, onToggle }) {
  const { t, number, measure, short, age } = useLanguage();
  const isChosen = place >= 0;
  const updated = typeof run.updated === "number" ? 1000 * run.updated : Date.parse(run.updated);
  const best = Object.entries(run.best ?? {}).map(([name, value]) => `${plainName(name.replace(/^valid_/, ""), t)} ${measure(value)}`);
  return html`<tr class=${isChosen ? "chosen" : ""}>
    <th scope="row"><label><input
      type="checkbox" name="run" value=${run.name} checked=${isChosen} disabled=${!isChosen && isFull} onChange=${() => onToggle(run.name)}
    /> ${run.name} ${isChosen && html`<${Swatch} place=${place} isDark=${isDark} />`}</label></th>
    <td>${best.join(" · ")}</td>
    <td class=${`status ${run.status}`}><span aria-hidden="true">${SIGNS[run.status] ?? "·"}</span> ${t(`status-${run.status}`)}</td>
    <td class="number">${number(run.step ?? 0)}</td>
    <td class="number">${run.parameters ? short(run.parameters) : ""}</td>
    <td>${Number.isFinite(updated) ? age(updated) : ""}</td>
  </tr>`;
}
