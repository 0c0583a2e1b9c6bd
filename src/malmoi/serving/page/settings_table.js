// @ts-check
// Settings of runs side by side, with what differs marked.

import { flatten } from "./curves.js";
import { html, useState } from "./html.js";
import { useLanguage } from "./language.js";

/**
 * @param {{
 *   lines: {name: string, place: number, config: Record<string, any>}[], swatch: (place: number) => unknown,
 * }} props
 */
export function SettingsTable({ lines, swatch }) {
  const { t } = useLanguage();
  const [isAll, setAll] = useState(false);
  const columns = lines.map((one) => new Map(flatten(one.config ?? {})));
  const names = bySection([...new Set(columns.flatMap((one) => [...one.keys()]))]);
  const rows = names.map((name) => {
    const values = columns.map((one) => one.get(name));
    return { name, values, differs: values.some((one) => one !== values[0]) };
  });
  const shown = rows.filter((row) => isAll || row.differs || lines.length === 1);
  return html`<div class="card settings-table">
    <div class="bar">
      <h2 id="settings-title">${t("settings-title")}</h2>
      ${
        lines.length > 1 &&
        html`<label><input type="checkbox" id="all-settings" checked=${isAll} onChange=${(event) => setAll(event.currentTarget.checked)} /> ${t("settings-all")}</label>`
      }
    </div>
    ${lines.length === 1 && html`<p class="soft">${t("settings-one")}</p>`}
    ${
      shown.length === 0
        ? html`<p>${t("settings-same")}</p>`
        : html`<div class="scroll" tabindex="0" role="region" aria-labelledby="settings-title"><table>
            <thead><tr>
              <th scope="col">${t("setting")}</th>
              ${lines.map((one) => html`<th scope="col">${swatch(one.place)} ${one.name}</th>`)}
            </tr></thead>
            <tbody>${shown.map((row) => html`<${SettingRow} key=${row.name} row=${row} isMarked=${row.differs && lines.length > 1} />`)}</tbody>
          </table></div>`
    }
  </div>`;
}

/** @param {string[]} names @returns {string[]} what belongs to one section stands together */
function bySection(names) {
  const sections = [...new Set(names.map(sectionOf))];
  return sections.flatMap((section) => names.filter((one) => sectionOf(one) === section));
}

/** @param {string} name */
function sectionOf(name) {
  return name.slice(0, Math.max(0, name.lastIndexOf(".")));
}

function SettingRow({ row, isMarked }) {
  const { t } = useLanguage();
  return html`<tr class=${isMarked ? "differs" : ""}>
    <th scope="row">${isMarked && html`<span class="sign" title=${t("differs")}>≠<span class="unseen"> ${t("differs")}</span></span>${" "}`}<code>${row.name.split(/(?<=[._])/).map((part) => html`${part}<wbr />`)}</code></th>
    ${row.values.map((value) => {
      const text = value ?? "–";
      return html`<td><code>${isMarked && value !== row.values[0] ? html`<mark>${text}</mark>` : text}</code></td>`;
    })}
  </tr>`;
}
