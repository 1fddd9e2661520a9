/* The theme searches in a Worker, which browsers refuse to pages that were opened from a folder. There the worker's script runs in a
 * hidden frame instead, and messages go as events. The theme asks for the name IFrameWorker to find its languages.
 */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #ready;

    constructor(url) {
      super();
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.onmessage?.(message);
        this.dispatchEvent(message);
      };
      inside.importScripts = (...urls) => Promise.all(urls.map((one) => this.#load(one)));
      this.#ready = this.#load(url);
    }

    #load(url) {
      return new Promise((done, failed) => {
        const script = this.#frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = failed;
        this.#frame.contentDocument.body.append(script);
      });
    }

    async postMessage(data) {
      await this.#ready;
      const inside = this.#frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
