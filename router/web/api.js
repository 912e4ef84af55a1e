// Speaking to the server: requests, streams of events, and what goes wrong.

const KEY = "tandem.key";

/** Why the server did not answer. `status` 0: it was not reached. */
export class ApiError extends Error {
  constructor(status, message, { code = null, retryAfterSeconds = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterSeconds = retryAfterSeconds;
  }

  /** What a person should know first. */
  get title() {
    if (this.status === 0) return "The server cannot be reached";
    if (this.status === 401 || this.status === 403) return "The server wants an API key";
    if (this.status === 429) return "The server is busy";
    if (this.status === 503) return "The server is not ready";
    if (this.status >= 500) return "The server failed";
    if (this.status >= 400) return "The server refused the request";
    return "The answer broke off";
  }
}

/** The API key, of this tab or kept for longer. */
export const key = {
  get() {
    return read(sessionStorage) ?? read(localStorage) ?? "";
  },
  isKept() {
    return read(localStorage) !== null;
  },
  set(value, keep) {
    for (const storage of [sessionStorage, localStorage]) storage.removeItem(KEY);
    if (value) (keep ? localStorage : sessionStorage).setItem(KEY, value);
  },
};

function read(storage) {
  try {
    return storage.getItem(KEY);
  } catch {
    return null;
  }
}

/** A reply with status 200; every other one is thrown as an `ApiError`. */
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key.get()) headers.set("authorization", `Bearer ${key.get()}`);
  let reply;
  try {
    reply = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Is it running, and is the network there?");
  }
  if (!reply.ok) throw await refusal(reply);
  return reply;
}

async function refusal(reply) {
  const retryAfter = Number.parseInt(reply.headers.get("retry-after") ?? "", 10);
  const retryAfterSeconds = Number.isNaN(retryAfter) ? null : retryAfter;
  let error = {};
  try {
    const body = await reply.json();
    error = body.error ?? { message: body.reason };
  } catch {
    // Whatever stands between here and the server speaks another language.
  }
  const message = error.message ?? `It answered with status ${reply.status}.`;
  return new ApiError(reply.status, message, { code: error.code, retryAfterSeconds });
}

/** JSON from a path. */
export async function getJson(path, signal) {
  const reply = await ask(path, { signal, headers: { accept: "application/json" } });
  return reply.json();
}

/** The events of a stream, as `{ event, data }`. One that breaks off is thrown. */
export async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let event = "message";
  let data = [];
  try {
    for (;;) {
      let piece;
      try {
        piece = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "The connection broke in the middle of the answer.");
      }
      if (piece.done) return;
      buffer += piece.value;
      const lines = buffer.split(/\r\n|\n|\r/);
      buffer = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length > 0) yield { event, data: data.join("\n") };
          event = "message";
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(5).replace(/^ /, ""));
        } else if (line.startsWith("event:")) {
          event = line.slice(6).trim();
        }
      }
    }
  } finally {
    // Frees the connection, and with it what the server holds.
    reader.cancel().catch(() => {});
  }
}

/** The parts of an answer as they come; one that ends without its `[DONE]` is thrown. */
export async function* streamChat(body, signal) {
  const reply = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true }, return_progress: true }),
    signal,
  });
  for await (const { data } of events(reply)) {
    if (data === "[DONE]") return;
    const part = JSON.parse(data);
    if (part.error) throw new ApiError(-1, part.error.message, { code: part.error.code });
    yield part;
  }
  throw new ApiError(0, "The connection ended before the answer did.");
}
