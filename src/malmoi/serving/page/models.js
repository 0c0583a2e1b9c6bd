// @ts-check
// Which model translates: pairs of languages, and the way back.

import { html } from "./html.js";
import { Icon } from "./icons.js";
import { useLanguage } from "./language.js";

/** @typedef {import("./service.js").Model} Model */

/** @param {Model[]} models @param {Model} model @returns {Model | undefined} one that translates the other way */
export function opposite(models, model) {
  return models.find((one) => one.source && one.source === model.target && one.target === model.source);
}

/** @param {{models: Model[], model: Model, onModel: (model: Model) => void, onSwap: () => void}} props */
export function ModelBar({ models, model, onModel, onSwap }) {
  const { t, nameOf, short } = useLanguage();
  const other = opposite(models, model);

  // A model that does not say its languages goes by its own name.
  const isNamed = Boolean(model.source && model.target);
  /** @param {Model} one */
  const pairOf = (one) =>
    one.source && one.target ? `${nameOf(one.source, one.source_name)} → ${nameOf(one.target, one.target_name)}` : one.name;
  /** @param {Model} one */
  const labelOf = (one) =>
    models.some((rival) => rival !== one && pairOf(rival) === pairOf(one)) ? `${pairOf(one)} · ${one.name}` : pairOf(one);

  return html`<div class="model-bar">
    <b class="side from">${isNamed ? nameOf(model.source, model.source_name) : t("source")}</b>
    <button
      type="button" class="round" disabled=${!other} onClick=${onSwap} aria-label=${t("swap")}
      title=${other ? t("swap") : t("no-swap")}
    ><${Icon} name="swap" /></button>
    <b class="side to">${isNamed ? nameOf(model.target, model.target_name) : t("output")}</b>
    <span class="which">
      ${
        models.length > 1
          ? html`<label><span class="soft">${t("model")}</span>${" "}
              <select id="model" value=${model.name} onChange=${(event) => onModel(models.find((one) => one.name === event.currentTarget.value) ?? model)}>
                ${models.map((one) => html`<option value=${one.name} selected=${one.name === model.name}>${labelOf(one)}</option>`)}
              </select></label>`
          : html`<span class="soft">${t("model")} ${model.name}</span>`
      }
      ${" "}<span class="soft">${t("facts", { architecture: t(`architecture-${model.architecture}`), parameters: short(model.parameters) })}</span>
    </span>
  </div>`;
}
