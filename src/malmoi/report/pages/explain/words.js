// What was said and how surely; what becomes of it when a source word is left out.

function drawScores() {
  const said = data.outputs[state.output];
  byId("score-text").textContent = t("score-text", { score: number(said.score, 4), difference: said.difference.toExponential(1), count: said.target.tokens.length });
  const head = make("tr", {}, ...["token", "probability", "runners-up"].map((key) => make("th", { scope: "col" }, t(key))));
  const rows = said.target.tokens.map((token, index) => {
    const probability = said.probabilities[index];
    const others = said.runnersUp[index].map(([label, value]) => make("span", { className: "chip" }, make("b", {}, label), ` ${percent(value)}`));
    return make("tr", {}, make("th", { scope: "row", className: "token" }, token), make("td", {}, bar(probability), percent(probability)), make("td", {}, ...others));
  });
  byId("scores").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function percent(value) {
  return `${number(100 * value, value >= 0.1 ? 0 : value >= 0.001 ? 1 : 2)} %`;
}

function bar(share, kind = "") {
  return make("span", { className: `bar-room ${kind}`, "aria-hidden": "true" }, make("span", { style: `width:${Math.round(100 * Math.min(1, share))}%` }));
}

// Drops of log-probability, a row for each output word (the sum over its tokens) and a column for each word left out.
function dropView() {
  const target = data.outputs[state.output].target;
  const stored = readArray(`outputs.${state.output}.drops`);
  const turned = { values: new Float32Array(stored.values.length), rows: stored.columns, columns: stored.rows };
  for (let unit = 0; unit < stored.rows; unit++) for (let token = 0; token < stored.columns; token++) turned.values[token * stored.rows + unit] = stored.values[unit * stored.columns + token];
  const spans = spansOf(target, state.units);
  return { ...mergeWords(turned, spans, singleSpans(stored.rows), true), rowLabels: labelsOf(target, state.units), columnLabels: data.unitNames };
}

function crossView() {
  const target = data.outputs[state.output].target;
  const merged = mergeWords(tokenWeights("cross", state.output, ...crossChoice()), spansOf(target, state.units), data.units);
  return { ...merged, rowLabels: labelsOf(target, state.units), columnLabels: data.unitNames };
}

function drawLeaving() {
  const drops = dropView();
  byId("leaving").replaceChildren();
  byId("leaving-readout").textContent = t("leaving-readout-none");
  byId("agreement").textContent = "";
  if (!drops.columns) return;
  const maps = [];
  const tell = (row, column) => {
    maps.forEach((map) => map.mark(row, column));
    const value = drops.values[row * drops.columns + column];
    byId("leaving-readout").textContent = t(value < 0 ? "leaving-gain" : "leaving-loss", { row: drops.rowLabels[row], column: drops.columnLabels[column], value: number(Math.abs(value)), factor: number(Math.exp(-value), 3) });
  };
  const leave = () => maps.forEach((map) => map.mark(null, null));
  const add = (title, name, part) => {
    const map = makeMap(part, { name, tell, leave });
    maps.push(map);
    byId("leaving").append(make("div", {}, make("h3", {}, title), map.box));
  };
  if (layerNames("cross", state.output).length) {
    const looked = crossView();
    const [layer, head] = crossChoice();
    add(t("leaving-attention", { name: `${layerName(layer)}, ${headName(head)}` }), t("kind-cross"), looked);
    sayAgreement(looked, drops);
  }
  add(t("leaving-drops"), t("leaving-drops"), drops);
}

function sayAgreement(looked, drops) {
  const best = (part, row) => {
    const values = part.values.subarray(row * part.columns, (row + 1) * part.columns);
    return values.indexOf(Math.max(...values));
  };
  const rows = [...Array(drops.rows).keys()].filter((row) => drops.rowLabels[row] !== "</s>");
  const count = rows.filter((row) => best(looked, row) === best(drops, row)).length;
  byId("agreement").textContent = t("agreement", { count, all: rows.length });
}

function drawWithout() {
  const usual = data.outputs[0].text;
  byId("without-text").textContent = data.leftOutTexts.length ? t("without-usual", { text: usual }) : t("without-none");
  const words = new Set(usual.split(" "));
  const head = make("tr", {}, make("th", { scope: "col" }, t("without-word")), make("th", { scope: "col" }, t("without-says")));
  const rows = data.leftOutTexts.map((text, index) => {
    const parts = text.split(" ").flatMap((word) => [words.has(word) ? word : make("mark", {}, word), " "]);
    return make("tr", {}, make("th", { scope: "row" }, make("s", {}, data.unitNames[index])), make("td", {}, ...(text === usual ? [make("span", { className: "soft" }, t("without-same"))] : parts)));
  });
  byId("without").replaceChildren(...(rows.length ? [make("thead", {}, head), make("tbody", {}, ...rows)] : []));
}
