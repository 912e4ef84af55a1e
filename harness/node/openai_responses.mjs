// The official `openai` client, the Responses API.

import assert from "node:assert/strict";

import OpenAI from "openai";
import { ResponsesToolRunner } from "openai/helpers/responses-tool-runner";
import { zodTextFormat } from "openai/helpers/zod";

import { CITY, called, Digit, KEY, QUESTION, rejection, WEATHER, WEATHER_QUESTION, weather } from "./shared.mjs";

const WEATHER_TOOL = { type: "function", ...WEATHER, parameters: CITY, strict: true };
const THINKS = { reasoning: { effort: "medium" } };

export function cases(url, model) {
  // Without retries: they would hide refusals.
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: KEY, maxRetries: 0 });
  const responses = client.responses;
  const asking = (more) => ({ model, temperature: 0, store: false, input: QUESTION, ...more });

  return {
    async whole_and_streamed() {
      const whole = await responses.create(asking());
      assert.equal(whole.status, "completed");
      assert.match(whole.output_text, /def fibonacci/);

      const events = [];
      for await (const event of await responses.create(asking({ stream: true }))) events.push(event);
      assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
      const deltas = events.filter((event) => event.type === "response.output_text.delta");
      assert.equal(deltas.map((event) => event.delta).join(""), whole.output_text);
      assert.equal(events.at(-1).type, "response.completed");

      const helped = await responses.stream(asking()).finalResponse();
      for (const response of [events.at(-1).response, helped]) {
        assert.deepEqual(essence(response), essence(whole));
      }
      return `${events.length} events and .stream() both make the whole answer, ${JSON.stringify(totals(whole.usage))}`;
    },

    async reasoning() {
      const asked = asking({ ...THINKS, include: ["reasoning.encrypted_content"] });
      const whole = await responses.create(asked);
      const [reasoning, message] = whole.output;
      assert.deepEqual([reasoning.type, message.type], ["reasoning", "message"]);
      assert.ok(reasoning.content[0].text && reasoning.encrypted_content);
      assert.ok(whole.usage.output_tokens_details.reasoning_tokens > 0);
      const stream = responses.stream(asked);
      let text = "";
      stream.on("response.reasoning_text.delta", (event) => (text += event.delta));
      assert.deepEqual(essence(await stream.finalResponse()), essence(whole));
      assert.equal(text, reasoning.content[0].text);
      const input = [{ role: "user", content: QUESTION }, ...whole.output, { role: "user", content: "Again." }];
      assert.equal((await responses.create(asking({ input, max_output_tokens: 8 }))).status, "incomplete");
      return `${text.length} characters before ${whole.output_text.length}, whole and streamed, and taken back`;
    },

    async tools() {
      const input = [{ role: "user", content: WEATHER_QUESTION }];
      const tool_choice = { type: "function", name: WEATHER.name };
      const stream = responses.stream(asking({ input, tools: [WEATHER_TOOL], tool_choice }));
      let pieces = "";
      stream.on("response.function_call_arguments.delta", (event) => (pieces += event.delta));
      const { output } = await stream.finalResponse();
      const [call] = output.filter((item) => item.type === "function_call");
      assert.equal(pieces, call.arguments);
      const result = called(call.name, call.arguments);
      // What only the client's parser adds stays here.
      const sent = output.map(({ parsed_arguments, ...item }) => item);
      input.push(...sent, { type: "function_call_output", call_id: call.call_id, output: result });
      const final = await responses.stream(asking({ input, tools: [WEATHER_TOOL], max_output_tokens: 200 })).finalResponse();
      assert.ok(final.output_text);
      return `${call.name}(${call.arguments}) and the answer after its result, streamed`;
    },

    // The client's own loop, which checks every item of an answer before it calls the function.
    async loop() {
      const asked = [];
      const execute = (city) => asked.push(city) && weather(city);
      const runner = new ResponsesToolRunner({ functions: [{ tool: WEATHER_TOOL, execute }] });
      for (const stream of [false, true]) {
        const final = await runner.run(client, asking({ input: WEATHER_QUESTION }), { stream });
        assert.ok(final.output_text);
      }
      assert.deepEqual(asked, [{ city: "Oslo" }, { city: "Oslo" }]);
      return "ResponsesToolRunner calls the function and gets an answer, whole and streamed";
    },

    async schema() {
      const asked = asking({ text: { format: zodTextFormat(Digit, "digit") }, max_output_tokens: 100 });
      const whole = await responses.parse(asked);
      const streamed = await responses.stream(asked).finalResponse();
      assert.deepEqual(streamed.output_parsed, Digit.parse(whole.output_parsed));
      return `parse and stream both give ${JSON.stringify(whole.output_parsed)}`;
    },

    async error() {
      for (const stream of [false, true]) {
        const error = await rejection(responses.create(asking({ temperature: 3, stream })));
        assert.ok(error instanceof OpenAI.BadRequestError, error);
        assert.deepEqual([error.status, error.param, error.type], [400, "temperature", "invalid_request_error"]);
      }
      const error = await rejection(responses.create(asking({ input: "word ".repeat(20000) })));
      assert.ok(error instanceof OpenAI.BadRequestError, error);
      assert.equal(error.code, "context_length_exceeded");
      return "BadRequestError names the field, whole and streamed, and a prompt that is too long";
    },

    async abort() {
      const stopped = new AbortController();
      let [events, helped] = [0, 0];
      for await (const _ of await responses.create(asking({ stream: true }), { signal: stopped.signal })) {
        if (++events === 20) stopped.abort();
      }
      const helper = responses.stream(asking());
      helper.on("event", () => ++helped === 20 && helper.abort());
      assert.ok((await rejection(helper.finalResponse())) instanceof OpenAI.APIUserAbortError);
      return `a stream after ${events} events, a helper after ${helped}`;
    },
  };
}

// What all forms of an answer have in common.
function essence({ output, status, usage }) {
  const items = output.map(({ id, encrypted_content, content, ...item }) => ({ ...item, content: content.map(plain) }));
  return { items, status, usage: totals(usage) };
}

// Without what only the client's parser adds.
function plain({ parsed, ...part }) {
  return part;
}

function totals({ input_tokens, output_tokens, total_tokens }) {
  assert.equal(total_tokens, input_tokens + output_tokens);
  return { input_tokens, output_tokens };
}
