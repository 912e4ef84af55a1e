// Runs the cases of one script as they are asked for: a line `{"case", "url", "model"}` in, a line `{"proved"}` or
// `{"failed"}` out. One process does all of them, for some of these libraries take a second to load.
//
//     node run.mjs SCRIPT [argument of the script]

import { createInterface } from "node:readline";

const CASE_SECONDS = 60;

const [script, argument] = process.argv.slice(2);
const { cases } = await import(`./${script}.mjs`);

function answer(line) {
  process.stdout.write(JSON.stringify(line) + "\n");
}

function late(resolve, reject) {
  setTimeout(() => reject(new Error(`not within ${CASE_SECONDS} s`)), CASE_SECONDS * 1000).unref();
}

// A promise that nobody waits for is a failure of the case during which it is rejected.
let rejected = null;
process.on("unhandledRejection", (error) => {
  rejected ??= error;
});

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  rejected = null;
  try {
    const proved = await Promise.race([cases(asked.url, asked.model, argument)[asked.case](), new Promise(late)]);
    if (rejected) throw rejected;
    answer({ proved });
  } catch (error) {
    answer({ failed: error.stack ?? String(error) });
  }
}
