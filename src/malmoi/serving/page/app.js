// @ts-check
// The whole page: what stands above every view, and which view is shown.

import { FaultNote } from "./faults.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { Icon } from "./icons.js";
import { firstLanguage, Language, makeLanguage, useLanguage } from "./language.js";
import { RunsView } from "./runs.js";
import { Fault, makeService } from "./service.js";
import { keep, recall } from "./storage.js";
import { TranslateView } from "./translate.js";

export function App() {
  const [code, setCode] = useState(firstLanguage);
  const language = useMemo(() => makeLanguage(code), [code]);
  const [key, setKey] = useState(() => recall("key", ""));
  const service = useMemo(() => makeService(() => key), [key]);
  const { offer, fault, load } = useOffer(service);
  const view = useView();
  useEffect(() => {
    document.documentElement.lang = code;
    document.title = `malmoi · ${language.t(view)}`;
  }, [code, view]);
  useEffect(() => {
    if (offer || fault) document.documentElement.dataset.ready = "yes";
  }, [offer, fault]);

  /** @param {"en" | "ko"} anew */
  function onLanguage(anew) {
    keep("language", anew);
    setCode(anew);
  }

  /** @param {string} anew */
  function onKey(anew) {
    keep("key", anew);
    setKey(anew);
  }

  return html`<${Language.Provider} value=${language}>
    <${Head} view=${view} hasRuns=${offer?.runs ?? false} onLanguage=${onLanguage} />
    ${offer?.key_required && html`<${KeyField} value=${key} onKey=${onKey} />`}
    ${fault && html`<main><${FaultNote} fault=${fault} onRetry=${load} /></main>`}
    ${offer && offer.models.length > 0 && html`<${TranslateView} service=${service} offer=${offer} isShown=${view === "translate"} />`}
    ${offer?.runs && view === "runs" && html`<${RunsView} service=${service} />`}
    <${Foot} />
  </${Language.Provider}>`;
}

/** @param {import("./service.js").Service} service */
function useOffer(service) {
  const [offer, setOffer] = useState(/** @type {import("./service.js").Offer | null} */ (null));
  const [fault, setFault] = useState(/** @type {Fault | null} */ (null));

  function load() {
    setFault(null);
    service.offer().then(setOffer, (error) =>
      setFault(error instanceof Fault ? error : new Fault("broken", String(error))),
    );
  }
  useEffect(load, [service]);
  return { offer, fault, load };
}

/** @returns {"translate" | "runs"} as the address says */
function useView() {
  const read = () => (location.hash === "#runs" ? "runs" : "translate");
  const [view, setView] = useState(/** @type {() => "translate" | "runs"} */ (read));
  useEffect(() => {
    const onChange = () => setView(read());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return view;
}

function Head({ view, hasRuns, onLanguage }) {
  const { t, code } = useLanguage();
  const link = (/** @type {"translate" | "runs"} */ name) =>
    html`<a href=${`#${name}`} aria-current=${view === name ? "page" : undefined}>${t(name)}</a>`;
  return html`<header>
    <h1><img src="icon.svg" alt="" width="28" height="28" /> malmoi <span lang="ko" class="soft">말모이</span></h1>
    <nav aria-label=${t("views")}>${hasRuns && html`${link("translate")}${link("runs")}`}</nav>
    <div class="settings">
      <label><span class="unseen">${t("language")}</span>
        <select id="language" value=${code} onChange=${(event) => onLanguage(event.currentTarget.value)}>
          <option value="en" lang="en" selected=${code === "en"}>English</option>
          <option value="ko" lang="ko" selected=${code === "ko"}>한국어</option>
        </select></label>
      <${Light} />
    </div>
  </header>`;
}

/** Light or dark: as the system says, until it is switched here. */
function Light() {
  const { t } = useLanguage();
  const system = matchMedia("(prefers-color-scheme: dark)");
  const [isDark, setDark] = useState(() => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark");
  useEffect(() => {
    const follow = () => document.documentElement.dataset.theme === undefined && setDark(system.matches);
    system.addEventListener("change", follow);
    return () => system.removeEventListener("change", follow);
  }, []);

  function onSwitch() {
    const theme = isDark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    keep("theme", theme);
    setDark(!isDark);
    dispatchEvent(new Event("themechange"));
  }

  return html`<button
    type="button" class="round" id="theme" role="switch" aria-checked=${isDark ? "true" : "false"} aria-label=${t("dark")}
    title=${t("dark")} onClick=${onSwitch}
  ><${Icon} name=${isDark ? "light" : "dark"} /></button>`;
}

function KeyField({ value, onKey }) {
  const { t } = useLanguage();
  const [draft, setDraft] = useState(value);

  /** @param {Event} event */
  function onSubmit(event) {
    event.preventDefault();
    onKey(draft.trim());
  }

  return html`<form class="key" onSubmit=${onSubmit}>
    <label>${t("key")}${" "}
      <input
        id="key" type="password" autocomplete="off" value=${draft} aria-describedby="key-text"
        onInput=${(event) => setDraft(event.currentTarget.value)}
      /></label>
    <button type="submit" class="plain">${value && draft === value ? t("key-stored") : t("key-store")}</button>
    <span class="soft" id="key-text">${t("key-text")}</span>
  </form>`;
}

function Foot() {
  const { t } = useLanguage();
  return html`<footer class="soft">${t("foot")}</footer>`;
}
