// The way back from one output word: cross-attention to the encoder's places, and the encoder's rollout to the words.

const PATH = { middle: 6, first: 7, row: 34, top: 34 };

function fillPath() {
  const words = data.outputs[state.output].target.words;
  const select = byId("path-word");
  const chosen = Math.min(Number(select.value || 0), words.length - 1);
  select.replaceChildren(...words.map((word, index) => make("option", { value: String(index), selected: index === chosen }, word)));
}

// `row` counts words or tokens, as the reader does; a token picks its word.
function pickPath(row) {
  const spans = data.outputs[state.output].target.spans;
  const word = state.units === "words" ? row : spans.findIndex(([first, behind]) => first <= row && row < behind);
  byId("path-word").value = String(word);
  drawPath();
}

function crossChoice() {
  return state.kind === "cross" && state.layer !== "rollout" ? [state.layer, state.head] : [layerNames("cross", state.output).length > 1 ? "mean" : 0, "mean"];
}

function drawPath() {
  if (!layerNames("cross", state.output).length) return;
  fillPath();
  const word = Number(byId("path-word").value);
  const cross = makeView("cross", state.output, ...crossChoice(), "words");
  const looked = cross.columnLabels.map((label, index) => ({ label, index, weight: cross.values[word * cross.columns + index] }));
  const middle = top(looked, PATH.middle);
  const hasEncoder = layerNames("encoder", state.output).length > 0;
  const columns = [{ title: t("path-output"), nodes: [{ label: cross.rowLabels[word], index: word, weight: 1 }] }, { title: t("path-states"), nodes: middle }];
  if (hasEncoder) columns.push({ title: t("path-words"), nodes: firstWords(middle) });
  byId("path").replaceChildren(pathPicture(columns));
  byId("path").append(make("p", { className: "soft" }, hasEncoder ? t("path-note", { cross: `${layerName(crossChoice()[0])}, ${headName(crossChoice()[1])}` }) : t("path-note-rnn")));
}

function top(nodes, count) {
  return [...nodes].sort((a, b) => b.weight - a.weight).slice(0, count).filter((node) => node.weight >= 0.01).sort((a, b) => a.index - b.index);
}

function firstWords(middle) {
  const flow = makeView("encoder", state.output, "rollout", "mean", "words");
  const all = flow.columnLabels.map((label, index) => {
    const parts = middle.map((node) => node.weight * flow.values[node.index * flow.columns + index]);
    return { label, index, parts, weight: parts.reduce((a, b) => a + b, 0) };
  });
  return top(all, PATH.first);
}

function pathPicture(columns) {
  const width = Math.max(300, Math.min(760, byId("path").clientWidth || 360));
  const height = PATH.top + PATH.row * Math.max(...columns.map((column) => column.nodes.length));
  const box = width / columns.length - 24;
  const x = (column) => (columns.length === 1 ? 0 : (column * (width - box)) / (columns.length - 1));
  const y = (column, index) => PATH.top + PATH.row * index + (height - PATH.top - PATH.row * columns[column].nodes.length) / 2;
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": t("path") });
  columns.slice(1).forEach((column, at) => column.nodes.forEach((node, index) => {
    (node.parts ?? [node.weight]).forEach((weight, from) => svg.append(pathEdge(x(at) + box, y(at, from) + 14, x(at + 1), y(at + 1, index) + 14, weight)));
  }));
  columns.forEach((column, at) => {
    svg.append(makeSvg("text", { x: x(at), y: 16, class: "soft" }, column.title));
    column.nodes.forEach((node, index) => svg.append(pathNode(node, x(at), y(at, index), box, at > 0)));
  });
  return svg;
}

function pathEdge(x1, y1, x2, y2, weight) {
  const middle = (x1 + x2) / 2;
  return makeSvg("path", { class: "edge", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, "stroke-width": 0.5 + 12 * weight, opacity: weight < 0.01 ? 0 : 0.25 + 0.6 * weight });
}

function pathNode(node, x, y, box, hasWeight) {
  const room = Math.floor((box - (hasWeight ? 48 : 16)) / 9);
  const label = node.label.length > room ? `${node.label.slice(0, Math.max(1, room - 1))}…` : node.label;
  const parts = [makeSvg("title", {}, node.label), makeSvg("rect", { x, y, width: box, height: 28, rx: 5 }), makeSvg("text", { x: x + 8, y: y + 19 }, label)];
  if (hasWeight) parts.push(makeSvg("text", { x: x + box - 6, y: y + 19, "text-anchor": "end", class: "soft" }, number(node.weight)));
  return makeSvg("g", { class: "node" }, ...parts);
}
