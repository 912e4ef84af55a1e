// Markdown as models write it, to elements. Text stays text: no HTML, no pictures from elsewhere, no links but to the web.

import { codeBlock } from "./code.js";
import { el } from "./dom.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const DELIMITER_ROW = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Text that grows: what has not changed keeps its elements, and with them selections and positions. */
export class Markdown {
  constructor(root) {
    this.root = root;
    this.sources = [];
  }

  update(text) {
    const blocks = split(text.replace(/\r\n?/g, "\n").split("\n"));
    let same = 0;
    while (same < blocks.length && this.sources[same] === blocks[same].source) same += 1;
    while (this.root.childNodes.length > same) this.root.lastChild.remove();
    for (const block of blocks.slice(same)) this.root.append(block.render());
    this.sources = blocks.map((block) => block.source);
  }
}

/** The blocks of some lines, each with its source and how to show it. */
function split(lines) {
  const blocks = [];
  let at = 0;
  const add = (end, render) => {
    blocks.push({ source: lines.slice(at, end).join("\n"), render });
    at = end;
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (line.trim() === "") {
      at += 1;
    } else if (fence) {
      fenced(lines, at, fence, add);
    } else if (heading) {
      add(at + 1, () => el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])));
    } else if (RULE.test(line)) {
      add(at + 1, () => el("hr"));
    } else if (QUOTE.test(line)) {
      const end = runEnd(lines, at, (next) => QUOTE.test(next));
      const inner = lines.slice(at, end).map((quoted) => quoted.replace(QUOTE, ""));
      add(end, () => el("blockquote", {}, ...rendered(inner)));
    } else if (ITEM.test(line)) {
      const end = listEnd(lines, at);
      const inner = lines.slice(at, end);
      add(end, () => list(inner));
    } else if (line.includes("|") && DELIMITER_ROW.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
      const end = runEnd(lines, at, (next) => next.includes("|"));
      const rows = lines.slice(at, end);
      add(end, () => table(rows));
    } else {
      const end = runEnd(lines, at + 1, (next) => next.trim() !== "" && !interrupts(next));
      const text = lines.slice(at, end).join("\n");
      add(end, () => el("p", {}, ...inline(text)));
    }
  }
  return blocks;
}

function rendered(lines) {
  return split(lines).map((block) => block.render());
}

function interrupts(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function runEnd(lines, from, belongs) {
  let end = from;
  while (end < lines.length && belongs(lines[end])) end += 1;
  return Math.max(end, from);
}

/** Code up to the closing fence, or up to the end of what there is so far. */
function fenced(lines, from, [, indent, mark, info], add) {
  let end = from + 1;
  const closes = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  while (end < lines.length && !closes.test(lines[end])) end += 1;
  const code = lines.slice(from + 1, end).map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line));
  const language = info.trim().split(/\s+/)[0];
  add(Math.min(end + 1, lines.length), () => codeBlock(code.join("\n"), language));
}

/** A list goes on over blank lines while what follows is an item or indented. */
function listEnd(lines, from) {
  let end = from + 1;
  while (end < lines.length) {
    const line = lines[end];
    const next = lines[end + 1] ?? "";
    const goesOn = ITEM.test(line) || /^\s{2,}\S/.test(line);
    const isLazy = line.trim() !== "" && lines[end - 1].trim() !== "" && !interrupts(line);
    const isGap = line.trim() === "" && (ITEM.test(next) || /^\s{2,}\S/.test(next));
    if (!goesOn && !isLazy && !isGap) break;
    end += 1;
  }
  return end;
}

function list(lines) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(marker);
  const element = el(isOrdered ? "ol" : "ul");
  if (isOrdered) element.start = Number.parseInt(marker, 10);
  let item = null;
  const isLoose = lines.some((line) => line.trim() === "");
  const flush = () => {
    if (!item) return;
    const content = rendered(item);
    const [first] = content;
    // A tight item is a line, not a paragraph.
    if (!isLoose && first?.tagName === "P") content.splice(0, 1, ...first.childNodes);
    element.append(el("li", {}, ...content));
  };
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length + 1) {
      flush();
      item = [found[3]];
    } else {
      item.push(line.replace(/^(\t| {1,4})/, ""));
    }
  }
  flush();
  return element;
}

function table(rows) {
  const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const [head, delimiter, ...body] = rows;
  const aligns = cells(delimiter).map((cell) => {
    if (/^:-+:$/.test(cell)) return "center";
    return cell.endsWith(":") ? "right" : "left";
  });
  const row = (tag, line) =>
    el("tr", {}, ...aligns.map((align, column) => el(tag, { class: `to-${align}` }, ...inline(cells(line)[column] ?? ""))));
  const element = el(
    "table",
    {},
    el("thead", {}, row("th", head)),
    el("tbody", {}, ...body.map((line) => row("td", line))),
  );
  return el("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, element);
}

/** Beyond this a span is no span: a lone star must not make a page look for its other half through a whole book. */
const SPAN = "{0,2000}?";

// The first of those that match at the earliest place wins.
const SPANS = [
  { find: /\\([!-/:-@[-`{-~])/g, make: ([, character]) => [character] },
  { find: new RegExp(`(\`+)([^]${SPAN}[^\`])\\1(?!\`)`, "g"), make: ([, , code]) => [el("code", {}, code.replace(/^ (.*) $/, "$1"))] },
  { find: new RegExp(`(\\*\\*|__)(?=\\S)([^]${SPAN}\\S)\\1`, "g"), make: ([, , text]) => [el("strong", {}, ...inline(text))] },
  { find: new RegExp(`~~(?=\\S)([^]${SPAN}\\S)~~`, "g"), make: ([, text]) => [el("del", {}, ...inline(text))] },
  { find: new RegExp(`\\*(?=[^\\s*])([^]${SPAN}[^\\s*])\\*(?!\\*)`, "g"), make: ([, text]) => [el("em", {}, ...inline(text))] },
  { find: new RegExp(`(?<![\\p{L}\\p{N}_])_(?=[^\\s_])([^]${SPAN}[^\\s_])_(?![\\p{L}\\p{N}_])`, "gu"), make: ([, text]) => [el("em", {}, ...inline(text))] },
  { find: /!?\[([^\]]{0,500})\]\(\s*<?([^\s)>]+)>?(?:\s+"[^"]*")?\s*\)/g, make: ([whole, text, target]) => link(text, target, whole) },
  { find: /<((?:https?:\/\/|mailto:)[^\s<>]+)>/g, make: ([whole, target]) => link(target, target, whole) },
  { find: /https?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?]/g, make: ([target]) => link(target, target, target) },
  { find: / {2,}\n/g, make: () => [el("br")] },
];

/** Text with its spans: strings and elements. */
function inline(text) {
  const parts = [];
  // Where each kind comes next; null: not any more.
  const ahead = SPANS.map(() => ({ index: -1 }));
  let at = 0;
  for (;;) {
    let best = null;
    SPANS.forEach(({ find, make }, kind) => {
      if (ahead[kind] && ahead[kind].index < at) {
        find.lastIndex = at;
        ahead[kind] = find.exec(text);
      }
      const found = ahead[kind];
      if (found && (!best || found.index < best.found.index)) best = { found, make };
    });
    const end = best?.found.index ?? text.length;
    if (end > at) parts.push(text.slice(at, end));
    if (!best) return parts;
    parts.push(...best.make(best.found));
    at = end + best.found[0].length;
  }
}

/** A link to the web; one to anywhere else stays as it was written. */
function link(text, target, source) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return [source];
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return [source];
  return [el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, text || target)];
}
