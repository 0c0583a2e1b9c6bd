// The model itself: its positions, the experiment with the order of words, and the shapes of its boxes.

function drawPositions() {
  const encoding = data.encoding;
  byId("positions-text").textContent = t(encoding ? `positions-${encoding.kind}` : data.order.without ? "positions-none" : "positions-rnn");
  byId("positions-readout").hidden = !encoding;
  byId("positions").replaceChildren();
  if (!encoding) return;
  byId("positions-readout").textContent = t("positions-readout-none");
  const table = readArray("positions.table");
  const alike = readArray("positions.similarity");
  byId("positions").append(
    plainPicture(t("positions-table"), table, t("positions-table-axes", { columns: table.columns }), (row, column, value) => t("positions-cell", { row: row + encoding.first, column, value })),
    plainPicture(t("positions-similarity"), alike, t("positions-similarity-axes"), (row, column, value) => t("positions-pair", { row: row + encoding.first, column: column + encoding.first, value })),
  );
}

// A picture without labels: its readout says row, column and value.
function plainPicture(title, matrix, axes, say) {
  const canvas = make("canvas", { className: "picture", tabIndex: 0, role: "application", "aria-label": title });
  paintPixels(canvas, matrix);
  const cursor = { row: 0, column: 0 };
  const tell = (row, column) => {
    cursor.row = Math.max(0, Math.min(matrix.rows - 1, row));
    cursor.column = Math.max(0, Math.min(matrix.columns - 1, column));
    byId("positions-readout").textContent = say(cursor.row, cursor.column, number(matrix.values[cursor.row * matrix.columns + cursor.column]));
  };
  canvas.addEventListener("pointermove", (event) => {
    const place = canvas.getBoundingClientRect();
    tell(Math.floor(((event.clientY - place.top) / place.height) * matrix.rows), Math.floor(((event.clientX - place.left) / place.width) * matrix.columns));
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    tell(cursor.row + move[0], cursor.column + move[1]);
  });
  const most = number(largest(matrix.values));
  const scale = make("p", { className: "legend" }, make("span", { className: "ramp less" }), ` −${most} … 0 … ${most} `, make("span", { className: "ramp" }));
  return make("div", {}, make("h3", {}, title), canvas, make("p", { className: "soft" }, axes), scale);
}

function drawOrder() {
  const order = data.order;
  const most = (values) => Math.max(...values.filter((value) => value !== null), 0);
  const facts = { first: order.first, second: order.second, with: most(order.with).toFixed(6), without: order.without ? most(order.without).toFixed(6) : "" };
  byId("order-text").textContent = t(!order.isReordering ? "order-other" : order.without ? (data.encoding ? "order-text" : "order-text-none") : "order-text-rnn", facts);
  const columns = ["token", ...(order.without ? ["order-without"] : []), "order-with"];
  const head = make("tr", {}, ...columns.map((key) => make("th", { scope: "col" }, t(key))));
  const longest = most([...order.with, ...(order.without ?? [])]) || 1;
  const cell = (value) => make("td", {}, ...(value === null ? [make("span", { className: "soft" }, t("order-missing"))] : [bar(value / longest), value.toFixed(6)]));
  const rows = order.tokens.map((token, index) => make("tr", {}, make("th", { scope: "row", className: "token" }, token), ...(order.without ? [cell(order.without[index])] : []), cell(order.with[index])));
  byId("order").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function drawShapes() {
  const sums = (key) => data.boxes.reduce((sum, box) => sum + box[key] * box.repeat, 0);
  byId("shapes-text").textContent = t("shapes-text", { source: data.source.tokens.length, target: data.outputs[0].target.tokens.length, parameters: whole(sums("parameters")), operations: large(sums("multiply_adds")) });
  const column = (place) => make("div", { className: "stack" }, make("h3", {}, t(place)), ...groups(data.boxes.filter((box) => box.place === place)).map(drawGroup));
  byId("shapes").replaceChildren(column("encoder"), column("decoder"));
}

// Neighbouring boxes that are repeated together are one layer.
function groups(boxes) {
  const found = [];
  for (const box of boxes) {
    const last = found.at(-1);
    const isLayer = ["self", "masked", "cross", "feed_forward", "norm"].includes(box.kind);
    const joins = last && isLayer && last.isLayer && last.repeat === box.repeat && !(box.kind === "norm" && last.boxes.at(-1).kind === "norm");
    if (joins) last.boxes.push(box);
    else found.push({ repeat: box.repeat, isLayer, boxes: [box] });
  }
  return found;
}

function drawGroup(group) {
  const boxes = group.boxes.map(drawBox);
  return group.boxes.length > 1 ? make("div", { className: "layer" }, make("p", { className: "times" }, t("layers-n", { n: group.repeat })), ...boxes) : boxes[0];
}

function drawBox(box) {
  const steps = box.steps.map((step) => make("li", {}, make("span", { className: "formula" }, ...formula(step.formula)), make("span", { className: "shape" }, step.shape.map(whole).join(" × "))));
  const cuts = box.heads > 1 ? [make("div", { className: "cuts", "aria-hidden": "true" }, ...Array.from({ length: box.heads }, () => make("i"))), make("p", { className: "soft" }, t("cuts", { heads: box.heads, width: box.steps[0].shape[1], size: box.steps[0].shape[1] / box.heads }))] : [];
  const mask = box.kind === "masked" ? [maskPicture(box.steps[0].shape[0])] : [];
  const parameters = box.is_shared && !box.parameters ? t("shared") : t("parameters", { n: whole(box.parameters) });
  const cost = box.multiply_adds ? [t("operations", { n: large(box.multiply_adds) })] : [];
  const each = box.repeat > 1 && box.kind !== "bridge" ? [t("each")] : [];
  return make("div", { className: `box ${box.kind}` },
    make("p", { className: "name" }, t(`box-${box.kind}`)), ...cuts, make("ul", {}, ...steps), ...mask,
    make("p", { className: "soft cost" }, [parameters, ...cost, ...each].join(" · ")));
}

// What stands behind an underscore is an index.
function formula(text) {
  return text.split(/_([\w…]+(?:-1)?)/).map((part, index) => (index % 2 ? make("sub", {}, part) : part));
}

function maskPicture(size) {
  const shown = Math.min(size, 12);
  const squares = [];
  for (let row = 0; row < shown; row++) for (let column = 0; column < shown; column++) squares.push(makeSvg("rect", { x: column * 8, y: row * 8, width: 7, height: 7, class: column > row ? "out" : "in" }));
  return make("div", { className: "mask" }, makeSvg("svg", { width: shown * 8, height: shown * 8, role: "img", "aria-label": t("mask") }, ...squares), make("span", { className: "soft" }, t("mask")));
}
