// satchel.mjs: runs a model file that `satchel build` made, in a browser or Node, by a WebAssembly build of libsatchel.
//
// Two modules are shipped. The one with relaxed SIMD is faster, and not every engine takes it: pickModule() asks. Both give the same
// tokens. Model runs in the thread that calls it; Chat runs one in a worker, so that a page stays usable. All work is one thread's.

// An empty function that holds i32x4.relaxed_dot_i8x16_i7x16_add_s, and one that holds i8x16.splat.
const RELAXED = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0, 65, 0, 253, 15, 65, 0, 253, 15, 65,
  0, 253, 15, 253, 147, 2, 11];
const SIMD128 = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11];
const ROLES = ["system", "user", "assistant"];
const TURNS = 1024; // most messages of a chat (cext/web/web.c)
const NO_SUCH_CALL = 52, BAD_HANDLE = 8; // errno of WASI

/** The name of the module that this engine takes: "relaxed" or "simd128". An Error where it has no vectors. */
export function pickModule() {
  if (WebAssembly.validate(new Uint8Array(RELAXED))) return "relaxed";
  if (WebAssembly.validate(new Uint8Array(SIMD128))) return "simd128";
  throw new Error("this browser has no SIMD for WebAssembly: expected one of 2023 or newer");
}

/** An open model and its one answer at a time. Model.open() makes one. */
export class Model {
  #call;

  constructor(exports) {
    this.#call = exports;
  }

  /** module: bytes or a compiled module of satchel-*.wasm. model: a Response, or the bytes of the file. options: context in tokens,
   *  progress(bytes, of). */
  static async open(module, model, options = {}) {
    const compiled = module instanceof WebAssembly.Module ? module : await WebAssembly.compile(module);
    const made = {};
    const { exports } = await WebAssembly.instantiate(compiled, imports(compiled, () => made.exports.memory));
    made.exports = exports;
    exports._initialize();
    const opened = new Model(exports);
    const [at, size] = await opened.#place(model, options.progress ?? (() => {}));
    opened.#checked(exports.open(at, size, options.context ?? 0));
    return opened;
  }

  /** Tokens that a prompt and its answer may have together. */
  get context() {
    return this.#call.context();
  }

  /** Texts of an answer to [{role, content}, ...]. options: temperature, top_k, top_p, min_p, max_tokens, seed. */
  *chat(messages, options = {}) {
    if (messages.length > TURNS) throw new Error(`messages: expected ${TURNS} at most, got ${messages.length}`);
    for (const { role } of messages)
      if (!ROLES.includes(role)) throw new Error(`messages: expected a role of system, user or assistant, got ${role}`);
    for (const { role, content } of messages) {
      const [at, size] = this.#text(content);
      this.#checked(this.#call.message(ROLES.indexOf(role), at, size));
    }
    this.#options(options);
    this.#checked(this.#call.chat());
    yield* this.#pieces();
  }

  /** Texts that continue a text. */
  *complete(text, options = {}) {
    const [at, size] = this.#text(text);
    this.#options(options);
    const code = this.#call.complete(at, size);
    this.#call.release(at);
    this.#checked(code);
    yield* this.#pieces();
  }

  /** Of the last answer: {prompt, cached, tokens}. */
  report() {
    const [prompt, cached, tokens] = [0, 1, 2].map(this.#call.report);
    return { prompt, cached, tokens };
  }

  *#pieces() {
    const decoder = new TextDecoder();
    for (let size; (size = this.#checked(this.#call.next())) > 0; )
      yield decoder.decode(this.#bytes(this.#call.text(), size).slice());
  }

  #bytes(at, size) {
    return new Uint8Array(this.#call.memory.buffer, at >>> 0, size);
  }

  #text(text) {
    const raw = new TextEncoder().encode(text);
    const at = this.#allocate(raw.length);
    this.#bytes(at, raw.length).set(raw);
    return [at, raw.length];
  }

  #allocate(size) {
    const at = this.#call.allocate(size) >>> 0;
    if (!at) throw new Error(`no memory for ${size} bytes`);
    return at;
  }

  #options(o) {
    const { temperature = -1, top_k = -1, top_p = -1, min_p = -1, max_tokens = -1, seed = -1 } = o;
    const drawn = seed < 0 ? Math.floor(Math.random() * 2 ** 52) : seed;
    this.#call.options(temperature, top_k, top_p, min_p, max_tokens, drawn);
  }

