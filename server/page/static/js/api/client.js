// Requests to the page's own server, with the API key where it needs one.

import { away, troubleOf } from "./trouble.js";

export class Client {
  /** key(): the API key, "" for none. */
  constructor(key) {
    this.key = key;
  }

  /** The response of a successful request; throws a Trouble otherwise. */
  async send(path, { body, signal } = {}) {
    const headers = { Accept: "application/json" };
    if (this.key()) headers.Authorization = `Bearer ${this.key()}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: body === undefined ? "GET" : "POST",
        headers,
        signal,
        cache: "no-store",
        credentials: "omit",
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      throw error.name === "AbortError" ? error : away();
    }
    if (response.ok) return response;
    const said = await response.json().catch(() => null);
    throw troubleOf(said, response.status, Number(response.headers.get("retry-after")) || 1);
  }

  async json(path, options) {
    const response = await this.send(path, options);
    return response.json();
  }

  /** [{id, room}]: the models by name; room is the context in tokens, null while a model is not loaded. */
  async models() {
    const { data } = await this.json("/v1/models");
    return data.map((model) => ({ id: model.id, room: model.meta?.n_ctx ?? null }));
  }
}
