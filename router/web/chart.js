// Small drawings of figures.

import { el, svg } from "./dom.js";

/** A line over time; the newest value is at the right edge. */
export class Sparkline {
  constructor(capacity) {
    this.values = Array(capacity).fill(0);
    this.area = svg("path", { class: "spark-area" });
    this.line = svg("path", { class: "spark-line" });
    this.element = svg("svg", { viewBox: "0 0 100 28", preserveAspectRatio: "none", class: "sparkline", "aria-hidden": "true" }, this.area, this.line);
  }

  push(value) {
    this.values.push(value);
    this.values.shift();
    const top = Math.max(...this.values, 1e-9);
    const step = 100 / (this.values.length - 1);
    const points = this.values.map((v, n) => `${(n * step).toFixed(2)} ${(26 - (24 * v) / top).toFixed(2)}`);
    this.line.setAttribute("d", `M${points.join("L")}`);
    this.area.setAttribute("d", `M0 28L${points.join("L")}L100 28Z`);
  }
}

/** Columns with a share and a name each; `parts` are `{ name, share, words }`. */
export class Columns {
  constructor(label) {
    this.element = el("div", { class: "columns", role: "img", "aria-label": label });
    this.label = label;
  }

  update(parts) {
    const highest = Math.max(...parts.map(({ share }) => share), 1e-9);
    while (this.element.childElementCount > parts.length) this.element.lastChild.remove();
    while (this.element.childElementCount < parts.length) {
      this.element.append(el("div", { class: "column" }, el("span", { class: "value" }), el("span", { class: "fill" }), el("span", { class: "name" })));
    }
    parts.forEach(({ name, share, words }, n) => {
      const [value, fill, label] = this.element.children[n].children;
      this.element.children[n].title = words;
      value.textContent = share >= 0.005 ? Math.round(100 * share) : "";
      fill.style.setProperty("--share", share / highest);
      label.textContent = name;
    });
    this.element.setAttribute("aria-label", `${this.label}: ${parts.map(({ words }) => words).join("; ")}`);
  }
}

/** One bar of several kinds, with a legend. `kinds` are `{ key, name, title }`. */
export class StackedBar {
  constructor(kinds, format) {
    this.kinds = kinds;
    this.format = format;
    this.pieces = kinds.map(({ key, title }) => el("span", { class: `piece of-${key}`, title }));
    this.values = kinds.map(() => el("b"));
    this.total = el("b");
    const entries = kinds.map(({ key, name, title }, n) => el("li", { title }, el("i", { class: `of-${key}` }), name, this.values[n]));
    this.element = el(
      "div",
      { class: "stacked" },
      el("div", { class: "bar-of-pieces", "aria-hidden": "true" }, ...this.pieces),
      el("ul", { class: "legend" }, ...entries, el("li", { class: "total" }, "together", this.total)),
    );
  }

  /** `values` by key. */
  update(values) {
    const sum = this.kinds.reduce((all, { key }) => all + values[key], 0);
    this.kinds.forEach(({ key }, n) => {
      this.pieces[n].style.setProperty("flex-grow", sum > 0 ? values[key] / sum : 0);
      this.values[n].textContent = this.format(values[key]);
    });
    this.total.textContent = this.format(sum);
  }
}

/** A bar from nothing to all. */
export class Meter {
  constructor(label) {
    this.fill = el("span");
    this.words = el("span", { class: "meter-words" });
    this.element = el("div", { class: "meter" }, el("div", { class: "meter-head" }, el("span", {}, label), this.words), el("div", { class: "track" }, this.fill));
  }

  update(share, words) {
    this.fill.style.setProperty("--share", Math.min(1, Math.max(0, share)));
    this.words.textContent = words;
  }
}
