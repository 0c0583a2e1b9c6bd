// @ts-check
// One chart: a metric of several runs, drawn by uPlot, with its values said in words beside it.

import { COLORS, curve, DASHES, summary } from "./curves.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { useLanguage } from "./language.js";
import uPlot from "./vendor/uplot.js";

const HEIGHT = 240;

/** @typedef {{name: string, rows: import("./watch.js").Row[], place: number}} Line */

/** @param {{metric: string, axis: string, lines: Line[], isDark: boolean}} props */
export function Chart({ metric, axis, lines, isDark }) {
  const language = useLanguage();
  const { t, measure } = language;
  const room = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const shown = lines.filter((one) => curve(one.rows, metric, axis)[0].length);
  const data = joined(shown, metric, axis);
  const shape = [metric, axis, isDark, language.code, ...shown.map((one) => `${one.place}:${one.name}`)].join();

  useEffect(() => {
    if (!room.current) return undefined;
    const options = makeOptions(room.current, shown, metric, axis, isDark, language, setAt);
    plot.current = new uPlot(options, data, room.current);
    const watcher = new ResizeObserver(() => {
      if (room.current) plot.current?.setSize({ width: room.current.clientWidth, height: HEIGHT });
    });
    watcher.observe(room.current);
    return () => {
      watcher.disconnect();
      plot.current.destroy();
      setAt(null);
    };
  }, [shape]);
  // Whoever looks closer goes on looking there while rows come in.
  useEffect(() => plot.current?.setData(data, !isZoomed(plot.current)), [JSON.stringify(data.map((one) => [one.length, one.at(-1)]))]);

  const place = at === null ? null : data[0][at];
  return html`<figure class="chart">
    <figcaption><b>${nameOf(metric, t)}</b>${place !== null && place !== undefined && html` <span class="soft">${t(`axis-${axis}`)} ${measure(place)}</span>`}</figcaption>
    <div class="plot" ref=${room} role="img" aria-label=${spoken(shown, metric, language)}></div>
    <ul class="values">
      ${shown.map((one, index) => {
        const found = summary(one.rows, metric);
        const value = at === null ? null : nearest(data[index + 1], at);
        return html`<li key=${one.name}>
          <${Swatch} place=${one.place} isDark=${isDark} /> ${one.name}${" "}
          ${value !== null ? html`<b>${measure(value)}</b>` : found && html`<span class="soft">${t("best-last", { best: measure(found.best), last: measure(found.last) })}</span>`}
        </li>`;
      })}
    </ul>
  </figure>`;
}

/**
 * @param {string} metric without the word that says where it was measured
 * @param {(key: string) => string} t
 * @returns {string} its name in the language of the page, or its own where there is none
 */
export function plainName(metric, t) {
  const key = `metric-${metric}`;
  const name = t(key);
  return name === key ? metric.replaceAll("_", " ") : name;
}

/** @param {string} metric @param {(key: string) => string} t @returns {string} */
export function nameOf(metric, t) {
  const isValid = metric.startsWith("valid_");
  return `${plainName(isValid ? metric.slice(6) : metric, t)} · ${t(isValid ? "validation" : "training")}`;
}

/** @param {{place: number, isDark: boolean}} props the line of a run, as in the chart */
export function Swatch({ place, isDark }) {
  return html`<svg class="swatch-line" viewBox="0 0 28 8" aria-hidden="true"
    ><path d="M0 4H28" stroke=${COLORS[isDark ? "dark" : "light"][place]} stroke-width="2.5" stroke-dasharray=${DASHES[place].join(" ")}
  /></svg>`;
}

/** @param {any} plot @returns {boolean} whether less is shown than there is */
function isZoomed({ data: [places], scales: { x } }) {
  return places.length > 1 && (x.min > places[0] || x.max < places[places.length - 1]);
}

/** @param {Line[]} lines @returns {any[]} places of all, and the values of each with gaps where it has none */
function joined(lines, metric, axis) {
  if (!lines.length) return [[]];
  return uPlot.join(lines.map((one) => curve(one.rows, metric, axis)));
}

/** @param {(number | null | undefined)[]} values @param {number} at @returns {number | null} the last value up to there */
function nearest(values, at) {
  for (let place = Math.min(at, values.length - 1); place >= 0; place--) {
    const value = values[place];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

/** @param {Line[]} lines @param {string} metric @returns {string} the chart for those who do not see it */
function spoken(lines, metric, { t, measure }) {
  const parts = lines.map((one) => {
    const found = summary(one.rows, metric);
    return found ? t("chart-run", { name: one.name, best: measure(found.best), step: found.at, last: measure(found.last) }) : one.name;
  });
  return `${nameOf(metric, t)}. ${parts.join(" ")}`;
}

function makeOptions(room, lines, metric, axis, isDark, language, onCursor) {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = [style.getPropertyValue("--soft"), style.getPropertyValue("--line")].map(resolved);
  const common = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
  return {
    width: room.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, sync: { key: "runs" }, focus: { prox: 24 }, drag: { x: true, y: false } },
    scales: { x: { time: false } },
    axes: [
      { ...common, values: (_, ticks) => ticks.map((/** @type {number} */ one) => (axis === "seconds" ? clock(one) : language.short(one))), size: 30 },
      { ...common, size: 52, values: (_, ticks) => ticks.map(language.measure) },
    ],
    series: [
      {},
      ...lines.map((one) => ({
        label: one.name,
        stroke: COLORS[isDark ? "dark" : "light"][one.place],
        dash: DASHES[one.place],
        width: 2,
        spanGaps: true,
        points: { show: curve(one.rows, metric, axis)[0].length < 2 },
      })),
    ],
    hooks: { setCursor: [(/** @type {any} */ plot) => onCursor(plot.cursor.idx ?? null)] },
  };
}

/** @param {number} seconds @returns {string} */
function clock(seconds) {
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}`;
}

/** @param {string} color a colour of the style sheet, which a canvas cannot read where it depends on the light */
function resolved(color) {
  const probe = document.createElement("i");
  probe.style.color = color;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