  #checked(code) {
    if (code >= 0) return code;
    const all = this.#bytes(this.#call.error(), 512);
    throw new Error(new TextDecoder().decode(all.slice(0, all.indexOf(0))));
  }

  // Writes the file into the module's memory as it comes, so it is nowhere else.
  async #place(model, progress) {
    if (!(model instanceof Response)) {
      const at = this.#allocate(model.byteLength);
      this.#bytes(at, model.byteLength).set(new Uint8Array(model.buffer ?? model, model.byteOffset ?? 0, model.byteLength));
      return [at, model.byteLength];
    }
    const size = Number(model.headers.get("Content-Length"));
    if (!model.ok) throw new Error(`${model.url}: the model can't be fetched: ${model.status}`);
    if (!size || model.headers.get("Content-Encoding")) return this.#place(new Uint8Array(await model.arrayBuffer()), progress);
    const at = this.#allocate(size);
    let have = 0;
    for (const reader = model.body.getReader(); ; ) {
      const { value, done } = await reader.read();
      if (done) break;
      if (have + value.length > size) throw new Error(`${model.url}: expected ${size} bytes, got more`);
      this.#bytes(at + have, value.length).set(value);
      progress((have += value.length), size);
    }
    if (have !== size) throw new Error(`${model.url}: expected ${size} bytes, got ${have}`);
    return [at, size];
  }
}

// The calls of WASI that the module makes: a clock and output. It has no files, so every other call fails.
function imports(module, memory) {
  const view = () => new DataView(memory().buffer);
  const calls = {
    clock_time_get(id, precision, at) {
      view().setBigUint64(at, BigInt(Math.round((id ? performance.now() : Date.now()) * 1e6)), true);
      return 0;
    },
    environ_sizes_get(count, size) {
      view().setUint32(count, 0, true);
      view().setUint32(size, 0, true);
      return 0;
    },
    environ_get: () => 0,
    sched_yield: () => 0,
    fd_prestat_get: () => BAD_HANDLE,
    proc_exit(code) {
      throw new Error(`the module ended with ${code}`);
    },
  };
  const wanted = {};
  for (const { module: from, name } of WebAssembly.Module.imports(module))
    (wanted[from] ??= {})[name] = calls[name] ?? (() => NO_SUCH_CALL);
  return wanted;
}

/** A model in a worker. worker: a Worker of worker.mjs. Chat.open() makes one; answers are read by `for await`. */
export class Chat {
  #worker;
  #wake;
  #id = 0;

  static open(worker, options, progress = () => {}) {
    const chat = new Chat();
    chat.#worker = worker;
    worker.postMessage({ open: options });
    return new Promise((resolve, reject) => {
      worker.onerror = (event) => reject(new Error(event.message));
      worker.onmessage = ({ data }) => {
        if (data.progress) progress(...data.progress);
        else if (data.error) reject(new Error(data.error));
        else {
          worker.onmessage = ({ data: told }) => chat.#wake?.(told);
          chat.facts = data.opened;
          resolve(chat);
        }
      };
    });
  }

  /** As Model.chat(); leaving the loop ends the answer. */
  async *chat(messages, options = {}) {
    const told = [], id = ++this.#id;
    let arrived = () => {};
    this.#wake = (data) => data.id === id && (told.push(data), arrived()); // an answer that was left may still send
    this.#worker.postMessage({ chat: messages, options, id });
    try {
      for (;;) {
        while (!told.length) await new Promise((resolve) => (arrived = resolve));
        const { piece, error, report } = told.shift();
        if (error) throw new Error(error);
        if (report) return void (this.report = report);
        yield piece;
      }
    } finally {
      this.#worker.postMessage({ stop: id });
    }
  }
}
