// Where the model looks: choosers, the words with lines between them, one large map, and a grid of small ones.

const state = { language: data.language, output: 0, kind: "cross", layer: 0, head: "mean", units: "words", pinned: null };
let view = null;
let largeMap = null;

function kindsHere() {
  return ["encoder", "decoder", "cross"].filter((kind) => layerNames(kind, state.output).length);
}

function hasRollout(kind) {
  return rolloutName(kind, state.output) in data.arrays;
}

function layerChoices() {
  const names = layerNames(state.kind, state.output);
  const numbers = names.map((_, index) => index);
  const all = names.length > 1 ? ["mean"] : [];
  return [...numbers, ...all, ...(hasRollout(state.kind) ? ["rollout"] : [])];
}

function headChoices() {
  const count = numHeads(state.kind, state.output);
  if (count === 1) return ["mean"];
  if (state.layer === "rollout") return ["mean"];
  // Heads of different layers have nothing in common but their number.
  return state.layer === "mean" ? ["mean", "max"] : [...Array(count).keys(), "mean", "max"];
}

function layerName(layer) {
  return typeof layer === "number" ? t("layer-n", { n: layer + 1 }) : t(`layer-${layer}`);
}

function headName(head) {
  if (numHeads(state.kind, state.output) === 1) return t("head-only");
  return typeof head === "number" ? t("head-n", { n: head + 1 }) : t(`head-${head}`);
}

function fillSelect(select, choices, chosen, name) {
  select.replaceChildren(...choices.map((one) => make("option", { value: String(one), selected: one === chosen }, name(one))));
}

function readChoice(text) {
  return /^\d+$/.test(text) ? Number(text) : text;
}

function choose(change) {
  Object.assign(state, change);
  if (!layerChoices().includes(state.layer)) state.layer = layerChoices().at(-1);
  if (!headChoices().includes(state.head)) state.head = "mean";
  if (!("pinned" in change)) state.pinned = null;
  drawAttention();
  drawLeaving();
  drawPath();
}

function drawChoosers() {
  const radios = kindsHere().map((kind) =>
    make("label", {}, make("input", { type: "radio", name: "kind", value: kind, checked: kind === state.kind, onchange: () => choose({ kind }) }), ` ${t(`kind-${kind}`)} `));
  if (!byId("kinds").contains(document.activeElement) || byId("kinds").children.length !== radios.length) byId("kinds").replaceChildren(...radios);
  fillSelect(byId("layer"), layerChoices(), state.layer, layerName);
  fillSelect(byId("head"), headChoices(), state.head, headName);
}

function drawAttention() {
  const isThere = kindsHere().length > 0;
  byId("attention").hidden = !isThere;
  byId("nothing").hidden = isThere;
  byId("path-section").hidden = !isThere;
  if (!isThere) return;
  view = makeView(state.kind, state.output, state.layer, state.head, state.units);
  drawChoosers();
  drawReader();
  largeMap = makeMap(view, { name: t("large"), tell: (row, column) => show({ row, column }), leave: () => show(state.pinned) });
  byId("large").replaceChildren(largeMap.box);
  drawLegend();
  drawGrid();
  show(state.pinned);
}

function drawLegend() {
  const most = number(largest(view.values));
  const masked = state.kind === "decoder" ? [make("span", { className: "swatch masked" }), ` ${t("masked")}`] : [];
  byId("legend").replaceChildren("0 ", make("span", { className: "ramp" }), ` ${most} `, ...masked);
}

// The words of both sides; the one that is looked at stands above.
function drawReader() {
  const block = (labels, role, caption) => {
    const words = labels.map((label, index) => makeWord(label, { [role]: index }));
    const name = make("p", { className: "soft" }, caption);
    // The words of both sides face each other, so that no line crosses a name.
    return make("div", { className: `words from-${role}`, role: "group", "aria-label": caption }, ...(role === "column" ? [name, ...words] : [...words, name]));
  };
  const lines = makeSvg("svg", { class: "lines", "aria-hidden": "true" });
  byId("reader").replaceChildren(
    lines,
    block(view.columnLabels, "column", t(`columns-${state.kind}`)),
    block(view.rowLabels, "row", t(`rows-${state.kind}`)),
  );
}

