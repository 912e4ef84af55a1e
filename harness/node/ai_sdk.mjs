// The AI SDK, by three of its providers: each speaks another API.

import assert from "node:assert/strict";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, isStepCount, Output, streamText, tool } from "ai";

import { City, Digit, KEY, Level, QUESTION, rejection, WEATHER, WEATHER_QUESTION, weather } from "./shared.mjs";

// The language model of a provider, and what is said to the provider only.
const PROVIDERS = {
  compatible(baseURL, model) {
    const can = { includeUsage: true, supportsStructuredOutputs: true };
    const provider = createOpenAICompatible({ name: "tandem", baseURL, apiKey: KEY, ...can });
    return { model: provider(model), schema: Digit, temperature: 0 };
  },
  responses(baseURL, model) {
    // Nothing is stored, and the name is none that the provider knows as one of a model that reasons. Such models take no
    // temperature; the set's own is 0.
    const openai = { store: false, forceReasoning: true };
    return { model: createOpenAI({ baseURL, apiKey: KEY })(model), schema: Digit, providerOptions: { openai } };
  },
  anthropic(baseURL) {
    // Names that the provider knows, so that it asks for schemas and thinking by their own fields. Of the newer model it
    // believes that no temperature can be set and no tool forced.
    const provider = createAnthropic({ baseURL, apiKey: KEY });
    return { model: provider("claude-sonnet-5-5"), forced: provider("claude-sonnet-4-5"), schema: Level };
  },
};

export function cases(url, name, kind) {
  const { model, forced = model, schema, temperature, providerOptions } = PROVIDERS[kind](`${url}/v1`, name);
  // Without retries: they would hide refusals.
  const common = { model, providerOptions, maxRetries: 0, maxOutputTokens: 2000 };
  const asking = (more) => ({ ...common, temperature, prompt: QUESTION, ...more });

  // Both forms of an answer; `onError` keeps errors out of the log, they come out of the stream as well.
  async function both(more) {
    const whole = await generateText(asking(more));
    const streamed = streamText({ ...asking(more), onError() {} });
    const parts = [];
    for await (const part of streamed.fullStream) parts.push(part);
    assert.deepEqual(await essence(streamed), await essence(whole));
    return { whole, streamed, parts };
  }

  return {
    async whole_and_streamed() {
      const { whole, parts } = await both();
      assert.match(whole.text, /def fibonacci/);
      assert.equal(whole.finishReason, "stop");
      assert.deepEqual(whole.warnings ?? [], []);
      const deltas = parts.filter((part) => part.type === "text-delta");
      assert.equal(deltas.map((part) => part.text).join(""), whole.text);
      return `${deltas.length} deltas make the whole answer, ${whole.usage.inputTokens} + ${whole.usage.outputTokens} tokens`;
    },

    async reasoning() {
      const { whole, parts } = await both({ reasoning: "medium", temperature: undefined });
      assert.ok(whole.reasoningText);
      assert.match(whole.text, /def fibonacci/);
      assert.ok(whole.usage.outputTokenDetails.reasoningTokens > 0);
      const deltas = parts.filter((part) => part.type === "reasoning-delta");
      assert.equal(deltas.map((part) => part.text).join(""), whole.reasoningText);
      const messages = [{ role: "user", content: QUESTION }, ...whole.response.messages, { role: "user", content: "Again." }];
      assert.ok((await generateText({ ...common, messages, maxOutputTokens: 8 })).usage.outputTokens);
      return `${whole.reasoningText.length} characters before ${whole.text.length}, whole and streamed, and taken back`;
    },

    async no_reasoning() {
      const { whole } = await both({ reasoning: "none" });
      assert.equal(whole.reasoningText, undefined);
      assert.match(whole.text, /def fibonacci/);
      return "none where none is asked for";
    },

    async tools() {
      const { asked, tools } = recording();
      const result = streamText(
        asking({
          model: forced,
          prompt: WEATHER_QUESTION,
          tools,
          stopWhen: isStepCount(2),
          maxOutputTokens: 100,
          prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "auto" : { type: "tool", toolName: WEATHER.name } }),
        }),
      );
      await result.consumeStream({ onError: assert.fail });
      const [first, second] = await result.steps;
      assert.deepEqual(asked, first.toolCalls.map((call) => call.input));
      assert.equal(first.finishReason, "tool-calls");
      assert.equal(first.toolResults[0].output, weather(asked[0]));
      assert.ok(second.text);
      return `${WEATHER.name}(${JSON.stringify(asked[0])}) and the answer after its result, streamed`;
    },

    async loop() {
      const { asked, tools } = recording();
      const options = asking({ prompt: WEATHER_QUESTION, tools, stopWhen: isStepCount(5) });
      assert.ok((await generateText(options)).text);
      const streamed = streamText(options);
      assert.ok(await streamed.text);
      assert.equal((await streamed.steps).length, 2);
      assert.deepEqual(asked, [{ city: "Oslo" }, { city: "Oslo" }]);
      return "generateText and streamText call the tool and get an answer";
    },

    async schema() {
      const options = asking({ output: Output.object({ schema }), maxOutputTokens: 100 });
      const whole = await generateText(options);
      const streamed = streamText(options);
      const partial = [];
      for await (const object of streamed.partialOutputStream) partial.push(object);
      assert.deepEqual(partial.at(-1), schema.parse(whole.output));
      assert.deepEqual(await streamed.output, whole.output);
      return `whole and streamed, ${JSON.stringify(whole.output)}`;
    },

    async error() {
      const wrong = asking({ prompt: "word ".repeat(20000) });
      const seen = [];
      const streamed = streamText({ ...wrong, onError: ({ error }) => seen.push(error) });
      await streamed.consumeStream();
      for (const error of [await rejection(generateText(wrong)), ...seen]) {
        assert.ok(APICallError.isInstance(error), error);
        assert.deepEqual([error.statusCode, error.isRetryable], [400, false]);
        assert.match(error.message, /context|prompt is too long/);
      }
      assert.equal(seen.length, 1);
      return `APICallError, whole and streamed: ${seen[0].message}`;
    },

    async abort() {
      const stopped = new AbortController();
      let [parts, aborted] = [0, false];
      const streamed = streamText(asking({ abortSignal: stopped.signal, onAbort: () => (aborted = true) }));
      for await (const part of streamed.fullStream) if (part.type === "text-delta" && ++parts === 20) stopped.abort();
      assert.ok(aborted);
      return `streamText after ${parts} parts`;
    },
  };
}

// The tool, and what it was called with.
function recording() {
  const asked = [];
  const execute = (city) => asked.push(city) && weather(city);
  const { name, description } = WEATHER;
  return { asked, tools: { [name]: tool({ description, inputSchema: City, strict: true, execute }) } };
}

// What both forms of an answer have in common.
async function essence(result) {
  const { inputTokens, outputTokens, totalTokens } = await result.usage;
  assert.equal(totalTokens, inputTokens + outputTokens);
  const said = { text: await result.text, reasoning: await result.reasoningText, ended: await result.finishReason };
  return { ...said, inputTokens, outputTokens };
}
