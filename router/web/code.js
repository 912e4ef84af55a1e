// Code blocks: coloured a little, and copied with a click.

import { el, iconButton, relabel } from "./dom.js";

const WORDS = {
  python:
    "and as assert async await break class continue def del elif else except finally for from global if import in is lambda match case nonlocal not or pass raise return try while with yield None True False self",
  javascript:
    "async await break case catch class const continue default delete do else export extends finally for from function if import in instanceof let new null of return static super switch this throw true false try typeof undefined var void while yield interface type enum implements readonly as",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while Some None Ok Err",
  c: "auto bool break case char class const constexpr continue default delete do double else enum extern false float for goto if include define inline int long namespace new nullptr NULL operator private protected public return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while final import package abstract extends implements interface super String",
  go: "break case chan const continue default defer else fallthrough for func go goto if import interface map nil package range return select struct switch true false type var error string int",
  shell: "case do done elif else esac export fi for function if in local return then until while echo cd set exit",
  sql: "select from where and or not null insert into values update set delete create table drop alter join left right inner outer on group by order having limit as distinct union all primary key references index",
  json: "true false null",
};
const NAMES = {
  py: "python", python3: "python", js: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript",
  typescript: "javascript", rs: "rust", cpp: "c", "c++": "c", h: "c", cuda: "c", java: "c", csharp: "c", cs: "c",
  golang: "go", sh: "shell", bash: "shell", zsh: "shell", console: "shell", yaml: "json", yml: "json", toml: "json",
};
const HASH_COMMENTS = new Set(["python", "shell", "yaml", "yml", "toml", "ruby", "rb"]);

const STRING = /"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`?/;
const NUMBER = /\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b/;
const WORD = /[A-Za-z_$][\w$]*!?/;
const SLASH_COMMENT = /\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/;
const HASH_COMMENT = /#[^\n]*/;
const DASH_COMMENT = /--[^\n]*/;

/** A block of code with its language and a button that copies it. */
export function codeBlock(code, language) {
  const copy = iconButton("copy", "Copy the code", () => copyFrom(copy, code));
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, language || "text"), copy),
    el("pre", { tabIndex: 0 }, el("code", {}, ...coloured(code, language.toLowerCase()))),
  );
}

/** Copies text, and says on the button that it did. */
export async function copyFrom(button, text) {
  const label = button.title;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages without https have no clipboard; a selection can be copied from everywhere.
    const field = el("textarea", { value: text, class: "hidden" });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  relabel(button, "done", "Copied");
  setTimeout(() => relabel(button, "copy", label), 1500);
}

function coloured(code, language) {
  const dialect = NAMES[language] ?? language;
  const words = WORDS[dialect];
  if (!words) return [code];
  const keywords = new Set(words.split(" "));
  const comment = HASH_COMMENTS.has(language) || HASH_COMMENTS.has(dialect)
    ? HASH_COMMENT
    : dialect === "sql" ? DASH_COMMENT : SLASH_COMMENT;
  const tokens = new RegExp(
    `(?<comment>${comment.source})|(?<string>${STRING.source})|(?<number>${NUMBER.source})|(?<word>${WORD.source})`,
    "g",
  );
  const parts = [];
  let end = 0;
  for (const found of code.matchAll(tokens)) {
    const kind = kindOf(found, code, keywords, dialect);
    if (!kind) continue;
    if (found.index > end) parts.push(code.slice(end, found.index));
    parts.push(el("span", { class: `is-${kind}` }, found[0]));
    end = found.index + found[0].length;
  }
  if (end < code.length) parts.push(code.slice(end));
  return parts;
}

function kindOf({ 0: text, index, groups }, code, keywords, dialect) {
  if (groups.comment) return "comment";
  if (groups.string) return "string";
  if (groups.number) return "number";
  const word = dialect === "sql" ? text.toLowerCase() : text;
  if (keywords.has(word)) return "keyword";
  return code[index + text.length] === "(" ? "call" : null;
}
