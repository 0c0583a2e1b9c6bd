// @ts-check
// The page in the language of its reader: texts, numbers, times, names of languages.

import { createContext, useContext } from "./html.js";
import { recall } from "./storage.js";
import { texts } from "./texts.js";

/** @typedef {"en" | "ko"} Code */

/** @returns {Code} what was chosen here last, or what the browser asks for */
export function firstLanguage() {
  const chosen = recall("language", null);
  if (chosen === "en" || chosen === "ko") return chosen;
  const wanted = navigator.languages.map((one) => one.slice(0, 2)).find((one) => one === "en" || one === "ko");
  return wanted === "ko" ? "ko" : "en";
}

/** @param {Code} code */
export function makeLanguage(code) {
  const place = code === "ko" ? 1 : 0;
  const names = new Intl.DisplayNames([code], { type: "language", fallback: "none" });
  const ages = new Intl.RelativeTimeFormat(code, { numeric: "auto" });

  return {
    code,
    /** @param {string} key @param {Record<string, string | number>} [values] @returns {string} */
    t: (key, values = {}) => (texts[key]?.[place] ?? key).replace(/\{(\w+)\}/g, (_, name) => String(values[name])),
    /** @param {number} value @param {number} [digits] @returns {string} */
    number: (value, digits = 0) =>
      value.toLocaleString(code, { minimumFractionDigits: digits, maximumFractionDigits: digits }),
    /** @param {number} value @returns {string} with as many digits as are worth reading */
    measure: (value) => value.toLocaleString(code, { maximumSignificantDigits: Math.abs(value) >= 1000 ? 9 : 4 }),
    /** @param {number} value @returns {string} */
    short: (value) => value.toLocaleString(code, { notation: "compact", maximumSignificantDigits: 3 }),
    /** @param {string | null | undefined} tag @param {string | undefined} otherwise @returns {string} */
    nameOf: (tag, otherwise) => {
      try {
        return (tag && names.of(tag)) || otherwise || tag || "?";
      } catch {
        return otherwise || tag || "?";
      }
    },
    /** @param {number} at milliseconds of the clock @returns {string} */
    age: (at) => {
      const seconds = (at - Date.now()) / 1000;
      const size = Math.abs(seconds);
      if (size < 60) return ages.format(Math.round(seconds), "second");
      if (size < 3600) return ages.format(Math.round(seconds / 60), "minute");
      if (size < 86400) return ages.format(Math.round(seconds / 3600), "hour");
      return ages.format(Math.round(seconds / 86400), "day");
    },
  };
}

export const Language = createContext(makeLanguage("en"));

export function useLanguage() {
  return useContext(Language);
}
