// What all scripts ask for.

import assert from "node:assert/strict";

import { z } from "zod";

export const KEY = "not needed";
export const QUESTION = "Write a Python function that returns the n-th Fibonacci number.";
export const WEATHER_QUESTION = "How is the weather in Oslo?";

export const Digit = z.object({ n: z.number().int().min(0).max(9) });
// For clients that take bounds of numbers out of schemas.
export const Level = z.object({ level: z.enum(["low", "high"]) });
export const City = z.object({ city: z.enum(["Oslo", "Lima"]) });
export const CITY = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Lima"] } },
  required: ["city"],
  additionalProperties: false,
};
export const WEATHER = { name: "get_weather", description: "The weather of a city." };

export function weather({ city }) {
  return `Sunny in ${city}, 21 degrees.`;
}

// A call's arguments, given as JSON, fit the schema; what it is answered.
export function called(name, text) {
  assert.equal(name, WEATHER.name);
  return weather(City.parse(JSON.parse(text)));
}

// The error that a promise is rejected with.
export async function rejection(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  return assert.fail("it was not refused");
}
