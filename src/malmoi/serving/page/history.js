// @ts-check
// What was translated on this browser: kept here and nowhere else.

import { forget, keep, recall } from "./storage.js";

/**
 * @typedef {object} Entry
 * @property {string} id
 * @property {number} at milliseconds of the clock
 * @property {string} model
 * @property {string} text
 * @property {string} target
 */

const MOST_ENTRIES = 50;
const LONGEST_TEXT = 5000;
/** An entry that only goes on with the one before, this soon after it, takes its place. */
const SAME_SITTING = 10 * 60 * 1000;

/** @returns {Entry[]} newest first */
export function readHistory() {
  const found = recall("history", []);
  return Array.isArray(found) ? found.filter((one) => typeof one?.text === "string" && typeof one.target === "string") : [];
}

/** @param {Entry[]} entries @returns {Entry[]} as they could be stored: the oldest are left out where there is no room */
function store(entries) {
  let rest = entries.slice(0, MOST_ENTRIES);
  while (rest.length && !keep("history", rest)) rest = rest.slice(0, -1);
  if (!rest.length) forget("history");
  return rest;
}

/**
 * @param {Entry[]} entries
 * @param {Omit<Entry, "id" | "at">} one
 * @returns {Entry[]}
 */
export function remember(entries, one) {
  if (one.text.length > LONGEST_TEXT) return entries;
  const at = Date.now();
  const others = entries.filter((entry) => entry.model !== one.model || entry.text !== one.text);
  const [last] = others;
  const goesOn =
    last?.model === one.model &&
    at - last.at < SAME_SITTING &&
    (one.text.startsWith(last.text) || last.text.startsWith(one.text));
  return store([{ ...one, id: `${at}-${Math.random().toString(36).slice(2)}`, at }, ...others.slice(goesOn ? 1 : 0)]);
}

/** @param {Entry[]} entries @param {string} id @returns {Entry[]} */
export function drop(entries, id) {
  return store(entries.filter((entry) => entry.id !== id));
}

/** @returns {Entry[]} */
export function dropAll() {
  forget("history");
  return [];
}
