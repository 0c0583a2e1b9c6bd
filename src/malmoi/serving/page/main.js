// @ts-check
// Starts the page.

import { App } from "./app.js";
import { html, render } from "./html.js";

const root = document.getElementById("app");
if (root) render(html`<${App} />`, root);
