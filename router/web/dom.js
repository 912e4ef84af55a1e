// Elements, made without ever turning a string into markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Of `props`, `class`, `dataset` and `on` are special; what else an element has is set, all others are attributes. */
export function el(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** What the page has by this id. */
export function byId(id) {
  return document.getElementById(id);
}

// Strokes in a square of 24.
const ICONS = {
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M8 8h8v8H8z",
  menu: "M4 7h16M4 12h16M4 17h10",
  settings: "M4 7h9m5 0h2M4 17h2m5 0h9M15.5 7a1.75 1.75 0 1 0 0 .01M8.5 17a1.75 1.75 0 1 0 0 .01",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM15 9V5H5v11h4",
  done: "M5 12.5l4.5 4.5L19 7.5",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  edit: "M5 19l1-4L16.5 4.5l3 3L9 18zM14.5 6.5l3 3",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13",
  down: "M12 5v14M5.5 12.5 12 19l6.5-6.5",
  pause: "M9 6v12M15 6v12",
  play: "M8 5.5v13l10.5-6.5z",
  back: "M15 5.5 8.5 12l6.5 6.5",
  forward: "M9 5.5l6.5 6.5L9 18.5",
};

/** One of the icons; says nothing to those who listen. */
export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: ICONS[name] }),
  );
}

/** A button with an icon, and words for those who listen or wait above it. */
export function iconButton(name, label, act, kind = "icon-button") {
  return el("button", { class: kind, type: "button", title: label, "aria-label": label, on: { click: act } }, icon(name));
}

/** Gives a button another icon and other words. */
export function relabel(button, name, label) {
  button.replaceChildren(icon(name));
  button.title = label;
  button.setAttribute("aria-label", label);
}

/** Calls `act` before the next frame, once however often it is asked. */
export function oncePerFrame(act) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      act();
    });
  };
}
