// The page as a whole: texts in the chosen language, and everything drawn anew when language, output or light change.

const texts = data.texts;

function t(key, values = {}) {
  return texts[key][state.language].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

function drawTexts() {
  document.documentElement.lang = state.language;
  for (const element of document.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  byId("language").value = state.language;
  byId("source-text").textContent = data.text;
  byId("output-text").textContent = data.outputs[state.output].text;
  byId("facts").textContent = t("facts", { model: data.description, parameters: whole(data.numParameters) });
  byId("notes").replaceChildren(...data.notes.map((note) => make("li", {}, note)));
  byId("which-output").hidden = data.outputs.length < 2;
  fillSelect(byId("output"), data.outputs.map((_, index) => index), state.output, (index) => `${index + 1}. ${data.outputs[index].text} (${number(data.outputs[index].score, 3)})`);
  byId("method-text").textContent = t(data.precision === "int8" ? "method-text-int8" : "method-text", { difference: data.outputs[state.output].difference.toExponential(1) });
}

function drawAll() {
  drawTexts();
  drawAttention();
  drawPath();
  drawScores();
  drawLeaving();
  drawWithout();
  drawPositions();
  drawOrder();
  drawShapes();
}

function wire() {
  byId("language").addEventListener("change", (event) => { state.language = event.target.value; drawAll(); });
  byId("output").addEventListener("change", (event) => { Object.assign(state, { output: Number(event.target.value), pinned: null }); drawAll(); });
  byId("layer").addEventListener("change", (event) => choose({ layer: readChoice(event.target.value) }));
  byId("head").addEventListener("change", (event) => choose({ head: readChoice(event.target.value) }));
  byId("path-word").addEventListener("change", drawPath);
  for (const radio of document.querySelectorAll("[name=units]")) radio.addEventListener("change", () => choose({ units: radio.value }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    drawPath();
    if (view) show(state.pinned);
  });
}

async function start() {
  await unpackBytes();
  document.querySelector("main").hidden = false;
  const kinds = kindsHere();
  state.kind = kinds.includes("cross") ? "cross" : kinds[0] ?? "cross";
  if (kinds.length) {
    state.layer = layerChoices().filter((one) => typeof one === "number").at(-1);
    const middle = Math.floor(data.outputs[0].target.words.length / 2);
    state.pinned = { row: middle };
  }
  wire();
  drawAll();
  if (kinds.length) pickPath(state.pinned.row);
  document.documentElement.dataset.ready = "yes";
}

start();
