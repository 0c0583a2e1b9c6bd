// @ts-check
// A fault told kindly: what happened, and what can be done about it.

import { html, useEffect, useLayoutEffect, useState } from "./html.js";
import { useLanguage } from "./language.js";

/**
 * @param {{fault: import("./service.js").Fault, retryAt?: number | null, onRetry?: () => void}} props
 */
export function FaultNote({ fault, retryAt = null, onRetry }) {
  const { t } = useLanguage();
  const left = useSecondsUntil(retryAt);
  useLayoutEffect(() => {
    if (fault.kind !== "offline" || !onRetry) return undefined;
    addEventListener("online", onRetry);
    return () => removeEventListener("online", onRetry);
  }, [fault, onRetry]);
  const mayRetry = onRetry && fault.kind !== "refused" && fault.kind !== "key";
  return html`<div class="fault" role="alert">
    <p>
      <b>${t(`fault-${fault.kind}`)}</b>
      ${" "}${fault.kind === "refused" || fault.kind === "broken" ? html`<span class="said">${fault.message}</span>` : t(`fault-${fault.kind}-text`)}
    </p>
    ${
      mayRetry &&
      html`<p>
        ${left !== null && html`<span aria-hidden="true">${t("fault-wait", { seconds: left })} </span>`}
        <button type="button" class="plain" onClick=${onRetry}>${t("try-again")}</button>
      </p>`
    }
  </div>`;
}

/** @param {number | null} at @returns {number | null} whole seconds, counted down */
function useSecondsUntil(at) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (at === null) return undefined;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [at]);
  return at === null ? null : Math.max(0, Math.ceil((at - now) / 1000));
}
