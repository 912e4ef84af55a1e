// The official `@anthropic-ai/sdk`.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";

import { CITY, called, City, KEY, Level, QUESTION, rejection, WEATHER, WEATHER_QUESTION, weather } from "./shared.mjs";

const TOOLS = [{ ...WEATHER, input_schema: CITY, strict: true }];

export function cases(url) {
  // Without retries: they would hide refusals.
  const client = new Anthropic({ baseURL: url, apiKey: KEY, maxRetries: 0 });
  // Any name of a model will do: clients have this one compiled in.
  const asking = (more) => ({
    model: "any",
    max_tokens: 2000,
    temperature: 0,
    messages: [{ role: "user", content: QUESTION }],
    ...more,
  });

  async function both(more) {
    const whole = await client.messages.create(asking(more));
    const streamed = await client.messages.stream(asking(more)).finalMessage();
    assert.deepEqual(essence(streamed), essence(whole));
    return whole;
  }

  return {
    async whole_and_streamed() {
      const whole = await both();
      assert.deepEqual(whole.content.map((block) => block.type), ["text"]);
      assert.match(whole.content[0].text, /def fibonacci/);
      let text = "";
      for await (const event of await client.messages.create(asking({ stream: true }))) {
        if (event.type === "content_block_delta") text += event.delta.text;
      }
      assert.equal(text, whole.content[0].text);
      const { input_tokens } = await client.messages.countTokens({ model: "any", messages: asking().messages });
      assert.equal(input_tokens, essence(whole).prompt);
      return `events and .stream() both make the whole answer, ${input_tokens} + ${whole.usage.output_tokens} tokens`;
    },

    async reasoning() {
      const thinking = { type: "enabled", budget_tokens: 1024 };
      // As the API has it, thinking goes with no temperature but 1; the set's own is 0.
      const whole = await both({ thinking, temperature: undefined });
      const [thought, text] = whole.content;
      assert.deepEqual([thought.type, text.type], ["thinking", "text"]);
      assert.ok(thought.thinking && thought.signature);
      const messages = [...asking().messages, { role: "assistant", content: whole.content }, { role: "user", content: "Again." }];
      assert.ok((await client.messages.create(asking({ messages, max_tokens: 8 }))).content.length);
      return `${thought.thinking.length} characters before ${text.text.length}, whole and streamed, and taken back`;
    },

    async tools() {
      const messages = [{ role: "user", content: WEATHER_QUESTION }];
      const tool_choice = { type: "tool", name: WEATHER.name };
      const stream = client.messages.stream(asking({ messages, tools: TOOLS, tool_choice }));
      let pieces = "";
      stream.on("inputJson", (piece) => (pieces += piece));
      const first = await stream.finalMessage();
      assert.equal(first.stop_reason, "tool_use");
      const [call] = first.content.filter((block) => block.type === "tool_use");
      assert.deepEqual(JSON.parse(pieces), call.input);
      const content = called(call.name, pieces);
      messages.push(
        { role: "assistant", content: first.content },
        { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content }] },
      );
      const final = await client.messages.stream(asking({ messages, tools: TOOLS, max_tokens: 16 })).finalText();
      assert.ok(final);
      return `${call.name}(${pieces}) and the answer after its result, streamed`;
    },

    // The client's own loop, which calls the function itself.
    async loop() {
      const asked = [];
      const run = (city) => asked.push(city) && weather(city);
      const tools = [betaZodTool({ ...WEATHER, inputSchema: City, run })];
      const messages = [{ role: "user", content: WEATHER_QUESTION }];
      for (const stream of [false, true]) {
        const final = await client.beta.messages.toolRunner(asking({ messages, tools, stream }));
        assert.ok(final.content[0].text);
      }
      assert.deepEqual(asked, [{ city: "Oslo" }, { city: "Oslo" }]);
      return "toolRunner calls the function and gets an answer, whole and streamed";
    },

    async schema() {
      const asked = asking({ output_config: { format: zodOutputFormat(Level) }, max_tokens: 100 });
      const whole = await client.messages.parse(asked);
      const streamed = await client.messages.stream(asked).finalMessage();
      assert.deepEqual(streamed.parsed_output, Level.parse(whole.parsed_output));
      return `parse and stream both give ${JSON.stringify(whole.parsed_output)}`;
    },

    async error() {
      for (const stream of [false, true]) {
        const error = await rejection(client.messages.create(asking({ temperature: 3, stream })));
        assert.ok(error instanceof Anthropic.BadRequestError, error);
        assert.deepEqual([error.status, error.error.error.type], [400, "invalid_request_error"]);
        assert.match(error.message, /temperature/);
        assert.equal(error.requestID, error.error.request_id);
      }
      const long = [{ role: "user", content: "word ".repeat(20000) }];
      const error = await rejection(client.messages.stream(asking({ messages: long })).finalMessage());
      assert.ok(error instanceof Anthropic.BadRequestError, error);
      assert.match(error.message, /prompt is too long: \d+ tokens > \d+ maximum/);
      return "BadRequestError names the field, whole and streamed, and a prompt that is too long";
    },

    async abort() {
      const stopped = new AbortController();
      let [events, helped] = [0, 0];
      for await (const _ of await client.messages.create(asking({ stream: true }), { signal: stopped.signal })) {
        if (++events === 20) stopped.abort();
      }
      const helper = client.messages.stream(asking());
      helper.on("streamEvent", () => ++helped === 20 && helper.abort());
      assert.ok((await rejection(helper.finalMessage())) instanceof Anthropic.APIUserAbortError);
      return `a stream after ${events} events, a helper after ${helped}`;
    },

    async abort_whole() {
      const stopped = new AbortController();
      setTimeout(() => stopped.abort(), 500);
      const answer = client.messages.create(asking({ max_tokens: 4000, ignore_eos: true }), { signal: stopped.signal });
      assert.ok((await rejection(answer)) instanceof Anthropic.APIUserAbortError);
      return "an answer that is not streamed, after half a second";
    },
  };
}

// What both forms of an answer have in common. Where the prompt's tokens came from depends on who asked before.
function essence({ type, role, content, stop_reason, stop_sequence, usage }) {
  const prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens;
  return { type, role, content, stop_reason, stop_sequence, prompt, answer: usage.output_tokens };
}