function makeWord(label, place) {
  const isPinned = () => state.pinned && state.pinned.row === place.row && state.pinned.column === place.column;
  return make("button", {
    type: "button",
    className: "word",
    tabIndex: (place.row ?? place.column) === 0 ? 0 : -1,
    onpointerenter: (event) => { if (event.pointerType !== "touch") show(place); },
    onpointerleave: (event) => { if (event.pointerType !== "touch") show(state.pinned); },
    onfocus: (event) => { if (event.target.matches(":focus-visible")) show(place); },
    onblur: () => show(state.pinned),
    onkeydown: moveAmongWords,
    onclick: () => {
      state.pinned = isPinned() ? null : place;
      show(state.pinned);
      if (place.row !== undefined && state.kind !== "encoder") pickPath(place.row);
    },
  }, make("span", { className: "label" }, label), make("span", { className: "weight" }));
}

// One stop of the tab key for each block; arrows go on from there.
function moveAmongWords(event) {
  const words = [...event.currentTarget.parentNode.querySelectorAll(".word")];
  const here = words.indexOf(event.currentTarget);
  const next = { ArrowLeft: here - 1, ArrowUp: here - 1, ArrowRight: here + 1, ArrowDown: here + 1, Home: 0, End: words.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  if (!words[next]) return;
  words[here].tabIndex = -1;
  words[next].tabIndex = 0;
  words[next].focus();
}

function wordButtons(role) {
  return [...byId("reader").querySelectorAll(`.from-${role} .word`)];
}

// Show one row, one column, or one cell; null shows nothing.
function show(place) {
  const [columns, rows] = [wordButtons("column"), wordButtons("row")];
  const { row = null, column = null } = place ?? {};
  const weight = (i, j) => view.values[i * view.columns + j];
  const most = row !== null && column !== null ? 1 : largest(row !== null ? columns.map((_, j) => weight(row, j)) : column !== null ? rows.map((_, i) => weight(i, column)) : [1]);
  columns.forEach((word, j) => shade(word, row === null ? null : weight(row, j), most, row !== null && view.isMasked(row, j), j === column));
  rows.forEach((word, i) => shade(word, column === null || row !== null ? null : weight(i, column), most, column !== null && view.isMasked(i, column), i === row));
  largeMap.mark(row, column);
  drawLines(row, column, columns, rows, weight);
  byId("readout").textContent = sayPlace(row, column, weight);
}

// Only what changes is written: a long sentence has hundreds of words, and most of them get nothing.
function shade(word, value, most, isMasked, isChosen) {
  const share = value === null || isMasked ? 0 : Math.round(100 * (value / most) ** 0.75);
  const text = value === null ? "" : isMasked ? "–" : value < 0.005 ? "" : number(value);
  const look = [share, isChosen, value !== null && isMasked, text].join();
  if (word.dataset.look === look) return;
  word.dataset.look = look;
  word.classList.toggle("chosen", isChosen);
  word.classList.toggle("hidden-by-mask", value !== null && isMasked);
  word.classList.toggle("deep", share > 64);
  word.style.setProperty("--share", `${share}%`);
  if (word.lastChild.textContent !== text) word.lastChild.textContent = text;
}

function sayPlace(row, column, weight) {
  if (row === null && column === null) return t("readout-none");
  if (row !== null && column !== null) {
    const names = { row: view.rowLabels[row], column: view.columnLabels[column], value: number(weight(row, column), 3) };
    return t(view.isMasked(row, column) ? "readout-masked" : "readout-cell", names);
  }
  const count = row !== null ? view.columns : view.rows;
  const at = (index) => (row !== null ? weight(row, index) : weight(index, column));
  const order = [...Array(count).keys()].sort((a, b) => at(b) - at(a)).slice(0, 3);
  const labels = row !== null ? view.columnLabels : view.rowLabels;
  const list = order.map((index) => `${labels[index]} ${number(at(index))}`).join(", ");
  return row !== null ? t("readout-row", { row: view.rowLabels[row], list }) : t("readout-column", { column: view.columnLabels[column], list });
}

function drawLines(row, column, columns, rows, weight) {
  const svg = byId("reader").querySelector(".lines");
  const origin = byId("reader").getBoundingClientRect();
  const point = (word, isAbove) => {
    const place = word.getBoundingClientRect();
    return [place.left + place.width / 2 - origin.left, (isAbove ? place.bottom : place.top) - origin.top];
  };
  const pairs = row !== null ? columns.map((_, j) => [row, j]) : column !== null ? rows.map((_, i) => [i, column]) : [];
  const kept = pairs.filter(([i, j]) => (column === null || row === null || j === column) && weight(i, j) >= 0.02);
  // Places are all read before anything is written, so that the page is laid out once.
  const places = kept.map(([i, j]) => [point(columns[j], true), point(rows[i], false), weight(i, j)]);
  svg.replaceChildren(...places.map(([[x1, y1], [x2, y2], value]) => {
    const middle = (y1 + y2) / 2;
    return makeSvg("path", { d: `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`, "stroke-width": 1 + 5 * value, opacity: 0.2 + 0.8 * value });
  }));
}

// Small multiples: a row for each layer, a column for each head; what is chosen is framed.
function drawGrid() {
  const grid = byId("grid");
  const drawn = [state.kind, state.output, state.units, state.language, colours().ground].join();
  if (grid.dataset.drawn === drawn) return pressGrid();
  grid.dataset.drawn = drawn;
  const count = numHeads(state.kind, state.output);
  const heads = count > 1 ? [...Array(count).keys(), "mean", "max"] : ["mean"];
  grid.style.setProperty("--columns", heads.length);
  const cells = [make("span")].concat(heads.map((head) => make("span", { className: "soft" }, typeof head === "number" ? String(head + 1) : headName(head))));
  for (const layer of layerChoices()) {
    cells.push(make("span", { className: "soft" }, typeof layer === "number" ? String(layer + 1) : layerName(layer)));
    for (const head of heads) cells.push(gridCell(layer, head, count));
  }
  grid.replaceChildren(...cells);
  grid.setAttribute("aria-label", t("grid"));
  return pressGrid();
}

function pressGrid() {
  for (const cell of byId("grid").querySelectorAll("button")) {
    const isChosen = cell.dataset.place === `${state.layer},${state.head}`;
    cell.setAttribute("aria-pressed", String(isChosen));
    cell.tabIndex = isChosen ? 0 : -1;
  }
}

function gridCell(layer, head, count) {
  const isPossible = count === 1 || typeof layer === "number" || head === "mean" || (layer === "mean" && head === "max");
  if (!isPossible) return make("span");
  const canvas = make("canvas");
  paintPixels(canvas, makeView(state.kind, state.output, layer, head, state.units));
  return make("button", {
    type: "button",
    "aria-label": `${layerName(layer)}, ${headName(head)}`,
    title: `${layerName(layer)}, ${headName(head)}`,
    "data-place": `${layer},${head}`,
    onclick: () => choose({ layer, head }),
    onkeydown: moveInGrid,
  }, canvas);
}

function moveInGrid(event) {
  const columns = Number(byId("grid").style.getPropertyValue("--columns")) + 1;
  const step = { ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const cells = [...byId("grid").children];
  const next = cells[cells.indexOf(event.currentTarget) + step];
  if (next?.tagName === "BUTTON") {
    next.focus();
    next.click();
  }
}
