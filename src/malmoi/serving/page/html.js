// @ts-check
// The three libraries that draw the page, under one roof.

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

/** Markup as a tagged template; whatever stands in it as a value becomes text, never markup. */
export const html = htm.bind(h);

export { createContext, render } from "./vendor/preact.js";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
