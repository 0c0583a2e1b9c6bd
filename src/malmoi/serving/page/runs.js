// @ts-check
// The view of runs: which there are, their curves, and what their settings differ in.

import { Chart, nameOf, Swatch } from "./chart.js";
import { AXES, firstMetrics, metricsOf, MOST_RUNS } from "./curves.js";
import { FaultNote } from "./faults.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { useLanguage } from "./language.js";
import { RunTable } from "./run_table.js";
import { SettingsTable } from "./settings_table.js";
import { keep, recall } from "./storage.js";
import { watchRuns } from "./watch.js";

/** @param {{service: import("./service.js").Service}} props */
export function RunsView({ service }) {
  const { t } = useLanguage();
  const { seen, watch, chosen, setChosen } = useWatch(service);
  const [axis, setAxis] = useState(() => recall("axis", "step"));
  const [wanted, setWanted] = useState(() => recall("metrics", /** @type {string[]} */ ([])));
  const isDark = useDark();
  const lines = chosen.flatMap((name, place) => {
    const record = name === null ? undefined : seen.records.get(name);
    return record ? [{ name, place, rows: record.rows, config: record.config }] : [];
  });
  const metrics = metricsOf(lines);
  const present = wanted.filter((one) => metrics.includes(one));
  const metricsShown = present.length ? present : firstMetrics(metrics);

  /** @param {string} metric */
  function onMetric(metric) {
    const anew = metricsShown.includes(metric) ? metricsShown.filter((one) => one !== metric) : [...metricsShown, metric];
    keep("metrics", anew);
    setWanted(anew);
  }

  /** @param {string} anew */
  function onAxis(anew) {
    keep("axis", anew);
    setAxis(anew);
  }

  return html`<main id="runs" aria-label=${t("runs")}>
    ${seen.fault && html`<${FaultNote} fault=${seen.fault} onRetry=${watch.look} />`}
    ${seen.runs === null && !seen.fault && html`<p class="soft" role="status">${t("coming")}</p>`}
    ${seen.runs?.length === 0 && html`<p class="card">${t("no-runs")}</p>`}
    ${
      seen.runs !== null &&
      seen.runs.length > 0 &&
      html`<${RunTable} runs=${seen.runs} leftOut=${seen.leftOut} chosen=${chosen} isDark=${isDark} onChoose=${setChosen} />`
    }
    ${lines.length > 0 && html`<${Controls} metrics=${metrics} shown=${metricsShown} axis=${axis} onMetric=${onMetric} onAxis=${onAxis} />`}
    <div class="charts">
      ${metricsShown.map((metric) => html`<${Chart} key=${metric} metric=${metric} axis=${axis} lines=${lines} isDark=${isDark} />`)}
    </div>
    ${lines.length > 0 && html`<p class="soft">${t("charts-text")}</p><${SettingsTable} lines=${lines} swatch=${(place) => html`<${Swatch} place=${place} isDark=${isDark} />`} />`}
  </main>`;
}

/** What is watched. A chosen run keeps its place, and so its colour; `null` is a place that is free again. */
function useWatch(service) {
  const [seen, setSeen] = useState(
    /** @type {import("./watch.js").Seen} */ ({ runs: null, leftOut: 0, records: new Map(), fault: null }),
  );
  const [chosen, store] = useState(/** @type {(string | null)[] | null} */ (null));
  const watch = useMemo(() => watchRuns(service, setSeen), [service]);
  useEffect(() => {
    watch.look();
    return watch.stop;
  }, [watch]);

  /** @param {(string | null)[]} anew */
  function setChosen(anew) {
    store(anew);
    watch.choose(anew.flatMap((one) => one ?? []));
  }
  useEffect(() => {
    if (chosen === null && seen.runs?.length) setChosen(firstRuns(seen.runs));
  }, [seen.runs]);
  return { seen, watch, chosen: chosen ?? [], setChosen };
}

/** @param {import("./watch.js").Run[]} runs what is running, or else what was touched last @returns {string[]} */
function firstRuns(runs) {
  const running = runs.filter((one) => one.status === "running");
  return (running.length ? running : runs.slice(0, 1)).map((one) => one.name).slice(0, MOST_RUNS);
}

/** @returns {boolean} whether it is dark here now */
function useDark() {
  const read = () =>
    (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const [isDark, setDark] = useState(read);
  useEffect(() => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const follow = () => setDark(read());
    system.addEventListener("change", follow);
    addEventListener("themechange", follow);
    return () => {
      system.removeEventListener("change", follow);
      removeEventListener("themechange", follow);
    };
  }, []);
  return isDark;
}

function Controls({ metrics, shown, axis, onMetric, onAxis }) {
  const { t } = useLanguage();
  return html`<div class="controls">
    <fieldset id="axis">
      <legend>${t("axis")}</legend>
      ${AXES.map(
        (one) => html`<label><input type="radio" name="axis" value=${one} checked=${axis === one} onChange=${() => onAxis(one)} /> ${t(`axis-${one}`)}</label>`,
      )}
    </fieldset>
    <fieldset id="metrics">
      <legend>${t("metrics")}</legend>
      ${metrics.map(
        (one) => html`<label><input type="checkbox" value=${one} checked=${shown.includes(one)} onChange=${() => onMetric(one)} /> ${nameOf(one, t)}</label>`,
      )}
    </fieldset>
  </div>`;
}
