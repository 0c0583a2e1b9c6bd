// Small things to draw with: elements, numbers, colours, and heat maps with labels.

const CELL = { fewest: 15, most: 40, room: 400 };

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function makeSvg(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function number(value, digits = 2) {
  const size = Math.abs(value);
  if (size > 0 && size < 0.5 * 10 ** -digits) return value < 0 ? `> -${(10 ** -digits).toFixed(digits)}` : `< ${(10 ** -digits).toFixed(digits)}`;
  return value.toFixed(digits).replace(/^-(0\.0+)$/, "$1");
}

function whole(value) {
  return value.toLocaleString("en-US");
}

function large(value) {
  if (value < 1e6) return whole(value);
  return value < 1e9 ? `${(value / 1e6).toFixed(1)} M` : `${(value / 1e9).toFixed(2)} G`;
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  return { ground: rgb("--ground-rgb"), more: rgb("--more-rgb"), less: rgb("--less-rgb"), line: rgb("--line-rgb") };
}

// A value between 0 and 1 on the way from the ground to a colour; small ones are lifted so that they can be seen.
function blend(ground, colour, share) {
  const lifted = Math.min(1, share) ** 0.75;
  return ground.map((one, index) => Math.round(one + (colour[index] - one) * lifted));
}

function largest(values) {
  let most = 0;
  for (const value of values) most = Math.max(most, Math.abs(value));
  return most || 1;
}

// One pixel for each cell; the page scales it up.
function paintPixels(canvas, view) {
  canvas.width = view.columns;
  canvas.height = view.rows;
  const { ground, more, less } = colours();
  const most = largest(view.values);
  const context = canvas.getContext("2d");
  const image = context.createImageData(view.columns, view.rows);
  view.values.forEach((value, index) => {
    const [red, green, blue] = blend(ground, value < 0 ? less : more, Math.abs(value) / most);
    image.data.set([red, green, blue, 255], index * 4);
  });
  context.putImageData(image, 0, 0);
}

function hatch(canvas, view, cell) {
  const context = canvas.getContext("2d");
  context.strokeStyle = `rgb(${colours().line.join()})`;
  context.lineWidth = 1;
  context.beginPath();
  for (let row = 0; row < view.rows; row++) {
    for (let column = 0; column < view.columns; column++) {
      if (!view.isMasked(row, column)) continue;
      context.moveTo(column * cell + 2, (row + 1) * cell - 2);
      context.lineTo((column + 1) * cell - 2, row * cell + 2);
    }
  }
  context.stroke();
}

function paintCells(canvas, view, cell) {
  const small = document.createElement("canvas");
  paintPixels(small, view);
  canvas.width = view.columns * cell;
  canvas.height = view.rows * cell;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  if (view.isMasked) hatch(canvas, view, cell);
}

function cellSize(view) {
  return Math.max(CELL.fewest, Math.min(CELL.most, Math.floor(CELL.room / Math.max(view.rows, view.columns))));
}

// A heat map with labels. `tell(row, column)` is called for the cell under the pointer or the keyboard's cursor.
function makeMap(view, { name, tell, leave = () => {} }) {
  const cell = cellSize(view);
  const canvas = make("canvas", { className: "cells" });
  paintCells(canvas, view, cell);
  const cross = [make("div", { className: "bar across" }), make("div", { className: "bar down" })];
  const body = make("div", { className: "body" }, canvas, ...cross);
  const label = (text, size) => make("div", { style: `${size}:${cell}px`, title: text }, make("span", {}, text));
  const head = make("div", { className: "head" }, ...view.columnLabels.map((text) => label(text, "width")));
  const side = make("div", { className: "side" }, ...view.rowLabels.map((text) => label(text, "height")));
  const box = make("div", { className: "map scroll", tabIndex: 0, role: "application", "aria-label": name },
    make("div", { className: "corner" }), head, side, body);
  const cursor = { row: 0, column: 0 };
  const mark = (row, column) => {
    for (const one of box.querySelectorAll(".on")) one.classList.remove("on");
    cross.forEach((bar) => { bar.hidden = row === null && column === null; });
    cross[0].hidden = row === null;
    cross[1].hidden = column === null;
    if (row !== null) side.children[row].classList.add("on");
    if (column !== null) head.children[column].classList.add("on");
    cross[0].style.cssText = `top:${(row ?? 0) * cell}px;height:${cell}px`;
    cross[1].style.cssText = `left:${(column ?? 0) * cell}px;width:${cell}px`;
  };
  const go = (row, column) => {
    Object.assign(cursor, { row, column });
    mark(row, column);
    tell(row, column);
  };
  listen(box, canvas, view, cell, cursor, go, () => { mark(null, null); leave(); });
  mark(null, null);
  return { box, mark, cell };
}

function listen(box, canvas, view, cell, cursor, go, leave) {
  canvas.addEventListener("pointermove", (event) => {
    const place = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - place.top) / cell);
    const column = Math.floor((event.clientX - place.left) / cell);
    if (row >= 0 && row < view.rows && column >= 0 && column < view.columns) go(row, column);
  });
  canvas.addEventListener("pointerleave", leave);
  box.addEventListener("focus", () => { if (box.matches(":focus-visible")) go(cursor.row, cursor.column); });
  box.addEventListener("blur", leave);
  box.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const inside = (value, size) => Math.max(0, Math.min(size - 1, value));
    go(inside(cursor.row + move[0], view.rows), inside(cursor.column + move[1], view.columns));
    box.querySelector(".side .on")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    box.querySelector(".head .on")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}
