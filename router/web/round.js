// One speculative round as a drawing: the draft's tree, and the path through it that the target chose.

import { svg } from "./dom.js";

const ROW = 30;
const GAP = 34;
const MARGIN = 14;
const CHARACTER = 7.3;
const PILL = 22;
const MAX_CHARS = 14;
const DOT = 15;

/** A drawing of the round. */
export function drawRound(round) {
  const nodes = place(round);
  const columns = widths(nodes);
  const starts = columns.map((_, depth) => MARGIN + columns.slice(0, depth).reduce((all, width) => all + width + GAP, 0));
  const width = starts.at(-1) + columns.at(-1) + MARGIN;
  const rows = Math.max(...nodes.map(({ row }) => row)) + 1;
  const height = rows * ROW + 2 * MARGIN;
  for (const node of nodes) {
    node.x = starts[node.depth];
    node.y = MARGIN + (node.row + 0.5) * ROW;
  }
  // Accepted ones last, so that they lie on top.
  const drawn = [...nodes].sort((a, b) => Number(a.isOnPath) - Number(b.isOnPath));
  const edges = drawn.filter(({ parent }) => parent !== null).map((node) => edge(nodes[node.parent], node));
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "tree", role: "img" },
    svg("title", {}),
    svg("g", {}, ...edges),
    svg("g", {}, ...drawn.map(pill)),
  );
  drawing.style.setProperty("--width", `${width}px`);
  drawing.firstChild.textContent = words(round);
  return drawing;
}

/** The round in words, for those who listen. */
function words({ nodes, accepted, chosen }) {
  const text = chosen.every((token) => token !== null) ? `: ${chosen.join("")}` : "";
  return `A tree of ${nodes.length} draft tokens, of which ${accepted.length} were accepted; ${chosen.length} tokens came of it${text}`;
}

/** Nodes with their places: the root, the draft's, and the target's own token behind the path. */
function place(round) {
  const onPath = new Set([0, ...round.accepted]);
  const nodes = [{ text: round.anchor, parent: null, depth: 0, isOnPath: true, kind: "anchor", probability: 1 }];
  round.nodes.forEach(({ text, parent, probability }, n) => {
    const isOnPath = onPath.has(n + 1);
    const share = probability / nodes[parent].probability;
    nodes.push({ text, parent, depth: nodes[parent].depth + 1, isOnPath, kind: isOnPath ? "accepted" : "rejected", probability, share });
  });
  const last = round.accepted.at(-1) ?? 0;
  nodes.push({ text: round.chosen.at(-1) ?? null, parent: last, depth: nodes[last].depth + 1, isOnPath: true, kind: "own", probability: nodes[last].probability });
  for (const [n, row] of rowsOf(nodes)) nodes[n].row = row;
  const top = Math.min(...nodes.map(({ row }) => row));
  for (const node of nodes) node.row -= top;
  return nodes;
}

/** A row for each node: the path is a straight line, and what branches off lies as near to it as there is room. */
function rowsOf(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach(({ parent }, n) => {
    if (parent !== null) children[parent].push(n);
  });
  const visit = (n, side) => {
    const [first, ...others] = children[n].sort((a, b) => Number(nodes[b].isOnPath) - Number(nodes[a].isOnPath) || a - b);
    const rows = new Map([[n, 0]]);
    const taken = new Set([cell(nodes[n].depth, 0)]);
    const put = (branch, by) => {
      for (const [m, row] of branch) {
        rows.set(m, row + by);
        taken.add(cell(nodes[m].depth, row + by));
      }
    };
    if (first !== undefined) put(visit(first, side), 0);
    for (const child of others) {
      const branch = visit(child, side);
      const fits = (by) => [...branch].every(([m, row]) => !taken.has(cell(nodes[m].depth, row + by)));
      let by = side;
      // Off the path, down and up by turns; a branch of a branch goes on in its direction.
      while (!fits(by)) by = nodes[n].isOnPath ? (by > 0 ? -by : 1 - by) : by + side;
      put(branch, by);
    }
    return rows;
  };
  return visit(0, 1);
}

function cell(depth, row) {
  return `${depth} ${row}`;
}

function widths(nodes) {
  const columns = [];
  for (const node of nodes) {
    node.label = label(node.text);
    node.width = node.label === null ? DOT : Math.max(PILL, node.label.length * CHARACTER + 16);
    columns[node.depth] = Math.max(columns[node.depth] ?? 0, node.width);
  }
  return columns;
}

/** A text whose white space one can see. */
export function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "·");
}

function label(text) {
  if (text === null || text === undefined) return null;
  const seen = visible(text);
  return seen.length > MAX_CHARS ? `${seen.slice(0, MAX_CHARS - 1)}…` : seen;
}

function edge(from, to) {
  const [x1, y1] = [from.x + from.width, from.y];
  const [x2, y2] = [to.x, to.y];
  const bend = Math.min(GAP, (x2 - x1) / 2);
  const path = svg("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, class: `edge is-${to.kind}`, pathLength: 1 });
  if (to.kind === "rejected") path.style.setProperty("--likely", 0.25 + 0.75 * Math.min(1, to.share));
  path.style.setProperty("--depth", to.depth);
  return path;
}

function pill({ x, y, width, label: text, kind, share, depth }) {
  const group = svg("g", { class: `node is-${kind}` });
  group.style.setProperty("--depth", depth);
  if (kind === "rejected") group.style.setProperty("--likely", 0.5 + 0.5 * Math.min(1, share));
  if (text === null) {
    group.append(svg("circle", { cx: x + DOT / 2, cy: y, r: kind === "rejected" ? 4.5 : 6.5 }));
  } else {
    group.append(svg("rect", { x, y: y - PILL / 2, width, height: PILL, rx: PILL / 2 }));
    const words = svg("text", { x: x + width / 2, y: y + 4, "text-anchor": "middle" });
    words.textContent = text;
    group.append(words);
  }
  const title = svg("title");
  title.textContent = share === undefined ? kindWords[kind] : `${kindWords[kind]}, ${Math.round(100 * share)} % likely to the draft`;
  group.append(title);
  return group;
}

const kindWords = {
  anchor: "the newest token before the round",
  accepted: "proposed and accepted",
  rejected: "proposed and not chosen",
  own: "the target's own token",
};
