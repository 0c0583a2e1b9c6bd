// @ts-check
// Small pictures beside words; a screen reader passes over them.

import { html } from "./html.js";

const PATHS = {
  swap: "M4 8.5h15l-4-4M20 15.5H5l4 4",
  copy: "M9 9h10v10H9zM5 15V5h10",
  done: "M5 13l4 4L19 7",
  clear: "M6 6l12 12M18 6L6 18",
  undo: "M9 7L5 11l4 4M5 11h9a5 5 0 0 1 0 10h-2",
  history: "M4 12a8 8 0 1 0 3-6.2L4 8M4 4v4h4M12 8v5l3 2",
  explain: "M9.5 18h5M10.5 21h3M12 3a6 6 0 0 0-3.6 10.8c.7.6 1.1 1.3 1.1 2.2h5c0-.9.4-1.6 1.1-2.2A6 6 0 0 0 12 3z",
  light: "M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8M12 3v1M12 20v1M3 12h1M20 12h1M5.6 5.6l.8.8M17.6 17.6l.8.8M18.4 5.6l-.8.8M6.4 17.6l-.8.8",
  dark: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
};

/** @param {{name: keyof typeof PATHS}} props */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}
