// The official `openai` client, chat completions.

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";

import { CITY, called, Digit, KEY, QUESTION, rejection, WEATHER, WEATHER_QUESTION, weather } from "./shared.mjs";

const TOOLS = [{ type: "function", function: { ...WEATHER, parameters: CITY, strict: true } }];
const THINKS = { reasoning_effort: "medium" };

export function cases(url, model) {
  // Without retries: they would hide refusals.
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: KEY, maxRetries: 0 });
  const completions = client.chat.completions;
  const asking = (more) => ({ model, temperature: 0, messages: [{ role: "user", content: QUESTION }], ...more });

  return {
    async whole_and_streamed() {
      const whole = await completions.create(asking());
      const message = whole.choices[0].message;
      assert.match(message.content, /def fibonacci/);
      assert.equal(message.reasoning_content ?? null, null);

      const chunks = [];
      const options = { stream: true, stream_options: { include_usage: true } };
      for await (const chunk of await completions.create(asking(options))) chunks.push(chunk);
      const last = chunks.pop();
      assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), message.content);
      assert.deepEqual(last.choices, []);
      assert.deepEqual(totals(last.usage), totals(whole.usage));

      const helped = await completions.stream(asking(options)).finalChatCompletion();
      assert.equal(helped.choices[0].message.content, message.content);
      assert.equal(helped.choices[0].finish_reason, whole.choices[0].finish_reason);
      assert.deepEqual(totals(helped.usage), totals(whole.usage));
      return `${chunks.length} chunks and .stream() both make the whole answer, ${JSON.stringify(totals(whole.usage))}`;
    },

    async reasoning() {
      const whole = await completions.create(asking(THINKS));
      const message = whole.choices[0].message;
      assert.ok(message.reasoning_content);
      assert.match(message.content, /def fibonacci/);
      assert.ok(whole.usage.completion_tokens_details.reasoning_tokens > 0);
      let [reasoning, content] = ["", ""];
      for await (const { choices } of await completions.create(asking({ ...THINKS, stream: true }))) {
        const delta = choices[0].delta;
        assert.ok(!(delta.reasoning_content && content), "reasoning comes first");
        reasoning += delta.reasoning_content ?? "";
        content += delta.content ?? "";
      }
      assert.deepEqual([reasoning, content], [message.reasoning_content, message.content]);
      return `${reasoning.length} characters of reasoning before ${content.length}, whole and streamed`;
    },

    async tools() {
      const messages = [{ role: "user", content: WEATHER_QUESTION }];
      const tool_choice = { type: "function", function: { name: WEATHER.name } };
      const stream = completions.stream(asking({ messages, tools: TOOLS, tool_choice }));
      const pieces = [];
      stream.on("tool_calls.function.arguments.delta", (event) => pieces.push(event.arguments_delta));
      const first = await stream.finalChatCompletion();
      const { finish_reason, message } = first.choices[0];
      // As the API documents it: a call that a named `tool_choice` forced ends with `stop`.
      assert.ok(["stop", "tool_calls"].includes(finish_reason), finish_reason);
      const [call] = message.tool_calls;
      assert.equal(message.tool_calls.length, 1);
      assert.equal(pieces.join(""), call.function.arguments);
      const content = called(call.function.name, call.function.arguments);
      messages.push(message, { role: "tool", tool_call_id: call.id, content });
      const final = await completions.stream(asking({ messages, tools: TOOLS, max_tokens: 200 })).finalChatCompletion();
      assert.ok(final.choices[0].message.content);
      return `${call.function.name}(${call.function.arguments}) and the answer after its result, streamed`;
    },

    // The client's own loop, which calls the function itself.
    async loop() {
      const asked = [];
      const runs = (city) => asked.push(city) && weather(city);
      const tools = [{ type: "function", function: { ...WEATHER, parameters: CITY, parse: JSON.parse, function: runs } }];
      for (const stream of [false, true]) {
        const messages = [{ role: "user", content: WEATHER_QUESTION }];
        const usage = stream ? { stream_options: { include_usage: true } } : {};
        const runner = completions.runTools(asking({ messages, tools, stream, ...usage }));
        assert.ok(await runner.finalContent());
        const roles = runner.messages.map((message) => message.role);
        assert.deepEqual(roles, ["user", "assistant", "tool", "assistant"]);
        assert.ok((await runner.totalUsage()).completion_tokens > 0);
      }
      assert.deepEqual(asked, [{ city: "Oslo" }, { city: "Oslo" }]);
      return "runTools calls the function and gets an answer, whole and streamed";
    },

    async schema() {
      const options = { response_format: zodResponseFormat(Digit, "digit"), max_tokens: 100 };
      const whole = await completions.parse(asking(options));
      const streamed = await completions.stream(asking(options)).finalChatCompletion();
      assert.deepEqual(streamed.choices[0].message.parsed, Digit.parse(whole.choices[0].message.parsed));
      return `parse and stream both give ${JSON.stringify(whole.choices[0].message.parsed)}`;
    },

    async error() {
      for (const stream of [false, true]) {
        const error = await rejection(completions.create(asking({ temperature: 3, stream })));
        assert.ok(error instanceof OpenAI.BadRequestError, error);
        assert.deepEqual([error.status, error.param, error.type], [400, "temperature", "invalid_request_error"]);
        assert.ok(error.requestID);
      }
      const error = await rejection(completions.create(asking({ messages: [{ role: "user", content: "word ".repeat(20000) }] })));
      assert.ok(error instanceof OpenAI.BadRequestError, error);
      assert.equal(error.code, "context_length_exceeded");
      return "BadRequestError names the field, whole and streamed, and a prompt that is too long";
    },

    async abort() {
      const stopped = new AbortController();
      const stream = await completions.create(asking({ stream: true }), { signal: stopped.signal });
      let [chunks, helped] = [0, 0];
      for await (const _ of stream) if (++chunks === 20) stopped.abort();
      const helper = completions.stream(asking());
      helper.on("chunk", () => ++helped === 20 && helper.abort());
      assert.ok((await rejection(helper.finalMessage())) instanceof OpenAI.APIUserAbortError);
      return `a stream after ${chunks} chunks, a helper after ${helped}`;
    },

    async abort_whole() {
      const stopped = new AbortController();
      setTimeout(() => stopped.abort(), 500);
      const answer = completions.create(asking({ max_tokens: 4000, ignore_eos: true }), { signal: stopped.signal });
      assert.ok((await rejection(answer)) instanceof OpenAI.APIUserAbortError);
      return "an answer that is not streamed, after half a second";
    },
  };
}

// Without where the prompt's tokens came from, which depends on who asked before.
function totals({ prompt_tokens, completion_tokens, total_tokens }) {
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
  return { prompt_tokens, completion_tokens };
}
