// @ts-check
// Runs, watched: the list and the rows of the chosen ones, asked for again and again while somebody looks.

import { Fault } from "./service.js";

const PAUSE = 3000;

/**
 * @typedef {object} Run
 * @property {string} name
 * @property {string} status
 * @property {number} step
 * @property {number | string} updated
 * @property {Record<string, number>} best
 * @property {number | null} parameters
 *
 * @typedef {Record<string, number>} Row
 *
 * @typedef {object} Record_
 * @property {Row[]} rows
 * @property {Record<string, any>} config
 *
 * @typedef {object} Seen
 * @property {Run[] | null} runs
 * @property {number} leftOut runs that changed earlier than those
 * @property {Map<string, Record_>} records of the chosen runs
 * @property {Fault | null} fault
 */

/**
 * Rows known so far with what came since. A row of a validation bears the step of the row before it, so that the last
 * step that is known is always asked for again; and a run that was taken up at an earlier step has lost what was later.
 * @param {Row[]} known
 * @param {Row[]} came
 * @param {number} after
 * @returns {Row[]}
 */
export function joinRows(known, came, after) {
  return [...known.filter((one) => one.step <= after), ...came];
}

/**
 * @param {import("./service.js").Service} service
 * @param {(seen: Seen) => void} onChange
 */
export function watchRuns(service, onChange) {
  /** @type {Seen} */
  let seen = { runs: null, leftOut: 0, records: new Map(), fault: null };
  /** @type {Set<string>} */
  let chosen = new Set();
  let timer = 0;
  let control = new AbortController();

  /** @param {string} name @param {AbortSignal} signal @returns {Promise<[string, Record_]>} */
  async function read(name, signal) {
    const run = seen.runs?.find((one) => one.name === name);
    const known = seen.records.get(name);
    const last = known?.rows.at(-1)?.step ?? 0;
    const isCutBack = run !== undefined && run.step < last;
    const after = known && !isCutBack ? Math.max(0, last - 1) : 0;
    if (known && !isCutBack && run?.status !== "running" && run?.step === last) return [name, known];
    const { rows, config } = await service.run(name, after, signal);
    return [name, { rows: joinRows(after ? (known?.rows ?? []) : [], rows, after), config }];
  }

  async function look() {
    clearTimeout(timer);
    control.abort();
    control = new AbortController();
    const { signal } = control;
    try {
      const { runs, left_out: leftOut } = await service.runs(signal);
      seen = { ...seen, runs, leftOut, fault: null };
      onChange(seen);
      const names = runs.map((/** @type {Run} */ one) => one.name).filter((/** @type {string} */ one) => chosen.has(one));
      const records = new Map(await Promise.all(names.map((/** @type {string} */ one) => read(one, signal))));
      seen = { ...seen, records };
    } catch (error) {
      if (signal.aborted) return;
      seen = { ...seen, fault: error instanceof Fault ? error : new Fault("broken", String(error)) };
    }
    onChange(seen);
    timer = setTimeout(() => (document.hidden ? wait() : look()), PAUSE);
  }

  /** Nobody looks: asked again when somebody does. */
  function wait() {
    document.addEventListener("visibilitychange", look, { once: true });
  }

  return {
    look,
    /** @param {Iterable<string>} names */
    choose(names) {
      chosen = new Set(names);
      look();
    },
    stop() {
      clearTimeout(timer);
      control.abort();
      document.removeEventListener("visibilitychange", look);
    },
  };
}
