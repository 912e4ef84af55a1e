// LangChain's `ChatOpenAI`, by one of its two APIs: `chat` or `responses`.

import assert from "node:assert/strict";

import { ContextOverflowError } from "@langchain/core/errors";
import { HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";

import { City, Digit, KEY, QUESTION, rejection, WEATHER, WEATHER_QUESTION, weather } from "./shared.mjs";

const TOOL = tool(weather, { ...WEATHER, schema: City });
const ASKED = new HumanMessage(WEATHER_QUESTION);

export function cases(url, name, api) {
  // Without retries: they would hide refusals.
  const common = { model: name, apiKey: KEY, configuration: { baseURL: `${url}/v1` }, maxRetries: 0 };
  const model = (more) => new ChatOpenAI({ ...common, useResponsesApi: api === "responses", temperature: 0, ...more });

  async function both(runnable, input) {
    const whole = await runnable.invoke(input);
    const streamed = await added(await runnable.stream(input));
    assert.equal(streamed.text, whole.text);
    assert.deepEqual(numbers(streamed), numbers(whole));
    return { whole, streamed };
  }

  return {
    async whole_and_streamed() {
      const { whole } = await both(model(), QUESTION);
      assert.match(whole.text, /def fibonacci/);
      return `invoke and stream give one answer, ${JSON.stringify(numbers(whole))}`;
    },

    async reasoning() {
      // This class asks for reasoning where a model's name is one that it knows. Of the Responses API it shows the summary.
      const thinks = model({ model: "gpt-5", reasoning: { effort: "medium", ...(api === "responses" && { summary: "auto" }) } });
      const { whole, streamed } = await both(thinks, QUESTION);
      const thoughts = reasoning(whole);
      assert.ok(thoughts);
      assert.equal(reasoning(streamed), thoughts);
      const again = await model({ maxTokens: 8 }).invoke([new HumanMessage(QUESTION), whole, new HumanMessage("Again.")]);
      assert.ok(again.text);
      return `${thoughts.length} characters before ${whole.text.length}, whole and streamed, and taken back`;
    },

    async tools() {
      const forced = model().bindTools([TOOL], { tool_choice: WEATHER.name, strict: true });
      const message = await added(await forced.stream([ASKED]));
      assert.deepEqual(message.invalid_tool_calls, []);
      const [call] = message.tool_calls;
      const result = await TOOL.invoke(call);
      assert.equal(result.content, weather(City.parse(call.args)));
      const free = model({ maxTokens: 16 }).bindTools([TOOL], { strict: true });
      assert.ok((await added(await free.stream([ASKED, message, result]))).text);
      return `${call.name}(${JSON.stringify(call.args)}) and the answer after its result, streamed`;
    },

    async schema() {
      const options = { method: "jsonSchema", name: "digit", strict: true };
      const structured = model({ maxTokens: 100 }).withStructuredOutput(Digit, options);
      const answer = await structured.invoke("A digit, please.");
      const streamed = [];
      for await (const piece of await structured.stream("A digit, please.")) streamed.push(piece);
      assert.deepEqual(streamed.at(-1), Digit.parse(answer));
      return `withStructuredOutput gives ${JSON.stringify(answer)}, whole and streamed`;
    },

    async error() {
      const long = "word ".repeat(20000);
      for (const ask of [() => model().invoke(long), async () => added(await model().stream(long))]) {
        const error = await rejection(ask());
        assert.ok(ContextOverflowError.isInstance(error), error);
      }
      return "ContextOverflowError, whole and streamed";
    },

    async abort() {
      const stopped = new AbortController();
      let parts = 0;
      const reading = async () => {
        for await (const _ of await model().stream(QUESTION, { signal: stopped.signal })) {
          if (++parts === 20) stopped.abort();
        }
      };
      assert.match(String(await rejection(reading())), /[Aa]bort/);
      return `a stream, after ${parts} parts`;
    },
  };
}

// The message that the chunks make.
async function added(stream) {
  let message = null;
  for await (const chunk of stream) message = message ? message.concat(chunk) : chunk;
  return message;
}

function reasoning(message) {
  const summary = message.additional_kwargs.reasoning?.summary?.map((part) => part.text).join("");
  return summary ?? message.additional_kwargs.reasoning_content;
}

function numbers({ usage_metadata: { input_tokens, output_tokens, total_tokens } }) {
  assert.equal(total_tokens, input_tokens + output_tokens);
  return { input_tokens, output_tokens };
}
