// Downloads of models that this tab began. The server ends one whose tab is gone and keeps what came, so a tab that is
// reloaded begins its downloads again, and each goes on where it was.

import { pause } from "./api/pause.js";
import { pull } from "./api/pull.js";
import { Trouble } from "./api/trouble.js";
import { getOfTab, setOfTab } from "./store/prefs.js";

const KEPT = "downloads";
const SPAN_MS = 4000; // over which the speed is measured
const SHORTEST_MS = 400;

class Download {
  constructor({ name, done = 0, total = 0 }) {
    Object.assign(this, { name, done, total, trouble: null, reports: [] });
    this.abort = new AbortController();
  }

  /** Bytes a second; 0 while unknown. */
  get rate() {
    const [first, last] = [this.reports[0], this.reports.at(-1)];
    const passed = last ? last.time - first.time : 0;
    return passed > SHORTEST_MS ? (1000 * (last.done - first.done)) / passed : 0;
  }

  took({ done, total }) {
    const time = performance.now();
    if (done < this.done) this.reports = []; // the next file of a model of several
    Object.assign(this, { done, total });
    this.reports.push({ time, done });
    while (this.reports[0].time < time - SPAN_MS) this.reports.shift();
  }
}

export class Downloads {
  /** on: {changed(), ended(name)}: a download moved on; the server has this model. */
  constructor(client, on) {
    Object.assign(this, { client, on, all: [] });
    for (const kept of getOfTab(KEPT, [])) this.run(new Download(kept));
  }

  /** Begins a download, or again one that failed. */
  begin(name) {
    const found = this.all.find((one) => one.name === name);
    if (found && !found.trouble) return;
    if (found) this.drop(found);
    this.run(new Download({ name }));
  }

  /** Ends a download, or takes one that failed off the list. */
  drop(download) {
    download.abort.abort();
    this.all = this.all.filter((one) => one !== download);
    this.moved();
  }

  async run(download) {
    this.all.push(download);
    this.moved();
    try {
      await this.fetch(download);
      this.drop(download);
      this.on.ended(download.name);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Trouble)) console.error(error);
      download.trouble = error;
      this.moved();
    }
  }

  /** Repeats the request while the server has no place for another download. */
  async fetch(download) {
    const { name, abort } = download;
    for (;;) {
      try {
        for await (const report of pull(this.client, name, abort.signal)) {
          download.took(report);
          this.moved();
        }
        return;
      } catch (error) {
        if (error.kind !== "busy") throw error;
        await pause(error.after * 1000, abort.signal);
      }
    }
  }

  moved() {
    // A browser breaks off requests before it leaves the page, so a broken one is kept as well.
    const kept = this.all.filter(({ trouble }) => !trouble || trouble.kind === "away");
    setOfTab(
      KEPT,
      kept.map(({ name, done, total }) => ({ name, done, total })),
    );
    this.on.changed();
  }
}
